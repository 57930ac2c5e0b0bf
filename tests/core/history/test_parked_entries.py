"""A half that was parked, resumed and ended stays off the list, also when retention has left only its parked record."""

from __future__ import annotations

import pytest
from txcore_conformance.clocks import RunningClock
from txcore_conformance.owners import Owners, name_of

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
from txcore.errors import TransactionStateError, UsageError
from txcore.history.parked_entries import close_entry, closed_record
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Fate, Faults, MemoryBackend, MemoryBroker
from txcore.records import LogKind, OpKind, ParkCode, Status
from txcore.results import EndState
from txcore.runtime.drivers import BlockingBridge, run_blocking

POLICY = CheckPolicy(immunity_s=5, interval_s=5, check_max=1)
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState


class Listener(TransactionListener):
    """A listener with the answer that the test sets."""

    answer = UNKNOWN

    def execute_local_transaction(self, message, argument):
        return argument or UNKNOWN

    def check_local_transaction(self, half):
        return self.answer


class World:
    """One partition of a group on the broker in memory."""

    def __init__(self, profile):
        self.clock, self.listener = RunningClock(), Listener()
        self.broker = MemoryBroker(profile, clock=self.clock)
        self.backend = MemoryBackend(self.broker)
        self.producer = TransactionProducer(
            self.backend,
            "g",
            listener=self.listener,
            clock=self.clock,
            partition_count=1,
        )
        self.operator = Operator(self.backend, "g", clock=self.clock)

    def send(self, body=b"A", answer=UNKNOWN):
        """Send one transaction and return its id."""
        return self.producer.send_message_in_transaction(Message("t", body, check_policy=POLICY), answer).transaction_id

    def check(self, answer):
        """Let a new checker judge the halves that are due, with this answer of the listener."""
        self.listener.answer = answer
        checker = Checker(self.backend, "g", listener=self.listener, clock=self.clock, limits=Limits(poll_s=0.001))
        for _ in range(3):
            self.clock.advance(10)
            checker.run_once()
        checker.stop()

    def park(self, body=b"A"):
        """Send a half, have it parked, and return its id."""
        identity = self.send(body)
        self.check(UNKNOWN)
        assert [identity] == self.parked()
        return identity

    def forget(self):
        """Let retention remove the half log and the op log; parked records stay."""
        self.send(b"later", COMMIT)
        self.check(COMMIT)
        for kind in (LogKind.HALF, LogKind.OP):
            self.broker.trim("g", kind, 0, self.broker.log("g", kind, 0)[-1].position)

    def parked(self):
        """Return the ids on the operator's list."""
        return [each.transaction_id for each in self.operator.parked()]

    def codes(self):
        """Return the codes in the parked log, in order."""
        return [wire.decode_parked(record.body).code for record in self.broker.log("g", LogKind.PARKED, 0)]

    def delivered(self, body=b"A"):
        """Return how often *body* was delivered."""
        return sum(message.body == body for message in self.broker.topics.get("t", []))

    def release(self, resolution):
        """Release one item and require that it is durable."""

        def one():
            return (yield resolution)

        assert Status.DURABLE is run_blocking(one(), BlockingBridge(self.backend)).status


@pytest.fixture(params=[KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG], ids=lambda profile: profile.name)
def world(request):
    """One partition on each kind of broker."""
    return World(request.param)


@pytest.mark.parametrize(("answer", "count"), [(COMMIT, 1), (ROLLBACK, 0)])
def test_a_resumed_half_that_ended_does_not_come_back(world, answer, count):
    """A resumed half that ended stays off the list without its final op; a second resume would deliver it again."""
    identity = world.park()
    world.operator.resume(identity, "fixed")
    world.check(answer)
    assert (count, []) == (world.delivered(), world.parked())
    assert [ParkCode.CHECKS_EXHAUSTED, ParkCode.CLOSED] == world.codes()
    world.forget()
    assert [] == world.parked()
    with pytest.raises(TransactionStateError):
        world.operator.resume(identity, "it was in a list")
    world.check(COMMIT)
    assert count == world.delivered()


