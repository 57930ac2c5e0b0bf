"""`manage.py txcore_checker`: finishes the transactions that a crash left open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

import txcore
from txcore.integrations.django.runtime import runtime
from txcore.signals import end_requested


class Command(BaseCommand):
    """The checker of the project's group."""

    help = "Run the checker of the project's group until SIGTERM; at least one must run, several share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option."""
        parser.add_argument("--once", action="store_true", help="check the halves that are due now, and exit; for cron")

    def handle(self, *_: Any, **options: Any) -> None:
        """Run it."""
        with suppress(OperationalError):  # the checker waits for a database that is down
            self.check_migrations()
        try:
            shared = runtime()
            with shared.backend:
                self._run(
                    txcore.Checker(shared.backend, shared.settings.group, fence=shared.fence), is_once=options["once"]
                )
        except txcore.TxcoreError as error:
            raise CommandError(str(error)) from error

    def _run(self, checker: txcore.Checker, *, is_once: bool) -> None:
        if is_once:
            report = checker.run_once()
            self.stdout.write(
                f"committed {report.committed}, rolled back {report.rolled_back}, pending {report.pending}"
            )
        else:
            with end_requested() as requested:
                checker.start()
                self.stdout.write(f"checking group {runtime().settings.group}")
                self.stdout.flush()
                requested.wait()
        checker.stop()
