"""The rows of the table: each with its style, its concurrency and its yardstick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import processes, styles, visible, yardsticks
from benchmarks.brokers import SERVERS
from benchmarks.drive import Drive, Sample
from benchmarks.place import BODY_SIZE, Place, Stage
from benchmarks.sampling import Profile

BLOCKING: Final = "threads"
ASYNCIO: Final = "tasks"
BATCH: Final = "batch"
HALVES_MAX: Final = 1_000
LARGE_BODY_SIZE: Final = 1_024
NO_BROKER: Final = "-"
NULL_DRIVER: Final = "null driver"
RAW: Final = "raw"
RAW_LONE: Final = "raw, 2 in a row"
BUSINESS: Final = {"core": "business, core", "psycopg": "business, psycopg"}
DATABASE: Final = {"core": "database, core", "psycopg": "database, psycopg"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        broker: The broker's name, or "-" for a row without a broker.
        driver: threads, tasks (of asyncio) or batch; says what *size* counts.
        against: Key of the yardstick of this row, or None for a yardstick.
        body_size: Size of each message's body, in bytes.
    """

    broker: str
    style: str
    driver: str
    size: int
    measure: Callable[[Place, Drive], Sample]
    against: str | None = None
    body_size: int = BODY_SIZE

    @property
    def key(self) -> str:
        """Name of the row in JSON and in *against*."""
        return key_of(self.broker, self.style, self.driver, self.size, self.body_size)

    def run(self, parent: Path, seconds: float, stage: Stage | None = None, profile: Profile | None = None) -> Sample:
        """Measure the row once, for about *seconds*, in a new place."""
        with Place(parent, None if self.broker == NO_BROKER else self.broker, stage, self.body_size) as place:
            broker = place.server.pid if place.server is not None else None
            database = stage.database.pid if stage is not None else None
            return self.measure(place, Drive(seconds, _cpu_of(broker), profile, _cpu_of(database)))


def _cpu_of(pid: int | None) -> Callable[[], float]:
    return lambda: processes.cpu_s(pid) if pid else 0.0


