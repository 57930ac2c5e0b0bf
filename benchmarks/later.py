"""`python -m benchmarks.later`: how late delayed messages are, what a million that wait cost, and cancels in time.

The broker is in memory, so that only the database's side is measured, on a new database.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from txcore_conformance import servers
from txcore_conformance.kit import wait_until

import txcore
from txcore import wire
from txcore.memory import MemoryBackend, MemoryBroker

TOPIC = "timers"
TOGETHER = 50
"""Messages of one transaction."""
STARTERS = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}


class Bench:
    """A new database, a broker in memory that notes when each message came, and a producer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.broker = MemoryBroker()
        self.fence = txcore.SqlFence(engine)
        self.fence.create()
        self.producer = txcore.TransactionProducer(MemoryBackend(self.broker), "later", fence=self.fence)

    def relay(self) -> txcore.Relay:
        """Return a relay, not started."""
        return txcore.Relay(MemoryBackend(self.broker), "later", self.engine)

    def put(self, delays_s: list[float]) -> txcore.TransactionId:
        """Commit one transaction with a message for each delay."""
        with self.producer.transaction(self.engine) as tx:
            for number, delay_s in enumerate(delays_s):
                tx.publish(txcore.Message(TOPIC, b"x" * 200, b"%d" % (number % 100), delay_s=delay_s or None))
        return tx.transaction_id

    def came(self) -> int:
        """Return how many messages have come."""
        return len(self.broker.topics.get(TOPIC, []))

    def lateness_ms(self) -> list[int]:
        """Return for each delayed message how late it was; the broker's clock is the database's, on this machine."""
        found = [(each.appended_ms, each.headers.get(wire.HEADER_DUE)) for each in self.broker.topics.get(TOPIC, [])]
        return [(came_ms or 0) - int(due) for came_ms, due in found if due is not None]


def late(bench: Bench, count: int, within_s: float) -> None:
    """Messages that are due at random times."""
    rng, wait_s = random.Random(count), count / 1_500
    began_s = time.monotonic()
    for _ in range(0, count, TOGETHER):
        over_s = time.monotonic() - began_s
        bench.put([max(wait_s - over_s, 0.05) + rng.random() * within_s for _ in range(TOGETHER)])
    print(f"{count:,} written in {time.monotonic() - began_s:.1f} s; due at random within {within_s:g} s")
    with bench.relay():
        wait_until(lambda: bench.came() >= count, "all messages", timeout_s=wait_s + within_s + 300)
    _show("lateness", bench.lateness_ms())


def million(bench: Bench, count: int, seconds: float) -> None:
    """Rows that wait for a day, with undelayed messages beside them: their rate before and with the rows."""
    with bench.relay():
        before = _rate(bench, seconds / 2)
    began_s = time.monotonic()
    for _ in range(0, count, 1_000):
        bench.put([random.uniform(3_600, 90_000) for _ in range(1_000)])
    print(f"{count:,} rows written in {time.monotonic() - began_s:.0f} s")
    with bench.relay() as relay:
        memory = _memory_mb()
        beside = _rate(bench, seconds / 2)
        stats = relay.waiting()
    print(f"undelayed: {before:,.0f}/s without, {beside:,.0f}/s beside {stats.later:,} rows that wait")
    print(f"memory of the process: {memory:.0f} MB before, {_memory_mb():.0f} MB after {seconds / 2:g} s")


def cancels(bench: Bench, count: int) -> None:
    """Cancels around the due time: each answer is compared with what came."""
    rng, wait_s, began_s = random.Random(count), count / 150, time.monotonic()
    identities = []
    for _ in range(count):
        left_s = max(wait_s - (time.monotonic() - began_s), 0.0)
        identities.append(bench.put([left_s + rng.uniform(0.01, count / 150)]))
    rng.shuffle(identities)
    answered: dict[str, str] = {}
    with bench.relay():
        for identity in identities:
            while str(identity) not in answered:
                with suppress(OperationalError), bench.engine.begin() as connection:
                    answered[str(identity)] = bench.producer.cancel(identity, connection).value
        wanted = sum(state == "TOO_LATE" for state in answered.values())
        wait_until(lambda: bench.came() >= wanted, "all that were too late", timeout_s=120)
    came = {str(each.headers[wire.HEADER_ID]).rpartition(":")[0] for each in bench.broker.topics.get(TOPIC, [])}
    false = sum((state == "TOO_LATE") != (identity in came) for identity, state in answered.items())
    print(f"{count:,} cancels: {count - wanted:,} in time, {wanted:,} too late; {false} answers were false")
    _show("lateness", bench.lateness_ms())


def _rate(bench: Bench, seconds: float) -> float:
    """Return the undelayed messages per second from COMMIT to topic, of one producer."""
    before, until_s, began_s = bench.came(), time.monotonic() + seconds, time.monotonic()
    count = 0
    while time.monotonic() < until_s:
        bench.put([0.0] * TOGETHER)
        count += TOGETHER
    wait_until(lambda: bench.came() >= before + count, "the undelayed messages", timeout_s=120)
    return count / (time.monotonic() - began_s)


def _memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def _show(name: str, values_ms: list[int]) -> None:
    ordered = sorted(values_ms)
    if ordered:
        p50, p99 = statistics.median(ordered), ordered[len(ordered) * 99 // 100]
        early = sum(value < 0 for value in ordered)
        print(f"{name}: p50 {p50:g} ms, p99 {p99} ms, most {ordered[-1]} ms; {early} early of {len(ordered):,}")


def _on_database(kind: str, action: Callable[[Bench], None]) -> None:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            engine = create_engine(f"sqlite:///{folder}/later.db")
            action(Bench(engine))
            engine.dispose()
        return
    server: Any = STARTERS[kind]()
    try:
        engine = create_engine(server.fresh_database())
        with engine.connect() as connection:
            print(kind, connection.execute(text("SELECT version()")).scalar())
        action(Bench(engine))
        engine.dispose()
    finally:
        server.remove()


def main() -> int:
    """Run one measurement; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.later", description=__doc__)
    parser.add_argument("what", choices=("late", "million", "cancels"))
    parser.add_argument("--database", choices=("postgresql", "mariadb", "sqlite"), default="postgresql")
    parser.add_argument("--count", type=int, default=0, help="messages; by default 100,000, 1,000,000 or 10,000")
    parser.add_argument("--seconds", type=float, default=60.0, help="late: the range of due times; million: the watch")
    options = parser.parse_args()
    counts = {"late": 100_000, "million": 1_000_000, "cancels": 10_000}
    count = options.count or counts[options.what]
    actions: dict[str, Callable[[Bench], None]] = {
        "late": lambda bench: late(bench, count, options.seconds),
        "million": lambda bench: million(bench, count, options.seconds),
        "cancels": lambda bench: cancels(bench, count),
    }
    print(f"{options.what}, {threading.active_count()} thread, {os.cpu_count()} cores")
    _on_database(options.database, actions[options.what])
    return 0


if __name__ == "__main__":
    sys.exit(main())
