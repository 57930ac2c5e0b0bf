"""The count of parked halves agrees with the operator's list: at any time, and also from the first reading on."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import contextmanager

import pytest
from txcore_conformance.clocks import RunningClock

from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    LocalTransactionState,
    Message,
    Operator,
    TransactionListener,
    TransactionProducer,
    wire,
)
from txcore.ids import TransactionId
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.records import LogKind, ParkCode
from txcore.sidecar.parked_watch import ParkedWatch

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
POLICY = CheckPolicy(immunity_s=5, interval_s=5, check_max=1)


class Listener(TransactionListener):
    """A listener with the answer that the test sets."""

    answer = UNKNOWN

    def execute_local_transaction(self, message, argument):
        return argument

    def check_local_transaction(self, half):
        return self.answer


class World:
    """Two partitions of a group on the broker in memory."""

    def __init__(self, profile, wait_until):
        self.clock, self.listener, self.wait_until = RunningClock(), Listener(), wait_until
        self.broker = MemoryBroker(profile, clock=self.clock)
        self.backend = MemoryBackend(self.broker)
        self.producer = TransactionProducer(
            self.backend, "g", listener=self.listener, clock=self.clock, partition_count=2
        )
        self.operator = Operator(self.backend, "g", clock=self.clock)

    def send(self, answer=UNKNOWN):
        return self.producer.send_message_in_transaction(Message("t", b"1", check_policy=POLICY), answer).transaction_id

    def check(self, answer):
        """Let a new checker judge the halves that are due, with this answer of the listener."""
        self.listener.answer = answer
        checker = Checker(self.backend, "g", listener=self.listener, clock=self.clock, limits=Limits(poll_s=0.001))
        for _ in range(3):
            self.clock.advance(10)
            checker.run_once()
        checker.stop()

    def park(self):
        identity = self.send()
        self.check(UNKNOWN)
        return identity

    @contextmanager
    def watch(self):
        """Run a watch, as a process that has just begun does."""
        watch = ParkedWatch(self.backend, "g", 2, self.clock)
        watch.start()
        yield watch
        watch.close()

    def agrees(self, watch, **expected):
        """Wait until the watch has counted *expected*, which is what the operator's list shows."""
        listed = Counter(each.code for each in self.operator.parked())
        assert expected == dict(listed)
        watch.look_again()
        self.wait_until(lambda: watch.counts == expected, f"{expected}, not {watch.counts}")

    def begins_with(self, **expected):
        """Require that the first count of a new watch is *expected*."""
        with self.watch() as watch:
            self.wait_until(lambda: watch.counts is not None, "the first count")
            self.agrees(watch, **expected)


@pytest.fixture(params=[KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG], ids=lambda profile: profile.name)
def world(request, wait_until):
    return World(request.param, wait_until)


def test_a_watch_counts_each_change_as_the_operators_list_does(world):
    """Parked, resumed, parked again, ended, and dismissed: the count follows, and a new watch begins with the same."""
    with world.watch() as watch:
        world.agrees(watch)
        identity = world.park()
        world.agrees(watch, CHECKS_EXHAUSTED=1)
        world.begins_with(CHECKS_EXHAUSTED=1)
        world.operator.resume(identity, "once")
        world.agrees(watch)
        world.begins_with()
        world.check(UNKNOWN)
        world.agrees(watch, CHECKS_EXHAUSTED=1)
        world.broker.append("g", LogKind.HALF, 0, b"\xc1poison")
        world.park()
        world.agrees(watch, CHECKS_EXHAUSTED=2, POISON=1)
        world.begins_with(CHECKS_EXHAUSTED=2, POISON=1)
        world.operator.resume(identity, "twice")
        world.check(COMMIT)
        (poison,) = [each for each in world.operator.parked() if each.code == ParkCode.POISON]
        world.operator.rollback(poison.transaction_id, "known")
        world.agrees(watch, CHECKS_EXHAUSTED=1)
        world.begins_with(CHECKS_EXHAUSTED=1)


def test_a_watch_counts_halves_whose_other_records_retention_removed(world):
    """Only the parked record is left, and the half is still parked."""
    world.park()
    for partition in (0, 1):
        for kind in (LogKind.HALF, LogKind.OP):
            world.broker.trim("g", kind, partition, 1 << 40)
    world.begins_with(CHECKS_EXHAUSTED=1)


def test_a_watch_leaves_out_an_entry_whose_half_ended_without_a_closed_record(world):
    """An owner that dies between a parked record and its DISCARD leaves such an entry; the next one ends the half."""
    identity = world.park()
    world.operator.resume(identity, "the entry's record is the model of the next one")
    world.check(COMMIT)
    left = world.send()
    partition = world.operator.show(left).partition
    records = [record for each in (0, 1) for record in world.broker.log("g", LogKind.PARKED, each)]
    record = wire.decode_parked(records[0].body)
    record.transaction_id, record.generation = left, 0
    world.broker.append("g", LogKind.PARKED, partition, wire.encode_parked(record))
    world.begins_with()
    world.check(COMMIT)
    world.send(COMMIT)
    world.check(COMMIT)
    world.begins_with()


def test_a_watch_outlives_an_outage(world):
    """While the broker is down the last count stays; after it is back, new ones are counted."""
    with world.watch() as watch:
        world.park()
        world.agrees(watch, CHECKS_EXHAUSTED=1)
        world.broker.down = True
        watch.look_again()
        assert {"CHECKS_EXHAUSTED": 1} == watch.counts
        world.broker.down = False
        world.park()
        world.agrees(watch, CHECKS_EXHAUSTED=2)


def test_a_restarted_process_counts_what_is_parked(shop, checkers, callback_server, wait_until):
    """The gauge and the Groups page have the number that the Parked page has, also after a restart; until it is 0."""
    callback_server.answer = lambda _: (200, {}, b'{"state": "UNKNOWN"}')
    (shop.folder / "txcore.toml").write_text(
        f'[backends.main]\nurl = "{shop.broker_url}"\n[groups.orders]\npartitions = 2\nlimits.idle_poll_s = 0.05\n'
        f'policy.check_max = 1\npolicy.interval_s = 0.2\ncallback.url = "{callback_server.start().url}"\n'
    )
    parked = shop.orphans(3, fenced=False)

    def counts(running):
        """Return the counts of the gauge, the list of the API, the group in the API, and the Groups page."""
        wait_until(lambda: "txcore_parked_halves{" in running.get("/metrics")[1], "the first count")
        return {
            int(running.metric("txcore_parked_halves", code="CHECKS_EXHAUSTED")),
            json.loads(running.get("/api/v1/groups/orders/parked")[1])["count"],
            sum(json.loads(running.get("/api/v1/groups/orders")[1])["parked_now"].values()),
            *map(int, re.findall(r"<dt>parked</dt><dd[^>]*>(\d+)</dd>", running.get("/console")[1])),
        }

    first = checkers.ready()
    wait_until(lambda: counts(first) == {3}, "the parked halves")
    assert 0 == first.stop()
    second = checkers.ready()
    wait_until(lambda: counts(second) == {3}, "the parked halves, after a restart")
    assert (0, 0) == (second.metric("txcore_parked_total"), second.metric("txcore_parked_halves", code="POISON"))
    callback_server.answer = lambda _: (200, {}, b'{"state": "ROLLBACK"}')
    operator = Operator(shop.backend, "orders")
    for identity in set.union(*parked.values()):
        operator.resume(TransactionId.parse(identity), "the service knows again")
    wait_until(lambda: counts(second) == {0}, "the end of all")
    assert 0 == second.stop()
