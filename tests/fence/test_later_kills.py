"""Programs that are killed at each step of turning and cancelling delayed messages leave all of it or nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from sqlalchemy import text
from txcore_conformance.kit import wait_until

from txcore import Message, Relay, RelayLimits, TransactionProducer
from txcore.memory import MemoryBackend, MemoryBroker

GROUP = "orders"
TOPIC = "orders.due"
AFTER_COMMIT = 0
"""The step that is killed after its transaction; other numbers count the statements before the kill."""
CHILD = """
import os, signal, sys
from sqlalchemy import create_engine
from txcore.outbox.sql_table import SqlMessageTable
from txcore.sqlfence import later
from txcore.sqlfence.border import Border

what, url, table, identity, step = sys.argv[1:]
left = int(step)

class Killing:
    def __init__(self, border):
        self._border = border

    def __getattr__(self, name):
        found = getattr(self._border, name)
        return self._dying(found) if name in ("rows", "change") else found

    def _dying(self, run):
        def call(*args):
            global left
            result = run(*args)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call

turn, cancel = later.turn, later.cancel
later.turn = lambda dialect, border, *rest: turn(dialect, Killing(border), *rest)
later.cancel = lambda dialect, border, *rest: cancel(dialect, Killing(border), *rest)
messages = SqlMessageTable(create_engine(url), "orders", "child", table=table)
messages.join()
if what == "turn":
    assert messages.turn_due("orders", 10).count == 2
else:
    assert messages.cancel(bytes.fromhex(identity), "a test", "child").value == "CANCELLED"
if left > 0:
    print("too few statements")
    sys.exit(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
STEPS = {"turn": (1, 2, 3, AFTER_COMMIT), "cancel": (1, 2, 3, AFTER_COMMIT)}
LOCKS = (4, 5)
"""More steps of a cancel where each row is locked by a statement: not on SQLite."""


@pytest.mark.parametrize("what", STEPS)
def test_program_killed_at_any_step_turns_or_cancels_all_or_nothing(world, what):
    """Each message is delivered once, in the end, unless its cancel was committed before the kill."""
    broker = MemoryBroker()
    backend = MemoryBackend(broker)
    producer = TransactionProducer(backend, GROUP, fence=world.fence)
    relay = Relay(
        backend, GROUP, world.engine, table=world.fence_table, limits=RelayLimits(poll_s=0.001, idle_poll_s=0.01)
    )
    expected = []
    for step in (*STEPS[what], *(LOCKS if what == "cancel" and world.kind != "sqlite" else ())):
        with producer.transaction(world.engine) as tx:
            for _ in range(2):
                tx.publish(Message(TOPIC, b"%d" % step, delay_s=3600))
        if what == "turn":
            with world.engine.begin() as connection:
                connection.execute(text(f"UPDATE {world.fence_table}_later SET due = due - 3700000"))
        command = [sys.executable, "-c", CHILD, what, world.url, world.fence_table, tx.transaction_id.hex(), str(step)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, ""), (step, ended.stdout)
        is_cancelled = what == "cancel" and step == AFTER_COMMIT
        expected += [] if is_cancelled else [b"%d" % step] * 2
        with world.engine.begin() as connection:
            connection.execute(text(f"UPDATE {world.fence_table}_later SET due = 1 WHERE state = 0"))

        def has_come():
            relay.run_once()
            return len(broker.topics.get(TOPIC, [])) >= len(expected)  # noqa: B023 - called here

        wait_until(has_come, f"the messages after step {step}")
    relay.run_once()
    assert expected == [each.body for each in broker.topics[TOPIC]]
