"""One self-test: a group with known faults on each broker, a live producer beside it, one audit, and the comparison."""

from __future__ import annotations

import itertools
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine

import txcore
from txcore_spark.anomalies import FORGERIES, RECIPES, Fault, History, Maker, Phase, identity_of
from txcore_spark.selftest.writers import open_writer, write_rows

PARTITIONS: Final = 4
LATE_S: Final = 5.0
LIVE_PAUSE_S: Final = 0.02
LARGE_EVERY: Final = 10
"""Number of transactions of which one has three messages."""
LATE_BORN_S: Final = 3_600
Say = Callable[[str], None]


@dataclass(slots=True)
class Bed:
    """One group on one broker, with its database.

    Attributes:
        expected: The verdicts that each transaction with a fault must get; all others get none.
    """

    name: str
    url: str
    database: str
    group: str
    topics: list[str]
    taps: list[str]
    expected: dict[bytes, set[str]] = field(default_factory=dict)
    live_count: int = 0

    @property
    def other_group(self) -> str:
        """A second group of the configuration, which is empty; its name is on forged messages."""
        return f"{self.group}-other"


@dataclass(slots=True)
class Outcome:
    """Planted faults, and the audit's findings.

    Attributes:
        found, planted: Transactions with a fault that got exactly their verdicts, and all of them, by verdict.
        false_alarms: Verdicts that were not planted, with their transactions.
    """

    found: Counter[str]
    planted: Counter[str]
    false_alarms: list[tuple[str, str]]

    @property
    def is_good(self) -> bool:
        """Whether the audit found all planted faults and nothing else."""
        return self.found == self.planted and not self.false_alarms


def make_bed(name: str, url: str, database: str) -> Bed:
    """Return an empty group on a broker; its names are new."""
    scheme = url.partition(":")[0]
    tag = secrets.token_hex(3)
    topics = [f"selftest-{tag}-{n}" for n in range(2)]
    taps: list[str] = []
    if scheme == "rabbitmq":
        topics = [f"{topic}/key" for topic in topics]
        taps = [f"{topic}={topic.partition('/')[0]}.tap" for topic in topics]
    elif scheme == "nats":
        topics = [f"selftest.{tag}.{n}" for n in range(2)]
    return Bed(name, url, database, f"selftest-{tag}", topics, taps)


def plant(bed: Bed, count: int, each: int, say: Say, *, seed: int = 1) -> None:
    """Write *count* transactions to the bed in random order, *each* of them with every kind of fault."""
    engine = create_engine(bed.database)
    fence = txcore.SqlFence(engine)
    fence.create()
    backend = txcore.connect(bed.url)
    for group in (bed.group, bed.other_group):
        backend.ensure_group(group, PARTITIONS).result(60)
    backend.close()
    writer = open_writer(bed.url, bed.group)
    writer.prepare(bed.topics)
    is_timed = not bed.url.startswith("rabbitmq")
    maker = Maker(
        bed.group, PARTITIONS, bed.topics, key_as_header=not bed.url.startswith(("kafka", "sqlite")),
        late_ms=0 if is_timed else LATE_BORN_S * 1000, other_group=bed.other_group,
    )  # fmt: skip
    faults: list[Fault] = [*RECIPES, *FORGERIES]
    kinds: list[Fault | None] = [kind for kind in faults for _ in range(each)]
    kinds += [None] * (count - len(kinds))
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    rng.shuffle(kinds)
    began_s = time.monotonic()
    late: list[tuple[int, Any]] = []

    def histories() -> Iterator[History]:
        for number, kind in enumerate(kinds):
            born_ms = time.time_ns() // 1_000_000
            identity = identity_of(born_ms, rng.getrandbits(62))
            history = maker.make(identity, born_ms, kind, 3 if number % LARGE_EVERY == 0 else 1)
            if history.expected:
                bed.expected[identity] = history.expected
            yield history

    for batch in _batches(histories(), 2_000):
        records = [(history.partition, record) for history in batch for record in history.records]
        rows = [(h.transaction_id, r.body[0], r.body[1:]) for h in batch for r in h.records if r.log == "row"]
        write_rows(bed.database, fence.table, bed.group, rows)
        writer.write((p, r) for p, r in records if r.log != "row" and r.phase is Phase.NOW)
        late += [(p, r) for p, r in records if r.phase is Phase.LATE]
    threading.Event().wait(max(began_s + 2 * LATE_S - time.monotonic(), LATE_S + 1) if late and is_timed else 0)
    writer.write(late)
    writer.close()
    engine.dispose()
    say(f"{bed.name}: {count} transactions written in {time.monotonic() - began_s:.0f} s, {each} of each kind of fault")


def _batches(items: Iterator[History], size: int) -> Iterator[list[History]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


@contextmanager
def live_writer(bed: Bed) -> Iterator[None]:
    """Keep a real producer busy in the bed's group while the block runs."""
    stop = threading.Event()
    engine = create_engine(bed.database)
    backend = txcore.connect(bed.url)
    producer = txcore.TransactionProducer(backend, group=bed.group, fence=txcore.SqlFence(engine))

    def work() -> None:
        while not stop.wait(LIVE_PAUSE_S):
            with producer.transaction(engine) as transaction:
                transaction.publish(txcore.Message(bed.topics[bed.live_count % 2], b"live", headers={"live": "1"}))
            bed.live_count += 1

    thread = threading.Thread(target=work, name=f"live-{bed.name}")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.close()
        backend.close()
        engine.dispose()


def write_config(beds: Sequence[Bed], folder: Path, more: Mapping[str, str] | None = None) -> Path:
    """Write the configuration of one audit over all beds."""
    lines = ["[audit]", f'store = "{folder / "audit"}"', f"late_s = {LATE_S}", "grace_s = 1", "release_s = 1"]
    lines += [f"{key} = {value}" for key, value in (more or {}).items()]
    for bed in beds:
        taps = ", ".join(f'"{each}"' for each in bed.taps)
        lines += [
            f"[backends.{bed.name}]", f'url = "{bed.url}"', f"[databases.{bed.name}]", f'url = "{bed.database}"',
            f"[groups.{bed.group}]", f'backend = "{bed.name}"', f'database = "{bed.name}"',
            f"[groups.{bed.other_group}]", f'backend = "{bed.name}"', f'database = "{bed.name}"',
            f"[audit.backends.{bed.name}]", f"taps = [{taps}]",
        ]  # fmt: skip
    path = folder / "txcore.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def compare(beds: Sequence[Bed], findings: Sequence[Mapping[str, Any]]) -> Outcome:
    """Compare the findings with the planted faults."""
    wanted = {identity: verdicts for bed in beds for identity, verdicts in bed.expected.items()}
    actual: dict[bytes, set[str]] = {}
    for each in findings:
        actual.setdefault(bytes(each["tx"]), set()).add(each["verdict"])
    planted = Counter(verdict for verdicts in wanted.values() for verdict in verdicts)
    found = Counter(
        verdict for identity, verdicts in wanted.items() for verdict in verdicts & actual.get(identity, set())
    )
    alarms = [
        (verdict, identity.hex())
        for identity, verdicts in actual.items()
        for verdict in sorted(verdicts - wanted.get(identity, set()))
    ]
    return Outcome(found, planted, alarms)
