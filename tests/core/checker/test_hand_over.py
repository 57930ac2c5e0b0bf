"""The release of an ordered half hands over to the next one of its order key, without a tick between them (R18)."""

from __future__ import annotations

from itertools import count
from random import Random
from types import SimpleNamespace

import pytest
from txcore_conformance.owners import Owners, name_of
from txcore_conformance.slow_owners import SlowFaults, SlowOwners

from txcore import LocalTransactionState as State
from txcore.checker.decide import NEVER_MS, Pending, terms_of
from txcore.checker.finish import FOLLOW_S, may_follow
from txcore.checker.limits import Limits, OrderOnPark
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Fate, Faults
from txcore.memory.profile import TRANSACTION_LIKE
from txcore.records import LogKind, OpKind, ParkCode
from txcore.wire import decode_ops

PROFILES = [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG]
by_profile = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
KEY = b"k"


class NoAnswer(Faults):
    """The faults of a broker that answers no release of a transaction, although it stores it."""

    unanswered: bytes = b""

    def fate(self, what, transaction_ids):
        return Fate.ACK_LOST if what == "target" and self.unanswered in transaction_ids else Fate.DONE


def committed(owners, *numbers):
    """Append halves of one order key that their owner releases, each with its COMMITTED."""
    for number in numbers:
        owners.owned(number, order_key=KEY)
        owners.op(OpKind.COMMITTED, number)


def marks_and_ends(owners):
    """Return the owner's ticks and releases, in log order: None for a TICK, else the number of the transaction."""
    ops = [op for record in owners.log(LogKind.OP) for op in decode_ops(record.body)]
    own = [op for op in ops if op.kind in {OpKind.TICK, OpKind.RELEASED}]
    return [None if op.kind == OpKind.TICK else int.from_bytes(op.transaction_id, "big") for op in own]


@by_profile
def test_the_halves_of_a_key_are_released_after_one_tick(profile):
    """No mark is written and read back between two of them."""
    owners = Owners(profile)
    committed(owners, *range(1, 6))
    owners.start()
    owners.run(2)
    assert [b"b1", b"b2", b"b3", b"b4", b"b5"] == owners.delivered()
    released = marks_and_ends(owners)
    assert [1, 2, 3, 4, 5] == released[released.index(1) : released.index(5) + 1]


def test_halves_whose_records_are_not_in_memory_are_read_together():
    """Each hand-over would be a request of its own to the broker; a sweep reads the records of many keys at once."""
    owners = Owners(limits=Limits(checkpoint_interval_s=0.0, body_bytes_max=1))
    committed(owners, 1, 2)
    owners.start()
    owners.run(2)
    released = marks_and_ends(owners)
    assert ([b"b1", b"b2"], [1, None, 2]) == (owners.delivered(), released[released.index(1) :][:3])


def test_a_draining_owner_begins_no_further_release():
    """It would else not end before the last half of the key."""
    owners = Owners()
    committed(owners, *range(1, 6))
    owner = owners.start()
    release = owners.backend.release

    def released(batch, claim):
        owner.tenure.is_draining = True
        release(batch, claim)

    owners.backend.release = released
    owners.run(60)
    assert ([b"b1"], True) == (owners.delivered(), owner.has_ended)


def test_a_half_that_was_tried_before_is_released_again_after_a_tick():
    """A release without an answer may still be under way; a resumed earlier half of the key does not change that."""
    faults = NoAnswer()
    limits = Limits(checkpoint_interval_s=0.0, order_on_park=OrderOnPark.SKIP, retry_s=30.0)
    owners = Owners(faults=faults, limits=limits, check_max=1)
    owners.owned(1, order_key=KEY, check_max=1)
    owners.start()
    assert owners.run(30, lambda: [(1, ParkCode.CHECKS_EXHAUSTED)] == owners.parked())
    faults.unanswered = name_of(2)
    committed(owners, 2)
    assert owners.run(10, lambda: [b"b2"] == owners.delivered())
    owners.run(1)
    faults.unanswered = b""
    owners.operator.resume(name_of(1), "the service is back")
    owners.op(OpKind.COMMITTED, 1, 1)
    assert owners.run(20, lambda: "RELEASED" in owners.kinds(2))
    released = marks_and_ends(owners)
    between = released[released.index(1) : released.index(2)]
    assert None in between


