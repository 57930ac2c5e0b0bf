"""Versions of txcore read each other's records, both ways, and operators handle records of a newer version."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest
import sqlalchemy
from txcore_conformance.clocks import RunningClock

import txcore
from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    LocalTransactionState,
    Message,
    Operator,
    SqlFence,
    TransactionProducer,
    wire,
)
from txcore.errors import NewerRecordError, TransactionStateError
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.operator import plan as planning
from txcore.operator import to_json
from txcore.operator.next_step import next_step
from txcore.records import Half, HalfRecord, LogKind, Op, OpKind, ParkCode, Parked, Resolution, Status, TargetMessage
from txcore.results import EndState
from txcore.runtime.drivers import BlockingBridge, run_blocking

SPEC = importlib.util.spec_from_file_location("previous_wire", Path(__file__).with_name("previous_wire.py"))
previous = sys.modules["previous_wire"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(previous)
A = b"a" * 16
PROFILES = [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG]
MESSAGES = [TargetMessage("t", b"k", b"body", {"a": "b", "c": b"d"}), TargetMessage("t", None, b"", {})]


def as_previous(record):
    """Return the previous version's record with the same fields."""
    kind = getattr(previous, type(record).__name__)
    fields = {name: getattr(record, name) for name in kind.__struct_fields__}
    if kind is previous.Half:
        fields["messages"] = [as_previous(each) for each in record.messages]
    return kind(**fields)


HALVES = [
    Half(1, A, "g", 0, 0, 5, 100, 0, 3, fenced=True, by="p", messages=MESSAGES),
    Half(1, A, "g", 0, 2, 5, 0, 7, 3, True, "p", MESSAGES, 9, 8, 7, 6, 1, b"t" * 16, "anna: r", [1]),
]
OPS = [Op(kind, A, 1, "c", 5, b"t" * 16, 2, 1, 2, "why") for kind in OpKind if kind < OpKind.COMMITTED]
PARKED = [Parked(1, A, 0, code, "r", 3, "c", 5, b"t" * 16, b"half", [1]) for code in ParkCode]


class TestRecords:
    """A record without new fields has the bytes of version 1, from either version."""

    @pytest.mark.parametrize("half", HALVES)
    def test_halves(self, half):
        """Each version reads the other's halves, with every field."""
        assert previous.decode_half(wire.encode_half(half)) == as_previous(half)
        assert half == wire.decode_half(previous.encode_half(as_previous(half)))

    def test_ops(self):
        """Each version reads the other's op records, also merged ones."""
        assert previous.decode_ops(wire.encode_ops(OPS)) == [as_previous(op) for op in OPS]
        assert wire.decode_ops(previous.encode_ops([as_previous(op) for op in OPS])) == OPS

    @pytest.mark.parametrize("kind", [OpKind.COMMITTED, OpKind.RELEASED])
    def test_an_older_reader_stops_at_an_op_of_an_owners_release(self, kind):
        """A merged record with one op of an owner's release has version 2: an older reader takes none of its ops."""
        body = wire.encode_ops([*OPS, Op(kind, A)])
        with pytest.raises(previous.WireFormatError, match="version 2"):
            previous.decode_ops(body)
        assert [*OPS, Op(kind, A)] == wire.decode_ops(body)

    def test_an_older_reader_stops_at_a_half_that_its_owner_releases(self):
        """A half that its owner releases has version 2, also as a copy: an older reader would publish it at once."""
        half = Half(2, A, "g", 0, 0, 5, 100, 0, 3, fenced=True, by="p", messages=MESSAGES, release=1, final_at=4)
        with pytest.raises(previous.WireFormatError, match="version 2"):
            previous.decode_half(wire.encode_half(half))
        assert half == wire.decode_half(wire.encode_half(half))

    @pytest.mark.parametrize("parked", PARKED, ids=lambda each: each.code)
    def test_parked_records(self, parked):
        """Each version reads the other's parked records; new codes are text like the others."""
        assert previous.decode_parked(wire.encode_parked(parked)) == as_previous(parked)
        assert parked == wire.decode_parked(previous.encode_parked(as_previous(parked)))

    def test_messages_of_the_table(self):
        """Each version reads the other's rows, which stay in a database across an upgrade."""
        assert MESSAGES[0] == wire.decode_message(previous.encode_message(as_previous(MESSAGES[0])))
        assert previous.decode_message(wire.encode_message(MESSAGES[0])) == as_previous(MESSAGES[0])

    def test_fields_that_a_later_version_appends_are_ignored(self):
        """Fields that a later version appends to halves, their messages and ops are ignored."""
        half = msgspec.msgpack.decode(wire.encode_half(HALVES[1]))
        half[12][0].append("another broker")
        longer = msgspec.msgpack.encode([*half, b"database"])
        assert (HALVES[1], as_previous(HALVES[1])) == (wire.decode_half(longer), previous.decode_half(longer))
        ops = msgspec.msgpack.encode(["txo", 1, [[OpKind.COMMIT, A, 0, "", 0, b"", 0, 0, 0, "", [1]]]])
        assert [Op(OpKind.COMMIT, A)] == wire.decode_ops(ops)


