"""`python -m benchmarks.table`: the cost of the message table and the rate of its relay, on a new database.

The broker is in memory, so that only the database's side is measured. With `--million` the database itself makes rows
for a million messages (as a producer would leave them), which are measured, relayed, and measured again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

from sqlalchemy import create_engine, text
from txcore_conformance import servers
from txcore_conformance.kit import wait_until

import txcore
from benchmarks import machine
from txcore import wire
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.message_table import SLOT_COUNT, lane_of
from txcore.records import TargetMessage

TOPIC = "orders"
STARTERS = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}


def place(producer: txcore.TransactionProducer, engine: Any, count: int, threads: int) -> float:
    """Place orders from several threads; returns the rate per second."""

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


def visible_ms(
    producer: txcore.TransactionProducer, engine: Any, broker: MemoryBroker, rate: float, count: int
) -> list[float]:
    """Return the times of messages from their COMMIT to their topic, placed at *rate* by 4 threads."""
    committed, arrived, threads = {}, {}, 4
    topic, is_over = broker.topics[TOPIC], threading.Event()

    def watch() -> None:
        at = len(topic)
        while not is_over.is_set():
            for each in topic[at:]:
                arrived[each.body] = time.monotonic()
                at += 1
            time.sleep(0.0005)

    def work(number: int) -> None:
        due_s = time.monotonic()
        for each in range(count // threads):
            due_s += threads / rate
            time.sleep(max(due_s - time.monotonic(), 0))
            with producer.transaction(engine) as tx:
                tx.publish(txcore.Message(TOPIC, tx.transaction_id, b"%d" % ((number * 31 + each) % 100)))
            committed[tx.transaction_id] = time.monotonic()

    working = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    watching = threading.Thread(target=watch)
    for thread in (watching, *working):
        thread.start()
    for thread in working:
        thread.join()
    wait_until(lambda: len(arrived) >= len(committed), "all messages", 60)
    is_over.set()
    watching.join()
    return [max(arrived[identity] - at, 0) * 1e3 for identity, at in committed.items()]


class Written:
    """The WAL, in bytes, that a PostgreSQL server has written since this object was made."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._from = self._now()

    def of_each(self, count: int) -> str:
        """Return the bytes per order or message, of *count*, in words; "" for other databases."""
        return f", {(self._now() - self._from) / count:,.0f} B of WAL each" if self._from else ""

    def _now(self) -> int:
        if self._engine.dialect.name != "postgresql":
            return 0
        with self._engine.connect() as connection:
            return int(connection.execute(text("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")).scalar_one())


def measure(kind: str, count: int, threads: int, rate: float) -> None:
    """Run the benchmark and print the figures."""
    server = STARTERS[kind]() if kind in STARTERS else None
    url = server.fresh_database() if server else f"sqlite:///{tempfile.mkdtemp()}/business.db"
    engine, broker = create_engine(url, pool_size=threads + 2), MemoryBroker()
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id varchar(64) PRIMARY KEY)"))
    for mode in ("half", "table"):
        producer = txcore.TransactionProducer(MemoryBackend(broker), "orders", fence=fence, mode=mode)
        written = Written(engine)
        a_second = place(producer, engine, count, threads)
        print(f"{kind}, mode {mode}: {a_second:,.0f} orders/s from {threads} threads{written.of_each(count)}")
    relay = txcore.Relay(MemoryBackend(broker), "orders", create_engine(url))
    written, began_s = Written(engine), time.monotonic()
    sent = relay.run_once().sent
    a_second = sent / (time.monotonic() - began_s)
    print(f"{kind}, relay: {a_second:,.0f} messages/s of {sent:,}{written.of_each(sent)}")
    relay.start()
    for name, at_rate, number in (("idle", 2.0, 40), ("loaded", rate, round(rate * 20))):
        times = visible_ms(producer, engine, broker, at_rate, number)
        cuts = statistics.quantiles(times, n=100)
        print(
            f"{kind}, commit to visible, {name} ({at_rate:.0f} orders/s): p50 {cuts[49]:.1f} ms, "
            f"p99 {cuts[98]:.1f} ms, most {max(times):.1f} ms of {len(times):,}; load average {os.getloadavg()[0]:.1f}"
        )
    relay.stop()
    engine.dispose()
    if server:
        server.remove()


def measure_million(count: int) -> None:
    """Fill PostgreSQL's table, relay it, and print its size before and after."""
    server = servers.postgresql()
    url = server.fresh_database()
    engine, broker = create_engine(url), MemoryBroker()
    txcore.SqlFence(engine).create()
    filled(engine, count)

    def size() -> str:
        with engine.connect() as connection:
            sizes = [
                int(connection.execute(text(f"SELECT pg_total_relation_size('{name}')")).scalar_one())
                for name in ("txcore_tx_msg", "txcore_tx")
            ]
        return f"message table {sizes[0] / 1e6:,.1f} MB, fence table {sizes[1] / 1e6:,.1f} MB"

    print(f"{count:,} messages wait: {size()}")
    relay = txcore.Relay(MemoryBackend(broker), "orders", create_engine(url))
    began_s, written = time.monotonic(), Written(engine)
    sent = relay.run_once().sent
    took_s = time.monotonic() - began_s
    print(f"relayed {sent:,} in {took_s:.0f} s, {sent / took_s:,.0f} messages/s{written.of_each(sent)}: {size()}")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM txcore_tx_msg"))
    print(f"after VACUUM: {size()}")
    engine.dispose()
    server.remove()


def filled(engine: Any, count: int) -> None:
    """Let the database write the rows that *count* transactions with one message of 200 B would leave."""
    kinds = []
    for number in range(1_000):
        key = b"%d" % number
        lane = lane_of("orders", key, b"")
        body = wire.encode_message(TargetMessage(TOPIC, key, b"x" * 200, {}))
        kinds.append({"number": number, "lane": lane, "slot": lane % SLOT_COUNT, "body": body})
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE kinds (number integer PRIMARY KEY, lane bigint, slot smallint, body bytea)")
        )
        connection.execute(text("INSERT INTO kinds VALUES (:number, :lane, :slot, :body)"), kinds)
        identity = "lpad(to_hex(1780000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0')"
        made = f"SELECT n, CAST({identity} AS uuid) AS id FROM generate_series(1, {count}) n"
        connection.execute(
            text(
                f"INSERT INTO txcore_tx (transaction_id, state, producer_group) SELECT id, 3, 'orders' FROM ({made}) m"
            )
        )
        connection.execute(
            text(
                "INSERT INTO txcore_tx_msg (transaction_id, message_index, producer_group, lane, slot, body) "
                f"SELECT id, 0, 'orders', lane, slot, body FROM ({made}) m JOIN kinds ON number = n % 1000 ORDER BY n"
            )
        )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=[*STARTERS, "sqlite"], default="postgresql")
    parser.add_argument("--count", type=int, default=4_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rate", type=float, default=200.0, help="orders/s while the time to visible is measured")
    parser.add_argument(
        "--million", type=int, nargs="?", const=1_000_000, default=0, help="PostgreSQL: the table's size"
    )
    options = parser.parse_args()
    machine.warn_if_loaded()
    if options.million:
        measure_million(options.million)
    else:
        measure(options.database, options.count, options.threads, options.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
