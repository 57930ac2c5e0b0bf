"""`manage.py order tea`: places one order."""

from django.core.management.base import BaseCommand, CommandParser

from shop.models import place_order


class Command(BaseCommand):
    """Places one order."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the item."""
        parser.add_argument("item")

    def handle(self, *_: object, **options: str) -> None:
        """Place it."""
        self.stdout.write(f"order {place_order(options['item'])} is placed and announced")