class Listener(txcore.TransactionListener):
    """A listener with the answer that the test sets."""

    answer = LocalTransactionState.UNKNOWN

    def execute_local_transaction(self, message, argument):
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half):
        return self.answer


class World:
    """One partition of a group, a producer and checkers of any version, on the broker in memory."""

    def __init__(self, profile, monkeypatch):
        self.clock, self.listener, self.patch = RunningClock(), Listener(), monkeypatch
        self.broker = MemoryBroker(profile, clock=self.clock)
        self.backend = MemoryBackend(self.broker)
        policy = CheckPolicy(immunity_s=5, interval_s=5, check_max=1)
        self.producer = TransactionProducer(
            self.backend, "g", listener=self.listener, clock=self.clock, partition_count=1, policy=policy
        )
        self.operator = Operator(self.backend, "g", clock=self.clock)

    def send(self, version=1):
        """Append the half of a producer that dies before its end, and return its id."""
        with self.patch.context() as patch:
            patch.setattr(wire, "VERSION", version)
            return self.producer.send_message_in_transaction(Message("t", b"A")).transaction_id

    def upgrade(self, version=3):
        """Use this wire version from now on."""
        self.patch.setattr(wire, "VERSION_READ_MAX", version)

    def check(self):
        """Let a new checker judge the halves that are due."""
        checker = Checker(self.backend, "g", listener=self.listener, clock=self.clock, limits=Limits(poll_s=0.001))
        for _ in range(3):
            checker.run_once()
            self.clock.advance(10)
        checker.stop()

    def park_as_poison(self, code=ParkCode.POISON, body=None):
        """Park the newest half as an older checker did: its bytes, under a name made of them.

        The half is deleted from the log, as after a checkpoint has passed it.
        """
        record = self.broker.log("g", LogKind.HALF, 0)[-1]
        body = record.body if body is None else body
        name = hashlib.blake2b(body, digest_size=16).digest()
        self.park(name, code, body)
        self.broker.trim("g", LogKind.HALF, 0, record.position + 1)
        return name

    def park(self, name, code, body):
        """Write a parked record and its DISCARD, under a new claim."""
        token = b"claim of the old"
        self.backend.mark("g", 0, Op(OpKind.CLAIM, token, token=token)).result(5)
        parked = wire.encode_parked(Parked(1, name, 0, code, "r", 0, "old", self.clock.wall_ms(), token, body))
        half = HalfRecord("g", 0, name, 0, b"", ())
        self.release(
            Resolution(half, Op(OpKind.DISCARD, name, token=token, reason=code), (), parked, "old", flush=True)
        )

    def release(self, resolution):
        """Release one item and require that it is durable."""

        def one():
            return (yield resolution)

        assert Status.DURABLE is run_blocking(one(), BlockingBridge(self.backend)).status

    @property
    def delivered(self):
        """Return the bodies of all targets."""
        return [message.body for message in self.broker.topics.get("t", [])]


