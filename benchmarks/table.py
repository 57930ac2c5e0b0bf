"""`python -m benchmarks.table`: what the message table costs and how fast its relay is, on a database of its own.

The broker is in memory, so that the database's side is what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

from sqlalchemy import create_engine, text
from txcore_conformance import servers

import txcore
from txcore.memory import MemoryBackend, MemoryBroker

TOPIC = "orders"
STARTERS = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}


def place(producer: txcore.TransactionProducer, engine: Any, count: int, threads: int) -> float:
    """Place orders from several threads; returns how many a second."""

    def work(number: int) -> None:
        for each in range(count // threads):
            with producer.transaction(engine) as tx:
                tx.connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": tx.transaction_id.hex()})
                tx.publish(txcore.Message(TOPIC, b"x" * 200, b"%d" % ((number * 31 + each) % 100)))

    began_s = time.monotonic()
    working = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return count / (time.monotonic() - began_s)


def visible_ms(producer: txcore.TransactionProducer, engine: Any, broker: MemoryBroker, count: int) -> list[float]:
    """Return how long single messages took from their COMMIT to their topic, with pauses between them."""
    found = []
    for _ in range(count):
        before = len(broker.topics[TOPIC])
        with producer.transaction(engine) as tx:
            tx.publish(txcore.Message(TOPIC, b"x", b"key"))
        committed_s = time.monotonic()
        while len(broker.topics[TOPIC]) == before:
            time.sleep(0.0005)
        found.append((time.monotonic() - committed_s) * 1e3)
        time.sleep(0.4)
    return found


def measure(kind: str, count: int, threads: int) -> None:
    """Run it and print the figures."""
    server = STARTERS[kind]() if kind in STARTERS else None
    url = server.fresh_database() if server else f"sqlite:///{tempfile.mkdtemp()}/business.db"
    engine, broker = create_engine(url, pool_size=threads + 2), MemoryBroker()
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id varchar(64) PRIMARY KEY)"))
    for mode in ("half", "table"):
        producer = txcore.TransactionProducer(MemoryBackend(broker), "orders", fence=fence, mode=mode)
        print(f"{kind}, mode {mode}: {place(producer, engine, count, threads):,.0f} orders/s from {threads} threads")
    relay = txcore.Relay(MemoryBackend(broker), "orders", create_engine(url))
    began_s = time.monotonic()
    sent = relay.run_once().sent
    print(f"{kind}, relay: {sent / (time.monotonic() - began_s):,.0f} messages/s of {sent:,}")
    relay.start()
    times = visible_ms(producer, engine, broker, 30)
    relay.stop()
    print(f"{kind}, commit to visible, idle: p50 {statistics.median(times):.1f} ms, most {max(times):.1f} ms")
    engine.dispose()
    if server:
        server.remove()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=[*STARTERS, "sqlite"], default="postgresql")
    parser.add_argument("--count", type=int, default=4_000)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    measure(options.database, options.count, options.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