class Shuffled:
    """Random times of a broker, of producers and of a listener, drawn from a seed."""

    def __init__(self, seed, profile):
        rng = Random(seed)
        kinds = {"mark": rng.uniform(0.001, 0.012), "target": rng.uniform(0.001, 0.04), "op": rng.uniform(0.001, 0.02)}
        faults = SlowFaults(rng.uniform(0.001, 0.01), kinds)
        limits = Limits(poll_s=rng.choice([0.001, 0.005]), batch_count_max=rng.choice([2, 4, 500]))
        options = {"faults": faults, "limits": limits, "deduplicates_targets_s": 0.0}
        self.owners = SlowOwners(profile, listener=lambda _: State.COMMIT, **options)
        self.owners.start()
        self.owners.run(0.5)
        self.keys = [rng.choice([b"a", b"b"]) for _ in range(6)]
        for number, key in enumerate(self.keys):
            self.owners.owned(number, order_key=key, immunity_ms=rng.randrange(1, 120))
            self._later(rng, 0.8, OpKind.COMMITTED, number)
            self._later(rng, 0.5, OpKind.NUDGE, number)

    def _later(self, rng, chance, kind, number):
        if rng.random() < chance:
            self.owners.later(rng.uniform(0.0, 0.15), lambda: self.owners.op(kind, number))

    def published(self):
        """Return the bodies of each key in the order of their publication."""
        self.owners.run(60)
        return [[body for body in self.owners.delivered() if self.keys[int(body[1:])] == key] for key in (b"a", b"b")]

    def expected(self):
        """Return the bodies of each key in the order of the half log."""
        return [[b"b%d" % number for number, key in enumerate(self.keys) if key == each] for each in (b"a", b"b")]


@pytest.mark.parametrize("profile", [*PROFILES, TRANSACTION_LIKE], ids=lambda profile: profile.name)
def test_whatever_the_times_each_half_is_published_once_and_in_order(profile):
    """One owner, no failure: rounds, releases, hand-overs and late ops of producers come in any order."""
    for seed in range(150):
        shuffled = Shuffled(seed, profile)
        assert (seed, shuffled.expected()) == (seed, shuffled.published())


def test_a_half_of_a_round_does_not_follow():
    """A NUDGE makes a waiting half due: its round's tick is under way while the release before it settles."""
    for wait_ms in range(20, 35):
        faults = SlowFaults(0.006, {"mark": 0.004, "op": 0.02})
        owners = SlowOwners(TRANSACTION_LIKE, faults=faults, limits=Limits(poll_s=0.001))
        owners.start()
        owners.run(0.5)
        committed(owners, 1, 2)
        owners.run(0.1 + wait_ms / 1000)
        owners.op(OpKind.NUDGE, 2)
        owners.run(20)
        assert (wait_ms, [b"b1", b"b2"]) == (wait_ms, owners.delivered())


def test_hot_keys_leave_room_for_other_halves():
    """A half without an order key is released beside them, and an undecided one is checked."""
    owners = SlowOwners(
        NATS_LIKE,
        faults=SlowFaults(0.0, {"target": 0.004, "mark": 0.002}),
        limits=Limits(batch_count_max=20),
        listener=lambda _: State.COMMIT,
    )
    numbers = count(1000)

    def feed():
        for key in range(12):
            number = next(numbers)
            owners.owned(number, order_key=b"%d" % key)
            owners.op(OpKind.COMMITTED, number)

    for _ in range(10):
        feed()
    owners.start()
    assert owners.run(10, lambda: len(owners.delivered()) >= 12)
    owners.owned(1)
    owners.op(OpKind.COMMITTED, 1)
    owners.owned(2)
    for _ in range(100):
        feed()
        owners.run(0.002)
    assert {b"b1", b"b2"} <= set(owners.delivered())