@pytest.fixture(params=PROFILES, ids=lambda profile: profile.name)
def world(request, monkeypatch):
    """One world for each kind of broker."""
    return World(request.param, monkeypatch)


def test_a_previous_producers_half_is_judged_by_this_checker(world):
    """A checker judges a half that has the bytes of the previous version's encoder."""
    identity = world.send()
    record = world.broker.log("g", LogKind.HALF, 0)[-1]
    record.body = previous.encode_half(as_previous(wire.decode_half(record.body)))
    world.listener.answer = LocalTransactionState.COMMIT
    world.clock.advance(10)
    world.check()
    assert ([b"A"], OpKind.COMMIT) == (world.delivered, world.operator.show(identity).final)


def test_a_previous_checker_reads_this_producers_records(world):
    """The previous version's checker reads halves and ends of this producer."""
    world.producer.send_message_in_transaction(Message("t", b"B"))
    for record in world.broker.log("g", LogKind.HALF, 0):
        previous.decode_half(record.body)
    for record in world.broker.log("g", LogKind.OP, 0):
        previous.decode_ops(record.body)


class TestFencedListener:
    """A half of the listener style in a group with a fence, whose producer died after or before its fence row."""

    @pytest.fixture
    def fence(self, tmp_path):
        """The fence of a real database."""
        made = SqlFence(sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}"))
        made.create()
        return made

    @pytest.fixture
    def half(self, world, fence):
        """Return a function that sends a half, with its row or without, and returns the record's bytes."""
        producer = TransactionProducer(
            world.backend, "g", fence=fence, listener=world.listener, clock=world.clock, partition_count=1
        )

        def send(*, has_row):
            def execute(message, argument):
                if has_row:
                    with fence.engine.begin() as connection:
                        txcore.current_transaction().fence(connection)
                return LocalTransactionState.UNKNOWN

            with world.patch.context() as patch:
                patch.setattr(world.listener, "execute_local_transaction", execute)
                producer.send_message_in_transaction(Message("t", b"A"))
            return world.broker.log("g", LogKind.HALF, 0)[-1].body

        return send

    @pytest.mark.parametrize(("has_row", "answer"), [(True, "COMMIT"), (False, "ROLLBACK")])
    def test_a_previous_checker_lets_the_fence_decide(self, half, fence, has_row, answer):
        """The previous version's checker lets the fence decide and does not ask its listener."""
        read = previous.decode_half(half(has_row=has_row))
        assert answer == previous.check(
            read, lambda identity: fence.check([identity], "g")[identity].answer.value, lambda _: "ROLLBACK, unasked"
        )

    @pytest.mark.parametrize(("has_row", "is_asked"), [(True, False), (False, True)])
    def test_this_checker_asks_the_listener_where_there_is_no_row(self, world, half, fence, has_row, is_asked):
        """A checker asks the listener about a half without a row, so a forgotten row loses no message."""
        read, asked = wire.decode_half(half(has_row=has_row)), []
        assert (True, True, False) == (read.fenced, read.may_lack_row, read.fence_decides)

        def answer(view):
            asked.append(view.transaction_id)
            return LocalTransactionState.COMMIT

        world.patch.setattr(world.listener, "check_local_transaction", answer)
        world.clock.advance(10)
        checker = Checker(world.backend, "g", fence=fence, listener=world.listener, clock=world.clock)
        for _ in range(3):
            checker.run_once()
            world.clock.advance(10)
        checker.stop()
        assert ([b"A"], [read.transaction_id] if is_asked else []) == (world.delivered, asked)


