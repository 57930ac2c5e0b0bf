"""`python -m benchmarks.outage`: orders in mode auto while their broker is killed; counts failed, late and lost ones.

Prints the figures and the oracle's violations; the exit code is 1 when an order failed or the oracle found a violation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from txcore_conformance import servers
from txcore_conformance.kit import Kit, wait_until
from txcore_conformance.pytest_plugin import load_harness

import txcore
from txcore.audit.verdicts import PASS, WARNINGS

HARNESSES = {
    "kafka": "txcore_kafka.testing:KafkaHarness",
    "nats": "txcore_nats.testing:NatsHarness",
    "rabbitmq": "txcore_rabbitmq.testing:RabbitmqHarness",
}
EXCHANGE, TAP = "outage", "outage.tap"
CAUSES = 1_000
"""Number of allowed causes of duplicates: a killed broker makes some, and this run judges the other invariants."""


@dataclass
class Placed:
    """One placed order: its time, the duration of its call, and the end of its message."""

    began_s: float
    took_s: float
    transaction_id: bytes
    state: str


@dataclass
class Orders:
    """Threads that place orders at a rate."""

    producer: txcore.TransactionProducer
    engine: Any
    topic: str
    rate: float
    threads: int = 8
    placed: list[Placed] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self, seconds: float) -> list[threading.Thread]:
        """Start placing orders for this number of seconds."""
        end_s = time.monotonic() + seconds
        started = [threading.Thread(target=self._work, args=(number, end_s)) for number in range(self.threads)]
        for each in started:
            each.start()
        return started

    def _work(self, number: int, end_s: float) -> None:
        due_s = time.monotonic()
        while time.monotonic() < end_s:
            due_s += self.threads / self.rate
            time.sleep(max(due_s - time.monotonic(), 0))
            began_s = time.monotonic()
            try:
                with self.producer.transaction(self.engine) as tx:
                    sql = text("INSERT INTO orders VALUES (:number)")
                    tx.connection.execute(sql, {"number": tx.transaction_id.hex()})
                    tx.publish(txcore.Message(self.topic, tx.transaction_id, b"%d" % number))
            except Exception as error:  # noqa: BLE001 - after any exception the order was not placed
                self.failed.append(repr(error))
                continue
            assert tx.result is not None
            self.placed.append(Placed(began_s, time.monotonic() - began_s, tx.transaction_id, tx.result.state.name))


def measure(broker: str, rate: float, seconds: float, down_s: float, *, audit: bool) -> int:
    """Run it and print the figures; returns the exit code."""
    harness = load_harness(HARNESSES[broker])().private()
    assert harness is not None
    kit, server = Kit(harness), servers.postgresql()
    url = server.fresh_database()
    engine = create_engine(url, pool_size=20, max_overflow=20)
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number varchar(64) PRIMARY KEY)"))
    policy = txcore.CheckPolicy(immunity_s=kit.backend.capabilities.release_time_max_s + 1)
    producer = txcore.TransactionProducer(kit.backend, kit.group, fence=fence, mode="auto", policy=policy)
    checker = txcore.Checker(kit.open(), kit.group, fence=fence)
    relay = txcore.Relay(kit.open(), kit.group, create_engine(url))
    orders = Orders(producer, engine, _topic(kit, broker), rate)
    checker.start()
    relay.start()
    try:
        threads = orders.run(seconds)
        time.sleep(max((seconds - down_s) / 3, 1))
        from_s = time.monotonic()
        harness.broker.kill()  # type: ignore[attr-defined]
        time.sleep(down_s)
        harness.broker.start()  # type: ignore[attr-defined]
        to_s = time.monotonic()
        wait_until(lambda: not relay.waiting().waiting, "an empty table", 300)
        drained_s = time.monotonic() - to_s
        for each in threads:
            each.join()
        wait_until(lambda: not relay.waiting().waiting, "an empty table", 300)
        wait_until(lambda: not sum(each.pending for each in checker.stats().partitions), "no open half", 300)
    finally:
        relay.stop()
        checker.stop()
    audited = _audit(kit, url, broker) if audit else 0
    return _judge(kit, orders, (from_s, to_s), drained_s) or audited


def _topic(kit: Kit, broker: str) -> str:
    """Create the topic; on RabbitMQ with a stream beside its queue, because the audit does not read queues."""
    if broker != "rabbitmq":
        return kit.topic()
    import pika  # type: ignore[import-untyped] # noqa: PLC0415 - an extra

    topic = f"{EXCHANGE}/created"
    kit.harness.create_topic(topic)
    kit.history.topics.add(topic)
    url = kit.harness.url.replace("rabbitmq", "amqp", 1).partition("?")[0]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(TAP, durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(TAP, EXCHANGE, "created")
    return topic


def _audit(kit: Kit, database: str, broker: str) -> int:
    """Audit the run and print the result; returns 0 when the audit passes or warns."""
    with tempfile.TemporaryDirectory(prefix="txcore-outage-") as folder:
        config = Path(folder) / "txcore.toml"
        config.write_text(
            f'[audit]\nstore = "{folder}/audit"\nmaster = "local[1]"\n[backends.main]\nurl = "{kit.harness.url}"\n'
            f'[databases.main]\nurl = "{database}"\n[groups.{kit.group}]\ndatabase = "main"\n'
            + (f'[audit.backends.main]\ntaps = ["{EXCHANGE}/created={TAP}"]\n' if broker == "rabbitmq" else ""),
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "txcore_spark", "--config", str(config), "--mode", "once"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(textwrap.indent(ended.stdout, "  audit: "), end="")
    return 0 if ended.returncode in {PASS, WARNINGS} else 1


def _judge(kit: Kit, orders: Orders, outage: tuple[float, float], drained_s: float) -> int:
    during = [each.took_s for each in orders.placed if outage[0] <= each.began_s <= outage[1]]
    calm = [each.took_s for each in orders.placed if not outage[0] <= each.began_s <= outage[1]]
    states = Counter(each.state for each in orders.placed)
    load = f"load average {os.getloadavg()[0]:.1f}"
    print(f"orders {len(orders.placed):,}, failed {len(orders.failed)} {orders.failed[:2]}, by {dict(states)}; {load}")
    for name, times in (("during the outage", during), ("otherwise", calm)):
        cuts = statistics.quantiles(times, n=100)
        print(f"  {name}: {len(times):,} calls, p50 {cuts[49] * 1e3:.0f} ms, p99 {cuts[98] * 1e3:.0f} ms")
    print(f"  the table was empty {drained_s:.1f} s after the broker was back, while orders continued")
    kit.history.causes_default, kit.history.at_rest = CAUSES, True
    for each in orders.placed:
        kit.history.committed(each.transaction_id)
        if each.state == "VIA_TABLE":
            kit.history.via_table.add(each.transaction_id)
    bodies = Counter(each.body for each in kit.delivered(orders.topic))
    lost = sum(each.transaction_id not in bodies for each in orders.placed)
    print(
        f"  delivered {sum(bodies.values()):,}, of them {sum(bodies.values()) - len(bodies):,} duplicates; lost {lost}"
    )
    violations = kit.judge()
    print(f"  violations {len(violations)} {violations[:3]}")
    kit.close()
    return 1 if orders.failed or lost or violations else 0


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=sorted(HARNESSES), default="nats")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--down", type=float, default=60.0)
    parser.add_argument("--audit", action="store_true", help="let txcore audit judge the run as well")
    options = parser.parse_args()
    return measure(options.broker, options.rate, options.seconds, options.down, audit=options.audit)


if __name__ == "__main__":
    sys.exit(main())
