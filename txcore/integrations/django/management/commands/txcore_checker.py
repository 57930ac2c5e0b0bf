"""`manage.py txcore_checker`: finishes the transactions that a crash left open."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

import txcore
from txcore.integrations.django.runtime import runtime


class Command(BaseCommand):
    """The checker of the project's group."""

    help = "Run the checker of the project's group until SIGTERM; at least one must run, several share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option."""
        parser.add_argument("--once", action="store_true", help="check the halves that are due now, and exit; for cron")

    def handle(self, *_: Any, **options: Any) -> None:
        """Run it."""
        shared = runtime()
        checker = txcore.Checker(shared.backend, shared.settings.group, fence=shared.fence)
        if options["once"]:
            report = checker.run_once()
            self.stdout.write(
                f"committed {report.committed}, rolled back {report.rolled_back}, pending {report.pending}"
            )
        else:
            ended = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: ended.set())
            checker.start()
            self.stdout.write(f"checking group {shared.settings.group}")
            self.stdout.flush()
            ended.wait()
        checker.stop()