def test_a_replaced_owner_whose_reader_is_silent_hands_over_for_a_short_time():
    """Its writes arrive, but it reads no foreign CLAIM; without a mark that comes back it begins no release."""
    owners = SlowOwners(RABBITMQ_LIKE, faults=SlowFaults(0.001, {"target": 0.02}))
    committed(owners, *range(1, 201))
    owner = owners.start()
    assert owners.run(5, lambda: len(owners.delivered()) >= 1)
    owner.tenure.logs._readers[LogKind.OP].read = lambda _: ()
    owners.run(2 * FOLLOW_S)
    count_before = len(owners.delivered())
    owners.run(20)
    assert (1 < count_before < 100, count_before) == (True, len(owners.delivered()))


@pytest.mark.parametrize("profile", [KAFKA_LIKE, RABBITMQ_LIKE], ids=lambda profile: profile.name)
def test_a_half_that_waits_is_parked_at_once_after_a_coverage_gap(profile):
    """Its COMMITTED lies after the gap, so it need not be the first final op; no checkpoint is stored before that."""
    owners = Owners(profile, listener=lambda _: State.COMMIT, half_retention_s=None)
    owners.owned(9)
    owners.op(OpKind.COMMITTED, 9)
    owner = owners.start()
    owners.run(5)
    owners.kill(owner)
    before = owners.checkpoint()
    for number in (1, 2):
        owners.owned(number, order_key=KEY)
    owners.op(OpKind.CHECKED, 77)
    owners.clock.now_s += 1_300
    owners.trim(LogKind.OP, owners.op(OpKind.COMMITTED, 2))
    owners.start()
    owners.run(60)
    assert {(1, ParkCode.COVERAGE_GAP), (2, ParkCode.COVERAGE_GAP)} <= set(owners.parked())
    assert owners.checkpoint().op > before.op


class Gap:
    """The coverage gap of an owner; a half that it may hide ops of is to be parked."""

    def __init__(self, park=None):
        self.park = park

    def mark(self, pending):
        if self.park is not None:
            pending.note(park=self.park)


def follows(changes, *, has_body=True, park=None, **tenure):
    """Return whether a committed half of that kind may follow."""
    extras = {name: value for name, value in changes.items() if not hasattr(Pending, name)}
    pending = Pending(transaction_id=name_of(1), position=1, generation=0, terms=terms_of(0.0, 1.0, 1, fenced=False))
    pending.commit(1)
    pending.note(order_key=KEY, first_position=1, **extras)
    for name, value in changes.items():
        if hasattr(Pending, name):
            setattr(pending, name, value)
    logs = SimpleNamespace(has_body=lambda _: has_body, gap=Gap(park))
    context = SimpleNamespace(clock=SimpleNamespace(elapsed_s=lambda: 100.0))
    usual = {"is_draining": False, "may_write": True, "has_room": True, "in_round": (), "marked_s": 99.9}
    return may_follow(SimpleNamespace(logs=logs, context=context, now_ms=lambda: 10.0, **(usual | tenure)), pending)


def test_a_committed_half_follows_the_one_before_it():
    """Its COMMITTED was read back, and its record is in memory."""
    assert follows({})


@pytest.mark.parametrize(
    "changes",
    [
        {"failures": 1},
        {"refusals": 1},
        {"missing": (0,)},
        {"look_back": (0, b"")},
        {"outdone_count": 1},
        {"held_at": 0},
        {"park": (ParkCode.LOST, "it is gone")},
        {"is_busy": True},
        {"is_closed": True},
        {"due_ms": NEVER_MS},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_half_that_needs_more_than_a_release_does_not_follow(changes):
    """It is judged in the next sweep, after a tick."""
    assert not follows(changes)


@pytest.mark.parametrize(
    "options",
    [
        {"has_body": False},
        {"is_draining": True},
        {"may_write": False},
        {"has_room": False},
        {"in_round": {name_of(1)}},
        {"marked_s": 90.0},
        {"park": (ParkCode.COVERAGE_GAP, "ops are gone")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_half_does_not_follow_while_its_owner_cannot_release_it(options):
    """Its record is not in memory, its owner gives up or has no room, its tick is under way, or it is to be parked."""
    assert not follows({}, **options)
