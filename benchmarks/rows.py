"""The rows of the table: what is measured, at which concurrency, and against which yardstick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import styles, yardsticks
from benchmarks.drive import Sample
from benchmarks.place import Place

BLOCKING: Final = "threads"
ASYNCIO: Final = "tasks"
BATCH: Final = "batch"
HALVES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        broker: The broker's name, or "-" where none takes part.
        driver: threads, tasks (of asyncio) or batch; says what *size* counts.
        against: Key of the row that this one is divided by, or None for a yardstick.
    """

    broker: str
    style: str
    driver: str
    size: int
    measure: Callable[[Place, float], Sample]
    against: str | None = None

    @property
    def key(self) -> str:
        """The row's name in JSON and in *against*."""
        return f"{self.broker}/{self.style}/{self.driver}/{self.size}"

    def run(self, parent: Path, seconds: float) -> Sample:
        """Measure once, for about *seconds*, in a place of its own."""
        with Place(parent, None if self.broker == "-" else self.broker) as place:
            return self.measure(place, seconds)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many threads, tasks and transactions per batch are measured.

    Attributes:
        database_tasks: Tasks in rows with a business database; more would only wait longer for the file's one writer.
    """

    threads: Sequence[int] = (1, 16, 64)
    tasks: Sequence[int] = (1, 100, 1_000)
    database_tasks: Sequence[int] = (1, 100)
    batches: Sequence[int] = (10, 100, 1_000)


QUICK: Final = Sizes(threads=(1, 16), tasks=(1, 100), database_tasks=(1, 10), batches=(100,))


def make_rows(brokers: Sequence[str], sizes: Sizes) -> list[Row]:
    """Return all rows, the yardsticks first."""
    rows = [Row("-", "raw commit", BLOCKING, 1, yardsticks.row_commit)]
    rows += [
        Row("-", "business only", BLOCKING, count, partial(yardsticks.business, thread_count=count))
        for count in sizes.threads
    ]
    rows += [
        Row("-", "business only", ASYNCIO, count, partial(yardsticks.business_async, task_count=count))
        for count in sizes.database_tasks
    ]
    for broker in brokers:
        rows += _rows_of(broker, sizes)
    return rows


def _rows_of(broker: str, sizes: Sizes) -> list[Row]:
    halves = [
        Row(broker, "raw halves", BATCH, size, partial(yardsticks.halves, batch_size=size)) for size in (1, HALVES_MAX)
    ]
    lone, batched = (row.key for row in halves)
    if broker == "sqlite":
        lone = f"-/raw commit/{BLOCKING}/1"
    rows = halves
    for style, blocking, asynchronous in (
        ("database", styles.database, styles.database_async),
        ("listener", styles.listener, styles.listener_async),
        ("primitives", styles.primitives, styles.primitives_async),
    ):
        tasks = sizes.database_tasks if style == "database" else sizes.tasks
        for driver, counts in ((BLOCKING, sizes.threads), (ASYNCIO, tasks)):
            for count in counts:
                against = lone if count == 1 else batched
                if style == "database":
                    against = f"-/business only/{driver}/{count}"
                measure = (
                    partial(blocking, thread_count=count)
                    if driver == BLOCKING
                    else partial(asynchronous, task_count=count)
                )
                rows.append(Row(broker, style, driver, count, measure, against))
    rows += [
        Row(broker, "send_many", BATCH, size, partial(styles.send_many, batch_size=size), batched)
        for size in sizes.batches
    ]
    return rows
