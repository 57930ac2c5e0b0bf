"""Relays that are killed again and again send each message at least once, and keep the order of each key."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest
from txcore_conformance.kit import wait_until
from txcore_sqlite.consumer import read_topic

import txcore
from txcore import Message, TransactionProducer, wire

GROUP = "orders"
TOPIC = "orders.created"
KEYS = 10
RELAY = """
import sys, txcore, threading
from sqlalchemy import create_engine
broker, database, table, rows = sys.argv[1:]
limits = txcore.RelayLimits(row_max=int(rows), poll_s=0.002, idle_poll_s=0.02)
relay = txcore.Relay(txcore.connect(broker), "orders", create_engine(database), table=table, limits=limits)
relay.start()
print("here", flush=True)
threading.Event().wait()
"""


class Relays:
    """Processes that relay one table; a process that was killed is replaced."""

    def __init__(self, broker_url, world, count, rows):
        self._command = [sys.executable, "-c", RELAY, broker_url, world.url, world.fence_table, str(rows)]
        self._running = [self._start() for _ in range(count)]
        self.kills = 0

    def _start(self):
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "here\n"
        return process

    def kill_one(self, chance):
        place = chance.randrange(len(self._running))
        process = self._running[place]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        self.kills += 1
        self._running[place] = self._start()

    def end(self):
        for process in self._running:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.parametrize(("kills", "burst"), [(6, 40)])
def test_relays_killed_anywhere_send_everything_in_order(world, tmp_path, kills, burst):
    """Duplicates have the same id, and the first copies of each key are in the order of their transactions."""
    backend = txcore.connect(f"sqlite:///{tmp_path}/broker.db")
    backend.ensure_group(GROUP).result(10)
    producer = TransactionProducer(backend, GROUP, fence=world.fence, mode="table")
    sent: dict[bytes, list[str]] = {}
    relays, chance = Relays(f"sqlite:///{tmp_path}/broker.db", world, 2, rows=5), random.Random(8)

    def delivered():
        return read_topic(tmp_path / "broker.db", TOPIC)

    try:
        for _ in range(kills):
            before = len(delivered())
            for number in range(burst):
                key = b"%d" % (number % KEYS)
                with producer.transaction(world.engine) as tx:
                    tx.publish(Message(TOPIC, b"body", key))
                sent.setdefault(key, []).append(wire.target_id(tx.transaction_id, 0))
            wait_until(lambda before=before: len(delivered()) > before, "progress", 20)
            relays.kill_one(chance)
        everything = {name for names in sent.values() for name in names}
        wait_until(lambda: everything <= {each.headers[wire.HEADER_ID] for each in delivered()}, "all messages", 40)
        first: dict[bytes, list[str]] = {}
        for each in delivered():
            names = first.setdefault(each.key, [])
            if each.headers[wire.HEADER_ID] not in names:
                names.append(each.headers[wire.HEADER_ID])
        assert first == sent
    finally:
        relays.end()
        backend.close().result(10)