def test_a_parked_half_that_nothing_has_ended_stays(world):
    """A parked half of which only the parked record is left stays on the list and can be resumed."""
    identity = world.park()
    world.forget()
    assert [identity] == world.parked()
    world.operator.resume(identity, "now")
    world.check(COMMIT)
    assert 1 == world.delivered()
    assert identity not in world.parked()


def test_a_resumed_half_that_is_parked_again_is_listed_and_closed_by_its_own_end(world):
    """A CLOSED applies to the records before it, up to its generation, so a half that is parked again is listed."""
    identity = world.park()
    world.operator.resume(identity, "once")
    world.check(UNKNOWN)
    assert [identity] == world.parked()
    world.operator.resume(identity, "twice")
    world.check(COMMIT)
    world.forget()
    assert ([], 1) == (world.parked(), world.delivered())


def test_an_entry_after_a_closed_record_is_open(world):
    """A CLOSED does not hide a later entry, as when a target refuses after it and the half is parked again."""
    identity = world.park()
    world.release(close_entry("g", 0, identity, 1, "c", 1))
    assert [] == world.parked()
    world.operator.show(identity)
    record = wire.decode_parked(world.broker.log("g", LogKind.PARKED, 0)[0].body)
    record.generation, record.code = 1, ParkCode.UNDELIVERABLE
    world.broker.append("g", LogKind.PARKED, 0, wire.encode_parked(record))
    assert [identity] == world.parked()


def test_a_late_end_of_a_parked_half_is_closed_by_the_record_its_owner_writes(world):
    """When the owner reads a COMMIT after a DISCARD, it closes the entry with a record of `close_entry`."""
    identity = world.park()
    world.release(close_entry("g", 0, identity, 0, "c", 1, b"t" * 16))
    world.forget()
    assert [] == world.parked()


def test_a_dismissed_entry_does_not_come_back(world):
    """Poison that an operator took off the list stays off it."""
    world.broker.append("g", LogKind.HALF, 0, b"\xc1poison")
    world.send(b"other", COMMIT)
    world.check(COMMIT)
    (name,) = world.parked()
    assert EndState.ACCEPTED is world.operator.rollback(name, "known").state
    world.forget()
    assert [] == world.parked()


def test_a_closed_record_is_no_transaction_of_its_own():
    """An id whose only record is a CLOSED is not shown."""
    world = World(KAFKA_LIKE)
    world.send(b"other", COMMIT)
    world.broker.append("g", LogKind.PARKED, 0, closed_record(b"n" * 16, 3, "c", 1))
    assert ([], []) == (world.operator.parked(), world.operator.pending())
    with pytest.raises((UsageError, TransactionStateError)):
        world.operator.resume(b"n" * 16)


class Between(Faults):
    """Faults that call *then* after a parked record was stored and before its DISCARD; they may lose parked records."""

    then = None
    is_parked = False
    is_lost = False

    def fate(self, what, transaction_ids):
        if what == "op" and self.is_parked and self.then is not None:
            then, self.then = self.then, None
            then()
        self.is_parked = self.is_parked or what == "parked"
        return Fate.LOST if self.is_lost and what == "parked" else Fate.DONE


def ended_late(profile):
    """Return a partition whose owner parks half 7 while its producer commits."""
    faults = Between()
    world = Owners(profile, faults=faults)
    world.half(7)
    world.start()
    faults.then = lambda: world.commit(7)
    world.run(10)
    return world


def forgotten(world):
    """Let retention take half and op log, and the resolutions that the store remembers; return the operator's list."""
    for kind in (LogKind.HALF, LogKind.OP):
        world.trim(kind, 1 << 40)
    return world.listed()


@pytest.mark.parametrize("profile", [KAFKA_LIKE, NATS_LIKE], ids=lambda profile: profile.name)
def test_a_commit_between_a_parked_record_and_its_discard_leaves_no_entry(profile):
    """A COMMIT before the DISCARD leaves no entry, whether or not the store refuses the DISCARD."""
    world = ended_late(profile)
    assert [(7, ParkCode.CHECKS_EXHAUSTED), (7, ParkCode.CLOSED)] == world.parked()[:2]
    assert ([b"b7"], []) == (world.delivered(), forgotten(world))