def test_a_newer_half_is_listed_as_such(world):
    """A newer half is listed with its version beside other halves, and every decision about it is refused."""
    newer, old = world.send(version=3), world.send()
    rows = {each.transaction_id: each for each in world.operator.pending()}
    assert {newer: 3, old: 0} == {identity: each.newer_version for identity, each in rows.items()}
    journey = world.operator.show(newer)
    assert ("pending", 3) == (
        journey.state,
        to_json.pending(journey, world.clock.wall_ms())["newer_version"],
    )
    for verb in planning.Verb:
        plan = planning.plan(verb, journey, None, override=False)
        assert (planning.Step.REFUSED, True) == (plan.step, "a newer txcore" in plan.text)
    with pytest.raises(TransactionStateError, match="a newer txcore, in wire version 3; upgrade"):
        world.operator.rollback(newer, "why not")
    with pytest.raises(TransactionStateError, match="pending already"):
        world.operator.resume(newer)


class TestPoisonOfANewerTxcore:
    """An older checker parked a newer producer's half as poison; a new checker delivers it."""

    def test_it_is_resumed_under_its_own_id_after_the_upgrade(self, world):
        """The half is delivered once, with its own id and immunity, and its entry is closed for ever."""
        identity = world.send(version=3)
        name = world.park_as_poison()
        world.upgrade()
        world.operator.resume(name, "upgraded")
        copy = wire.decode_half(world.broker.log("g", LogKind.HALF, 0)[-1].body)
        assert (identity, 1, 5_000) == (copy.transaction_id, copy.generation, copy.immunity_ms)
        assert [] == world.operator.parked()
        world.listener.answer = LocalTransactionState.COMMIT
        world.clock.advance(10)
        world.check()
        assert ([b"A"], OpKind.COMMIT) == (world.delivered, world.operator.show(identity).final)
        with pytest.raises(TransactionStateError, match="finished"):
            world.operator.resume(name)

    def test_a_resume_that_did_not_close_the_entry_is_repeated_without_a_second_delivery(self, world):
        """A resume whose process died before it closed the entry may be repeated; the half is delivered once."""
        world.send(version=3)
        name = world.park_as_poison()
        world.upgrade()
        with world.patch.context() as patch:
            patch.setattr(Operator, "_dismiss", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                world.operator.resume(name)
        world.listener.answer = LocalTransactionState.COMMIT
        world.clock.advance(10)
        world.check()
        assert [name] == [each.transaction_id for each in world.operator.parked()]
        world.operator.resume(name)
        world.clock.advance(10)
        world.check()
        assert ([b"A"], []) == (world.delivered, world.operator.parked())

    def test_a_half_that_its_producer_ended_is_not_delivered_again(self, world):
        """A half is not delivered again if its producer's COMMIT came before the resume."""
        with world.patch.context() as patch:
            patch.setattr(wire, "VERSION", 3)
            patch.setattr(world.listener, "execute_local_transaction", lambda *_: LocalTransactionState.COMMIT)
            world.producer.send_message_in_transaction(Message("t", b"A"))
        name = world.park_as_poison()
        world.upgrade()
        world.operator.resume(name)
        world.check()
        assert ([b"A"], []) == (world.delivered, world.operator.parked())

    def test_before_the_upgrade_a_resume_names_the_remedy(self, world):
        """Before the upgrade, resume and rollback are refused with the remedy, and the entry stays."""
        world.send(version=3)
        name = world.park_as_poison()
        with pytest.raises(TransactionStateError, match="upgrade this one, then resume it"):
            world.operator.resume(name)
        with pytest.raises(TransactionStateError, match="upgrade this one"):
            world.operator.rollback(name, "do not want it")
        assert [name] == [each.transaction_id for each in world.operator.parked()]

    def test_a_decision_is_made_about_the_half_not_about_the_entry(self, world):
        """A decision about the entry is refused, because its rollback could discard a committed transaction."""
        identity = world.send(version=3)
        name = world.park_as_poison()
        world.upgrade()
        journey = world.operator.show(name)
        plans = {verb: planning.plan(verb, journey, None, override=False) for verb in planning.Verb}
        assert planning.Step.ACT is plans[planning.Verb.RESUME].step
        for kind in (planning.Verb.COMMIT, planning.Verb.ROLLBACK):
            assert planning.Step.REFUSED is plans[kind].step
            with pytest.raises(TransactionStateError, match="resume it, then decide that one"):
                getattr(world.operator, kind.value)(name, "why")
        world.operator.resume(name)
        result = world.operator.rollback(identity, "not wanted")
        assert EndState.UNKNOWN is result.state
        world.clock.advance(10)
        world.check()
        assert (OpKind.ROLLBACK, []) == (world.operator.show(identity).final, world.delivered)


def test_a_newer_half_parked_under_its_own_id_is_resumed_after_the_upgrade(world):
    """A half that the setting `newer_records = "park"` has parked is resumed after the upgrade."""
    identity = world.send(version=3)
    record = world.broker.log("g", LogKind.HALF, 0)[-1]
    world.park(identity, ParkCode.NEWER, record.body)
    (entry,) = world.operator.parked()
    assert (identity, ParkCode.NEWER) == (entry.transaction_id, entry.code)
    with pytest.raises(TransactionStateError, match="a newer txcore"):
        world.operator.resume(identity)
    with pytest.raises(TransactionStateError, match="a newer txcore"):
        world.operator.rollback(identity, "why")
    world.upgrade()
    world.operator.resume(identity, "upgraded")
    world.listener.answer = LocalTransactionState.COMMIT
    world.clock.advance(10)
    world.check()
    assert ([b"A"], []) == (world.delivered, world.operator.parked())


@pytest.mark.parametrize(("group", "partition"), [("other", 0), ("g", 1)])
def test_a_half_of_another_log_stays_poison(world, group, partition):
    """A half of another log cannot be resumed, because the resume would append it to the wrong log."""
    body = wire.encode_half(msgspec.structs.replace(HALVES[0], group=group, partition=partition))
    world.send()
    name = world.park_as_poison(body=body)
    with pytest.raises(TransactionStateError, match="poison"):
        world.operator.resume(name)
    assert EndState.ACCEPTED is world.operator.rollback(name, "not ours").state
    assert [] == world.operator.parked()


def test_a_lost_half_cannot_be_resumed_and_names_the_remedy(world):
    """A lost half has no bytes to resume; only a rollback removes it from the list."""
    world.send()
    world.park(A, ParkCode.LOST, b"")
    (entry,) = world.operator.parked()
    assert (A, ParkCode.LOST, ()) == (entry.transaction_id, entry.code, entry.topics)
    for act in (world.operator.resume, lambda identity: world.operator.commit(identity, "why")):
        with pytest.raises(TransactionStateError, match=r"gone from the log.*ask the database"):
            act(A)
    assert EndState.ACCEPTED is world.operator.rollback(A, "published by hand").state
    assert [] == world.operator.parked()


def test_a_lost_half_with_a_journaled_commit_is_committed_off_the_list(world):
    """The plan says that its messages must be published by hand, and the COMMIT agrees with the journal."""
    token = b"claim of a checker"
    world.send()
    world.backend.mark("g", 0, Op(OpKind.CLAIM, token, token=token)).result(5)
    decided = Op(OpKind.DECIDED, A, token=token, decision=OpKind.COMMIT)
    world.release(Resolution(HalfRecord("g", 0, A, 0, b"", ()), decided, (), b"", "old", flush=True))
    world.park(A, ParkCode.LOST, b"")
    with pytest.raises(TransactionStateError, match="COMMIT is journaled"):
        world.operator.rollback(A, "why")
    journey = world.operator.show(A)
    made = planning.plan(planning.Verb.COMMIT, journey, None, override=False)
    assert (made.step, "by hand" in made.text) == (planning.Step.ACT, True)
    assert "by hand" in next_step(journey)
    assert EndState.ACCEPTED is world.operator.commit(A, "published by hand").state
    assert ([], []) == (world.operator.parked(), world.delivered)
    journey = world.operator.show(A)
    assert (OpKind.COMMIT, "published by hand") == (journey.final, journey.ops[-1][1].reason)


def test_a_newer_op_record_is_distinguished_from_damage():
    """An op record of a higher version with an unknown kind is newer, not damaged."""
    with pytest.raises(NewerRecordError):
        wire.decode_ops(msgspec.msgpack.encode(["txo", 3, [[13, A]]]))
