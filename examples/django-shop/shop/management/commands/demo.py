"""`manage.py demo`: the whole way in one command."""

from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Makes the tables, places an order, runs the checker once."""

    def handle(self, *_: object, **__: object) -> None:
        """Do it."""
        call_command("migrate", verbosity=0)
        call_command("order", "tea")
        call_command("txcore_checker", "--once")