def key_of(broker: str, style: str, driver: str, size: int, body_size: int = BODY_SIZE) -> str:
    """Return the name of a row."""
    return f"{broker}/{style}/{driver}/{size}/{body_size}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of threads, tasks and transactions per batch that are measured.

    Attributes:
        database_threads: Threads with PostgreSQL; with a SQLite file they are *threads* up to 64.
        database_tasks: Tasks in rows with a business database; more tasks would only wait longer.
        large: Threads, tasks and batch of the rows with bodies of 1 KiB.
    """

    threads: Sequence[int] = (1, 16, 64, 512)
    tasks: Sequence[int] = (1, 100, 1_000)
    database_threads: Sequence[int] = (1, 16, 64)
    database_tasks: Sequence[int] = (1, 100)
    batches: Sequence[int] = (100, 1_000, 10_000)
    large: tuple[int, int, int] | None = (16, 1_000, 10_000)


QUICK: Final = Sizes(
    threads=(1, 16), tasks=(1, 1_000), database_threads=(16,), database_tasks=(10,), batches=(2_000,), large=None
)


def make_rows(brokers: Sequence[str], sizes: Sizes, *, has_plain_driver: bool = False) -> list[Row]:
    """Return all rows, the yardsticks first; *has_plain_driver*: the business database has psycopg."""
    measures: dict[str, tuple[Any, Any]] = {"core": (yardsticks.business, styles.database)}
    if has_plain_driver:
        measures["psycopg"] = (yardsticks.plain_business, styles.plain_database)
    rows = [Row(NO_BROKER, "raw commit", BLOCKING, 1, yardsticks.row_commit)]
    rows += [
        Row(NO_BROKER, BUSINESS[driver], BLOCKING, count, partial(business, thread_count=count))
        for driver, (business, _) in measures.items()
        for count in sizes.database_threads
    ]
    rows += [
        Row(NO_BROKER, BUSINESS["core"], ASYNCIO, count, partial(yardsticks.business_async, task_count=count))
        for count in sizes.database_tasks
    ]
    for broker in brokers:
        rows += _yardsticks_of(broker, sizes)
        if has_plain_driver and broker in SERVERS:
            rows += [
                Row(
                    broker,
                    "by hand, psycopg",
                    BLOCKING,
                    count,
                    partial(yardsticks.plain_by_hand, thread_count=count),
                    key_of(NO_BROKER, BUSINESS["psycopg"], BLOCKING, count),
                )
                for count in sizes.database_threads
            ]
        rows += [
            Row(
                broker,
                DATABASE[driver],
                BLOCKING,
                count,
                partial(database, thread_count=count),
                key_of(NO_BROKER, BUSINESS[driver], BLOCKING, count),
            )
            for driver, (_, database) in measures.items()
            for count in sizes.database_threads
        ]
        rows += [
            Row(
                broker,
                DATABASE["core"],
                ASYNCIO,
                count,
                partial(styles.database_async, task_count=count),
                key_of(NO_BROKER, BUSINESS["core"], ASYNCIO, count),
            )
            for count in sizes.database_tasks
        ]
        rows += _messaging_of(broker, sizes)
    return rows


def yardsticks_of(broker: str) -> tuple[str, str]:
    """Return the keys of the yardsticks of a single caller and of many at once."""
    if broker in SERVERS:
        return key_of(broker, RAW_LONE, BLOCKING, 1), key_of(broker, RAW, BATCH, yardsticks.PIPELINED_COUNT)
    many = key_of(broker, "raw halves", BATCH, HALVES_MAX)
    if broker == "sqlite":
        return key_of(NO_BROKER, "raw commit", BLOCKING, 1), many
    return key_of(broker, "raw halves", BATCH, 1), many


def _yardsticks_of(broker: str, sizes: Sizes) -> list[Row]:
    rows = [
        Row(broker, "raw halves", BATCH, size, partial(yardsticks.halves, batch_size=size)) for size in (1, HALVES_MAX)
    ]
    if broker not in SERVERS:
        return rows
    many = Row(broker, RAW, BATCH, yardsticks.PIPELINED_COUNT, yardsticks.raw_pipelined)
    rows = [many]
    rows += [
        Row(broker, RAW, BLOCKING, count, partial(yardsticks.raw_in_a_row, count=1, thread_count=count))
        for count in sizes.threads
    ]
    rows.append(Row(broker, RAW_LONE, BLOCKING, 1, partial(yardsticks.raw_in_a_row, count=2, thread_count=1)))
    if sizes.large:
        rows.append(_large(many))
    return rows


def _messaging_of(broker: str, sizes: Sizes) -> list[Row]:
    """Return the rows without a database."""
    lone, many = yardsticks_of(broker)
    rows = []
    for style, blocking, asynchronous in (
        ("listener", styles.listener, styles.listener_async),
        ("primitives", styles.primitives, styles.primitives_async),
    ):
        for count in sizes.threads:
            against = lone if count == 1 else many
            rows.append(Row(broker, style, BLOCKING, count, partial(blocking, thread_count=count), against))
        for count in sizes.tasks:
            against = lone if count == 1 else many
            rows.append(Row(broker, style, ASYNCIO, count, partial(asynchronous, task_count=count), against))
    rows += [
        Row(broker, "send_many", BATCH, size, partial(styles.send_many, batch_size=size), many)
        for size in sizes.batches
    ]
    if broker not in SERVERS:
        return rows
    if broker == "kafka":
        rows += [
            Row(NO_BROKER, NULL_DRIVER, BATCH, size, partial(_null_send_many, batch_size=size))
            for size in sizes.batches
        ]
        rows += [
            Row(broker, "by hand", BATCH, size, partial(_by_hand, batch_size=size), many) for size in sizes.batches
        ]
        rows += [
            Row(broker, "by hand", BLOCKING, count, partial(_by_hand_blocking, thread_count=count), many)
            for count in sizes.threads
            if count > 1
        ]
        rows += [
            Row(broker, "by hand", ASYNCIO, count, partial(_by_hand_async, task_count=count), many)
            for count in sizes.tasks
            if count > 1
        ]
    if sizes.large:
        loads = set(zip(("listener", "listener", "send_many"), (BLOCKING, ASYNCIO, BATCH), sizes.large, strict=True))
        rows += [_large(row) for row in rows if (row.style, row.driver, row.size) in loads]
    raw = Row(broker, "raw visible, idle", BLOCKING, 1, partial(visible.raw_visible, per_s=visible.IDLE_PER_S))
    idle = partial(visible.visible, per_s=visible.IDLE_PER_S, thread_count=1)
    loaded = partial(visible.visible, per_s=visible.LOADED_PER_S, thread_count=visible.LOADED_THREADS)
    rows += [raw, Row(broker, "visible, idle", BLOCKING, 1, idle, raw.key)]
    rows.append(Row(broker, "visible, loaded", BLOCKING, visible.LOADED_THREADS, loaded))
    return rows


def _null_send_many(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    from benchmarks.null_kafka import null_send_many  # noqa: PLC0415 - needs Kafka's driver

    return null_send_many(place, drive, batch_size=batch_size)


def _by_hand(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    from benchmarks.by_hand import by_hand  # noqa: PLC0415 - needs Kafka's driver

    return by_hand(place, drive, batch_size=batch_size)


def _by_hand_blocking(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    from benchmarks.by_hand import by_hand_blocking  # noqa: PLC0415 - needs Kafka's driver

    return by_hand_blocking(place, drive, thread_count=thread_count)


def _by_hand_async(place: Place, drive: Drive, *, task_count: int) -> Sample:
    from benchmarks.by_hand import by_hand_async  # noqa: PLC0415 - needs Kafka's driver

    return by_hand_async(place, drive, task_count=task_count)


def _large(row: Row) -> Row:
    """Return the row with larger bodies, against the yardstick with such bodies."""
    against = row.against and row.against.rpartition("/")[0] + f"/{LARGE_BODY_SIZE}"
    return Row(row.broker, row.style, row.driver, row.size, row.measure, against, LARGE_BODY_SIZE)
