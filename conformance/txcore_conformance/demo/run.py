"""One run of the demo, from empty tables to the verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from txcore.clock import SystemClock
from txcore.errors import UsageError
from txcore.port import ensured
from txcore_conformance.demo.consuming import Consumer, open_consumer
from txcore_conformance.demo.plan import STEPS
from txcore_conformance.demo.settings import Settings
from txcore_conformance.demo.shop import Shop
from txcore_conformance.demo.supervisor import Progress, Supervisor
from txcore_conformance.demo.verdict import Verdict, judge, read_to_end

CLOSE_TIMEOUT_S: Final = 10.0
IMMUNITY_ALLOWANCE_S: Final = 0.5
Seam = Callable[[Settings], None]
Watch = Callable[[Settings], AbstractContextManager[Callable[[Progress], None]]]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    settings: Settings
    progress: Progress
    verdict: Verdict
    wall_s: float
    orders_s: float

    @property
    def is_killed_enough(self) -> bool:
        """Whether enough processes were killed for a proof."""
        return self.progress.kills >= self.settings.kills_min

    @property
    def is_proven(self) -> bool:
        """Whether the run is a proof."""
        return self.is_killed_enough and self.verdict.is_clean and self.verdict.orders > 0

    def as_json(self) -> dict[str, Any]:
        """Return the figures that the screen shows, for programs."""
        progress, verdict = self.progress, self.verdict
        return {
            "is_proven": self.is_proven,
            "wall_s": round(self.wall_s, 1),
            "killed": {text: progress.killed[step] for step, text in STEPS.items()},
            "orders_committed": verdict.orders,
            "rolled_back": len(progress.declined) + verdict.rolled_back,
            "messages_delivered": progress.delivered,
            "duplicates_removed": progress.duplicates,
            "in_doubt": verdict.in_doubt,
            "lost": verdict.lost,
            "leaked": verdict.leaked,
            "failures": list(progress.failures),
        }


def run(settings: Settings, watch: Watch, *, before_judgement: Seam | None = None) -> Report:
    """Run the demo.

    Args:
        watch: Entered after broker and database are open; yields a function that gets the progress repeatedly.
        before_judgement: Called when everything is at rest; tests corrupt data there.

    Raises:
        UsageError, BackendUnavailableError: broker or database cannot be used; the text is one sentence.
        DemoError: the run could not be finished.
    """
    clock = SystemClock()
    began_s = clock.elapsed_s()
    with contextlib.ExitStack() as stack:
        shop = stack.enter_context(contextlib.closing(_shop(settings)))
        _require_two_files(settings.broker_url, shop.engine.url)
        backend = settings.connect()
        stack.callback(lambda: backend.close(CLOSE_TIMEOUT_S).result(CLOSE_TIMEOUT_S))
        immunity_s = max(settings.immunity_s, backend.capabilities.release_time_max_s + IMMUNITY_ALLOWANCE_S)
        settings = replace(settings, immunity_s=immunity_s)
        auditor: Consumer = open_consumer(settings.broker_url, settings.topic, f"{settings.name}-auditor")
        stack.callback(auditor.close)
        shop.create()
        ensured(backend, settings.group)
        with watch(settings) as show, Supervisor(settings, shop, backend, show) as supervisor:
            progress = supervisor.run()
        if before_judgement is not None:
            before_judgement(settings)
        messages = read_to_end(auditor, progress.ordered)
        verdict = judge(settings, shop, backend, messages, progress)
        return Report(settings, progress, verdict, clock.elapsed_s() - began_s, supervisor.orders_s)


def clean(settings: Settings) -> None:
    """Delete the run's tables; do nothing if the database cannot be used."""
    with contextlib.suppress(UsageError, SQLAlchemyError), contextlib.closing(_shop(settings)) as shop:
        shop.drop()


def _shop(settings: Settings) -> Shop:
    return Shop(settings.database_url, settings.name)


def _require_two_files(broker_url: str, database: URL) -> None:
    """Refuse one SQLite file as broker and database: a transaction would block the half for which it waits."""
    if database.get_backend_name() != "sqlite" or not broker_url.startswith("sqlite:"):
        return
    file = broker_url.partition("?")[0].removeprefix("sqlite:///")
    if Path(file).absolute() == Path(database.database or "").absolute():
        raise UsageError(f"broker and database must be two files, not both {file}")
