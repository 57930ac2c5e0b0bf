"""The rate at which a checker releases halves with order keys: with none, with many, and with one hot key.

    python -m benchmarks.ordered --broker nats

Halves with a stored decision wait, and one checker in this process releases them all. The kinds come in turns. Rate and
cost count from the checker's start, so they contain its claims and its reading.
"""

from __future__ import annotations

import argparse
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

from txcore_conformance.harness import Harness
from txcore_conformance.kit import COMMIT, Answers, wait_until
from txcore_conformance.pytest_plugin import load_harness

import txcore

PARTITIONS: Final = 8
BODY: Final = bytes(300)
WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Messages with this number of order keys; 0 for messages without."""

    name: str
    keys: int
    count: int
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def order_key(self, number: int) -> bytes | None:
        """Return the order key of a message."""
        return b"%d" % (number % self.keys) if self.keys else None


def measure(harness: Harness, kind: Kind) -> None:
    """Store the halves of a new group, release them, and add a rate and a cost to *kind*."""
    backend, group = harness.open(), f"ordered-{secrets.token_hex(5)}"
    topic = harness.topic(group)
    harness.create_topic(topic)
    backend.ensure_group(group, PARTITIONS).result(harness.timeout_s)
    policy = txcore.CheckPolicy(immunity_s=60.0)
    producer: Any = txcore.TransactionProducer(backend, group, listener=Answers(), release="owner", policy=policy)
    messages = (txcore.Message(topic, BODY, order_key=kind.order_key(number)) for number in range(kind.count))
    states = {result.end and result.end.state for result in producer.send_many((each, COMMIT) for each in messages)}
    if states != {txcore.EndState.ACCEPTED}:
        raise RuntimeError(f"not all halves were stored with their decision: {states}")
    checker = txcore.Checker(backend, group, listener=Answers())

    def released() -> int:
        return checker.counts.get("commit", 0)

    began_s, cpu_s = time.monotonic(), time.process_time()
    checker.start()
    wait_until(lambda: released() >= kind.count, "all releases", WAIT_S, pause_s=0.005)
    kind.rates.append(kind.count / (time.monotonic() - began_s))
    kind.cpu_us.append((time.process_time() - cpu_s) / kind.count * 1e6)
    checker.stop()
    producer.close()
    backend.close().result(harness.timeout_s)


def main() -> None:
    """Measure, and print minimum, median and maximum of each kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ordered", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--broker", choices=("kafka", "rabbitmq", "nats", "sqlite"), required=True)
    parser.add_argument("--count", type=int, default=10_000, help="messages of a kind; a fifth for one hot key")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    count: int = chosen.count
    kinds = [
        Kind("no order key", 0, count),
        Kind("1,000 order keys", 1_000, count),
        Kind("100 order keys", 100, count),
        Kind("one order key", 1, max(count // 5, 10)),
    ]
    harness = load_harness(f"txcore_{chosen.broker}.testing:{chosen.broker.capitalize()}Harness")()
    harness.start()
    try:
        for _ in range(chosen.rounds):
            for kind in kinds:
                measure(harness, kind)
    finally:
        harness.stop()
    print(f"{chosen.broker}, {chosen.rounds} rounds in turns: min / median / max")
    for kind in kinds:
        rates, cpu_us = (sorted(values) for values in (kind.rates, kind.cpu_us))
        middle = len(rates) // 2
        print(
            f"{kind.name:18}{rates[0]:7,.0f} / {rates[middle]:,.0f} / {rates[-1]:,.0f} per second,"
            f" CPU {cpu_us[0]:,.0f} / {cpu_us[middle]:,.0f} / {cpu_us[-1]:,.0f} us"
        )


if __name__ == "__main__":
    main()
