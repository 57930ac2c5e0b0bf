"""`python -m benchmarks.relay_kills`: relays killed (-9) again and again, and writers whose commits overlap.

Writers put messages into the message table of a PostgreSQL server, each with keys of its own; with `--delay-ms` each
transaction stays open for a random time between its rows and its COMMIT, so that rows with lower numbers commit later.
Relays in separate processes send them to a broker, and are killed during the work. In the end every message must be
there at least once, always with the same id, and the first copies of each key in their order; the exit code is 0 if
all this holds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

from sqlalchemy import create_engine
from txcore_conformance import servers
from txcore_conformance.kit import wait_until
from txcore_conformance.pytest_plugin import load_harness

import txcore
from benchmarks.outage import HARNESSES
from txcore import wire
from txcore.port import Backend

GROUP, TOPIC = "orders", "orders.created"
KEYS_OF_EACH = 4
WAIT_S = 600.0


class Writer(threading.Thread):
    """One thread that places transactions, its keys in turn, and records its commits."""

    def __init__(self, number: int, backend: Backend, engine: Any, options: argparse.Namespace) -> None:
        super().__init__()
        self.ids: dict[bytes, list[str]] = {}
        self._number, self._options, self._chance = number, options, random.Random(number)
        self._engine, self._backend = engine, backend

    def run(self) -> None:
        """Place all transactions."""
        fence = txcore.SqlFence(self._engine)
        producer = txcore.TransactionProducer(self._backend, GROUP, fence=fence, mode="table")
        options = self._options
        for number in range(options.count // options.writers // options.each):
            key = b"%d.%d" % (self._number, number % KEYS_OF_EACH)
            tx = producer.begin()
            for _ in range(options.each):
                tx.publish(txcore.Message(TOPIC, b"x" * 100, key))
            with self._engine.connect() as connection:
                tx.prepare(connection)
                time.sleep(self._chance.random() * options.delay_ms / 1e3)
                connection.commit()
            self.ids.setdefault(key, []).extend(wire.target_id(tx.transaction_id, n) for n in range(options.each))


class Relays:
    """Relay processes; a killed one is replaced."""

    def __init__(self, count: int, broker: str, database: str) -> None:
        self._command = [sys.executable, "-m", "txcore.cli", "relay", "--broker", broker, "--group", GROUP]
        self._command += ["--database", database]
        self._running = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        """Kill the oldest relay, and start another in its place."""
        place = number % len(self._running)
        self._running[place].kill()
        self._running[place].wait()
        self._running[place] = self._start()

    def end(self) -> None:
        """Kill all relays."""
        for each in self._running:
            each.kill()
            each.wait()


def measure(options: argparse.Namespace) -> int:
    """Run it and print the figures; returns the exit code."""
    harness = load_harness(HARNESSES[options.broker])().private()
    assert harness is not None
    server = servers.postgresql()
    url = server.fresh_database()
    engine = create_engine(url, pool_size=options.writers + 4)
    txcore.SqlFence(engine).create()
    harness.create_topic(TOPIC)
    backend = harness.open()
    backend.ensure_group(GROUP).result(60)
    table = txcore.Relay(backend, GROUP, create_engine(url)).table
    began_s = time.monotonic()
    writers = [Writer(number, backend, engine, options) for number in range(options.writers)]
    for each in writers:
        each.start()
    relays = Relays(options.relays, harness.url, url)
    try:
        for kill in range(options.kills):
            left = options.count * (kill + 1) // (options.kills + 1)
            wait_until(lambda: _sent(writers, table) >= left, "progress", WAIT_S)  # noqa: B023
            relays.kill(kill)
        for each in writers:
            each.join()
        placed_s = time.monotonic() - began_s
        wait_until(lambda: not table.stats().waiting, "an empty table", WAIT_S)
        sent_s = time.monotonic() - began_s
    finally:
        relays.end()
    code = _judge(harness, writers, options.kills, placed_s, sent_s)
    backend.close().result(30)
    harness.stop()
    engine.dispose()
    server.remove()
    return code


def _sent(writers: list[Writer], table: Any) -> int:
    return sum(len(ids) for each in writers for ids in list(each.ids.values())) - int(table.stats().waiting)


def _judge(harness: Any, writers: list[Writer], kills: int, placed_s: float, sent_s: float) -> int:
    delivered = harness.read_topic(TOPIC)
    found: dict[bytes, list[str]] = {}
    seen: set[str] = set()
    for each in delivered:
        identity = str(each.headers[wire.HEADER_ID])
        if identity not in seen:
            seen.add(identity)
            found.setdefault(each.key or bytes(each.headers["txcore-key"]), []).append(identity)
    placed = {key: ids for writer in writers for key, ids in writer.ids.items()}
    everything = {identity for ids in placed.values() for identity in ids}
    lost, strange = len(everything - seen), len(seen - everything)
    disordered = sum(found.get(key) != ids for key, ids in placed.items())
    print(
        f"{kills} kills, {len(everything):,} messages of {len(placed)} keys placed in {placed_s:.0f} s, all sent after "
        f"{sent_s:.0f} s: lost {lost}, strange ids {strange}, duplicates {len(delivered) - len(seen):,}, "
        f"keys out of order {disordered}; load average {os.getloadavg()[0]:.1f}"
    )
    return 1 if lost or strange or disordered else 0


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay_kills", description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=sorted(HARNESSES), default="nats")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=1, help="messages of one transaction")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--relays", type=int, default=2)
    parser.add_argument("--kills", type=int, default=50)
    return measure(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