def test_a_discard_after_the_end_is_closed_by_the_next_owner_too():
    """If an owner was killed before it closed the entry of a late DISCARD, the next owner closes it."""
    world = Owners()
    world.claim(b"o" * 16)
    world.half(7)
    world.commit(7)
    world.op(OpKind.DISCARD, 7, token=b"o" * 16, reason=ParkCode.CHECKS_EXHAUSTED)
    world.start()
    world.run(5)
    assert [(7, ParkCode.CLOSED)] == world.parked()


@pytest.mark.parametrize("token", [b"o" * 16, b"outdated" * 2], ids=["void", "under an outdated claim"])
def test_a_discard_that_does_not_count_leaves_no_entry_once_the_half_ends(token):
    """The parked record of a DISCARD that does not count is closed when the half ends."""
    world = Owners(listener=lambda _: COMMIT)
    world.half(7)
    world.claim(b"o" * 16)
    world.op(OpKind.DECIDED, 7, token=b"o" * 16, decision=OpKind.COMMIT)
    world.op(OpKind.DISCARD, 7, token=token, reason=ParkCode.CHECKS_EXHAUSTED)
    world.start()
    world.run(5)
    assert ([b"b7"], [(7, ParkCode.CLOSED)]) == (world.delivered(), world.parked())


def test_a_producers_late_end_of_a_resumed_half_leaves_no_entry():
    """The owner closes the entry of a resumed half that its producer ends, because that end includes no CLOSED."""
    world = Owners()
    world.half(7)
    world.start()
    world.run(10)
    world.operator.resume(name_of(7), "try again")
    world.listener = lambda _: None
    world.run(1)
    world.commit(7)
    world.run(5)
    assert [(7, ParkCode.CHECKS_EXHAUSTED), (7, ParkCode.CLOSED)] == world.parked()
    assert [] == forgotten(world)


def parked_one(faults=None):
    """Return a partition whose half 7 was parked, and its owner."""
    world = Owners(faults=faults)
    world.half(7)
    owner = world.start()
    world.run(10)
    assert [7] == world.listed()
    return world, owner


def test_an_end_that_the_next_owner_cannot_place_leaves_no_entry():
    """The next owner closes the entry of a half that the checkpoint has passed and that its producer commits late."""
    world, owner = parked_one()
    world.half(8)
    world.commit(8)
    world.run(5)
    world.restart(owner, 5)
    world.commit(7)
    world.run(10)
    assert [(7, ParkCode.CHECKS_EXHAUSTED), (7, ParkCode.CLOSED)] == world.parked()
    assert [] == forgotten(world)


def test_no_checkpoint_passes_an_end_before_its_entry_is_closed():
    """If an owner stops while the parked log does not answer, the next one reads the end again and closes the entry."""
    faults = Between()
    world, owner = parked_one(faults)
    faults.is_lost = True
    world.commit(7)
    world.half(8)
    world.commit(8)
    world.run(6)
    owner.tenure.is_draining = True
    world.run(3)
    assert owner.has_ended
    faults.is_lost = False
    world.start()
    world.run(10)
    assert [(7, ParkCode.CHECKS_EXHAUSTED), (7, ParkCode.CLOSED)] == world.parked()


@pytest.mark.parametrize("profile", [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE], ids=lambda each: each.name)
def test_a_parked_half_is_listed_after_retention_removed_the_claim(profile):
    """Until the next claim the one in force is not known, so the DISCARD that parked the half counts."""
    world = Owners(profile, check_max=1)
    world.half(7, check_max=1)
    world.start()
    world.run(30)
    ops = [(record.position, op) for record in world.log(LogKind.OP) for op in wire.decode_ops(record.body)]
    world.trim(LogKind.OP, next(position for position, op in ops if op.kind == OpKind.DISCARD))
    assert [7] == world.listed()
