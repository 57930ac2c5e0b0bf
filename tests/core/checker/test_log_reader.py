"""A checker's conclusions from a partition's two logs, when reads are late or empty, and records lost or damaged."""

from __future__ import annotations

import random

import msgspec
import pytest
from txcore_conformance.oracle import journeys_of
from txcore_conformance.owners import Owners, name_of

from txcore import Checker, CheckPolicy, Limits, Message, Operator, TransactionListener, TransactionProducer
from txcore import LocalTransactionState as State
from txcore.errors import BackendTimeoutError, TransactionStateError
from txcore.fence import FenceAnswer
from txcore.history.parked_entries import closed_record
from txcore.hookspecs import hookimpl
from txcore.ids import IdFactory
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Fate, Faults, MemoryBackend, MemoryBroker
from txcore.memory.reading import MemoryReader
from txcore.records import FINAL_KINDS, Checkpoint, Half, LogKind, Op, OpKind, ParkCode, Position, TargetMessage
from txcore.runtime.instrumentation import PARTITION_BLOCKED
from txcore.wire import (
    VERSION,
    VERSION_READ_MAX,
    decode_half,
    decode_ops,
    decode_parked,
    encode_half,
    encode_ops,
    proof_of,
)

NEWER = VERSION_READ_MAX + 1
PROFILES = [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG]
SOON = CheckPolicy(immunity_s=5, interval_s=5)
DAY_S = 86_400


class Listener(TransactionListener):
    """A listener with the test's answer for an id, else UNKNOWN; the local transaction returns its argument."""

    def __init__(self):
        self.answers, self.asked = {}, []

    def execute_local_transaction(self, message, arg):
        return arg

    def check_local_transaction(self, half):
        self.asked.append(half.transaction_id)
        return self.answers.get(half.transaction_id, State.UNKNOWN)


class Stage:
    """One partition of a memory broker, with a producer, an operator and as many checkers as a test starts."""

    def __init__(self, profile, clock):
        self.clock, self.listener, self.events = clock, Listener(), []
        self.broker = MemoryBroker(profile, clock=clock)
        self.backend = MemoryBackend(self.broker)
        self.producer = TransactionProducer(
            self.backend, "g", listener=self.listener, clock=clock, partition_count=1, policy=SOON
        )
        self.operator = Operator(self.backend, "g", clock=clock)
        self.ids = IdFactory(clock, random.Random(1))

    @hookimpl
    def txcore_on_event(self, event):
        self.events.append(event.name)

    def send(self, body=b"x", state=State.UNKNOWN, **policy):
        message = Message("t", body, check_policy=CheckPolicy(**({"immunity_s": 5, "interval_s": 5} | policy)))
        return self.producer.send_message_in_transaction(message, state).transaction_id

    def checker(self, member="c1", **options):
        limits = options.pop("limits", Limits(poll_s=0.001))
        given = {"listener": self.listener} | options
        return Checker(self.backend, "g", clock=self.clock, limits=limits, member=member, plugins=[self], **given)

    def fill(self, count):
        """Append *count* committed halves; their ops are merged, 50 to a record."""
        for start in range(0, count, 50):
            ops = []
            for _ in range(min(50, count - start)):
                identity = self.ids.new()
                messages = [TargetMessage("t", None, b"o", {})]
                half = Half(VERSION, identity, "g", 0, 0, self.clock.wall_ms(), 5000, 0, 0, False, "p:z", messages)
                self.append(LogKind.HALF, encode_half(half))
                ops.append(Op(OpKind.COMMIT, identity, 0, "p:z"))
            self.broker.append_ops("g", 0, ops)

    def append(self, kind, body):
        self.broker.append("g", kind, 0, body)

    def journey(self, identity):
        return journeys_of(0, *[self.broker.log("g", kind, 0) for kind in LogKind])[identity]

    def delivered(self, body):
        return sum(message.body == body for message in self.broker.topics.get("t", ()))


@pytest.fixture(params=PROFILES, ids=lambda profile: profile.name)
def stage(request, running_clock):
    return Stage(request.param, running_clock)


@pytest.fixture
def kafka_like(running_clock):
    return Stage(KAFKA_LIKE, running_clock)


def sweep(checker, times=3):
    for _ in range(times):
        report = checker.run_once()
    return report


def park(stage, body):
    """Send a half with one check, and let a checker park it."""
    identity = stage.send(body, check_max=1)
    checker = stage.checker()
    sweep(checker, 1)
    stage.clock.advance(10)
    sweep(checker)
    assert [identity] == [each.transaction_id for each in stage.operator.parked()]
    return identity, checker


def test_a_resumed_half_stays_ended_after_a_restart_on_a_long_log(stage):
    """A resumed half stays ended when a restarted checker reads its ops before its second copy."""
    stage.send(b"held", immunity_s=1_000)
    stage.fill(2_500)
    identity, checker = park(stage, b"x1")
    stage.listener.answers[identity] = State.COMMIT
    stage.fill(1_500)
    stage.operator.resume(identity, "try again")
    sweep(checker, 4)
    checker.stop()
    assert 1 == stage.delivered(b"x1")
    stage.listener.answers[identity] = State.ROLLBACK
    asked = len(stage.listener.asked)
    stage.clock.advance(100)
    sweep(stage.checker("c2"))
    assert identity not in stage.listener.asked[asked:]
    assert (OpKind.COMMIT, 1) == (stage.journey(identity).final, stage.delivered(b"x1"))


def test_a_half_that_was_closed_meanwhile_is_not_carried(stage):
    """The owner appends no copy folded beyond the half's end, because its reader would miss that end."""
    transaction = stage.producer.begin()
    transaction.publish(Message("t", b"h", check_policy=CheckPolicy(immunity_s=1_000, interval_s=5, check_max=3)))
    transaction.prepare()
    for _ in range(30):
        stage.send(state=State.COMMIT)
    stage.send(b"due")
    mark, was_ended = stage.backend.mark, []

    def end_before_the_first_tick(group, partition, op, claim=None):
        if op.kind == OpKind.TICK and not was_ended:
            was_ended.append(transaction.commit())
        return mark(group, partition, op, claim)

    stage.backend.mark = end_before_the_first_tick
    stage.clock.advance(10)
    sweep(stage.checker(limits=Limits(poll_s=0.001, replay_max=5)), 4)
    assert was_ended
    finals = {
        op.transaction_id: record.position
        for record in stage.broker.log("g", LogKind.OP, 0)
        for op in decode_ops(record.body)
        if op.kind in FINAL_KINDS
    }
    copies = [decode_half(record.body) for record in stage.broker.log("g", LogKind.HALF, 0)]
    assert [] == [half for half in copies if half.folded_to >= finals.get(half.transaction_id, 1 << 60)]


def test_a_silent_half_log_ends_nothing_twice(stage, monkeypatch):
    """While the half log brings nothing, the ops wait for their halves, however long, and no half ends twice."""
    read, is_silent = MemoryReader.read, []

    def read_unless_silent(reader, count_max):
        return () if is_silent and reader._key[1] is LogKind.HALF else read(reader, count_max)

    monkeypatch.setattr(MemoryReader, "read", read_unless_silent)
    checker = stage.checker()
    stage.send(b"first", State.COMMIT)
    sweep(checker, 2)
    stage.broker.leave("g", "c1")
    for _ in range(20):
        stage.send(b"o", State.COMMIT)
    rolled_back = stage.send(b"rolled back", State.ROLLBACK)
    is_silent.append(True)
    second = stage.checker("c2", limits=Limits(poll_s=0.001, checkpoint_interval_s=0.1))
    for _ in range(4):
        stage.clock.advance(20)
        with pytest.raises(BackendTimeoutError):
            second.run_once(timeout_s=1)
    is_silent.clear()
    for _ in range(3):
        stage.clock.advance(20)
        second.run_once()
    assert [] == stage.listener.asked
    assert 21 == len(stage.broker.topics["t"])
    assert 1 == len(stage.journey(rolled_back).ops)


def test_a_request_survives_that_its_half_is_carried(stage):
    """A request waits for the end of immunity; the journal of a carried copy begins before it and does not lose it."""
    identity = stage.send(b"a", immunity_s=1_000, check_max=5)
    stage.listener.answers[identity] = State.COMMIT
    limits = Limits(poll_s=0.001, replay_max=5)
    checker = stage.checker(limits=limits)
    sweep(checker, 1)
    stage.operator.rollback(identity, "the customer cancelled")
    for _ in range(40):
        stage.send(state=State.COMMIT)
    for _ in range(5):
        sweep(checker, 1)
        stage.clock.advance(6)
    checker.stop()
    copies = [decode_half(record.body).transaction_id for record in stage.broker.log("g", LogKind.HALF, 0)]
    assert copies.count(identity) > 1
    second = stage.checker("c2", limits=limits)
    sweep(second, 1)
    stage.clock.advance(1_100)
    sweep(second, 4)
    assert (OpKind.ROLLBACK, 0) == (stage.journey(identity).final, stage.delivered(b"a"))


@pytest.mark.parametrize("stray", [b"\xff no op", encode_ops([Op(OpKind.COMMIT, b"short")])], ids=["bytes", "bad id"])
def test_stray_bytes_in_the_op_log_stop_no_resumed_half(stage, stray):
    """The checker skips stray bytes wherever it reads the op log, also when it reads a copy's journal again."""
    identity, checker = park(stage, b"x1")
    checker.stop()
    stage.append(LogKind.OP, stray)
    stage.operator.resume(identity, "try again")
    stage.append(LogKind.OP, stray)
    stage.listener.answers[identity] = State.COMMIT
    second = stage.checker("c2")
    report = sweep(second)
    assert (1, 0) == (stage.delivered(b"x1"), report.pending)
    assert second.counts["stray"] >= 1
    assert 1 == second.counts["claims"]


@pytest.mark.parametrize("stray", [b"junk", encode_ops([])[:-1]])
def test_stray_bytes_stop_no_look_back(stage, stray):
    """The checker reads a carried copy's journal again from `folded_to`, and skips bytes that are no op record."""
    identity = stage.send(b"x1")
    first = stage.checker()
    sweep(first, 1)
    first.stop()
    record = stage.broker.log("g", LogKind.HALF, 0)[-1]
    copy = msgspec.structs.replace(
        decode_half(record.body), folded_to=stage.broker.log("g", LogKind.OP, 0)[-1].position, first_appended_ms=1
    )
    stage.append(LogKind.OP, stray)
    stage.append(LogKind.OP, encode_ops([Op(OpKind.TICK, proof_of(copy))]))
    place = stage.broker.log("g", LogKind.OP, 0)[-1].position
    stage.append(LogKind.HALF, encode_half(msgspec.structs.replace(copy, proved_at=place)))
    stage.broker.trim("g", LogKind.HALF, 0, record.position + 1)
    stage.listener.answers[identity] = State.COMMIT
    second = stage.checker("c2")
    sweep(second, 1)
    stage.clock.advance(10)
    report = sweep(second)
    assert (1, 0, 1) == (stage.delivered(b"x1"), report.pending, second.counts["claims"])


class TestGap:
    """The op log lost its beginning."""

    def test_an_idle_group_parks_no_young_half(self, kafka_like):
        """A half is not parked for ops that retention removed if those ops are older than the half."""
        stage = kafka_like
        for _ in range(3):
            stage.send(b"old", State.COMMIT)
        first = stage.checker()
        sweep(first)
        first.stop()
        stage.clock.advance(15 * DAY_S)
        stage.broker.trim("g", LogKind.OP, 0, stage.broker.log("g", LogKind.OP, 0)[-1].position + 1)
        identity = stage.send(b"a")
        stage.listener.answers[identity] = State.COMMIT
        stage.clock.advance(10)
        sweep(stage.checker("c2"))
        assert (1, []) == (stage.delivered(b"a"), stage.operator.parked())

    def lose_ops(self, stage):
        checker = stage.checker()
        sweep(checker, 1)
        checker.stop()
        stage.clock.advance(2 * DAY_S)
        stage.broker.trim("g", LogKind.OP, 0, stage.broker.log("g", LogKind.OP, 0)[-1].position + 1)

    def test_an_old_half_is_parked(self, kafka_like):
        """A half is parked when its end may be among the lost ops."""
        stage = kafka_like
        identity = stage.send(b"a", immunity_s=DAY_S)
        self.lose_ops(stage)
        sweep(stage.checker("c2"))
        assert [(identity, "COVERAGE_GAP")] == [(each.transaction_id, each.code) for each in stage.operator.parked()]

    def test_a_copy_does_not_claim_lost_ops(self, kafka_like):
        """A half that was carried after the gap still counts as one whose ops may be lost, for every later owner."""
        stage = kafka_like
        identity = stage.send(b"a", immunity_s=2 * DAY_S + 300)
        stage.listener.answers[identity] = State.COMMIT
        self.lose_ops(stage)
        checker = stage.checker("c2")
        sweep(checker, 1)
        assert [] == stage.operator.parked()
        copies = [decode_half(record.body) for record in stage.broker.log("g", LogKind.HALF, 0)]
        assert [-1] == [half.folded_to for half in copies]
        checker.stop()
        stage.clock.advance(400)
        sweep(stage.checker("c3"))
        assert ([identity], 0) == ([each.transaction_id for each in stage.operator.parked()], stage.delivered(b"a"))

    def test_a_fenced_half_is_checked(self, kafka_like, fence):
        """A fenced half is checked even after its ops are lost, because its fence knows the end."""
        stage = kafka_like
        identity = stage.ids.new()
        messages = [TargetMessage("t", None, b"f", {})]
        stage.send(b"first", State.COMMIT)
        stage.append(LogKind.HALF, encode_half(Half(VERSION, identity, "g", 0, 0, 0, 5, 5, 3, True, "p:z", messages)))
        fence.answer = FenceAnswer.NO_ANSWER
        checker = stage.checker(fence=fence)
        sweep(checker, 1)
        checker.stop()
        stage.clock.advance(2 * DAY_S)
        stage.broker.trim("g", LogKind.OP, 0, stage.broker.log("g", LogKind.OP, 0)[-1].position + 1)
        fence.answer = FenceAnswer.COMMIT
        second = stage.checker("c2", fence=fence)
        sweep(second)
        assert (1, []) == (stage.delivered(b"f"), stage.operator.parked())


def newer_half(stage, identity):
    messages = [TargetMessage("t", None, b"new", {})]
    return msgspec.msgpack.encode(Half(NEWER, identity, "g", 0, 0, 0, 5000, 0, 0, False, "p:new", messages))


class TestNewer:
    """A record that a newer txcore has written."""

    @pytest.mark.parametrize("kind", [LogKind.HALF, LogKind.OP], ids=["half", "op"])
    def test_it_stops_its_partition(self, stage, kind):
        """A newer record blocks its partition: no half is judged, no checkpoint stored, no write repeated."""
        earlier = stage.send(b"a")
        stage.listener.answers[earlier] = State.COMMIT
        identity = stage.ids.new()
        newer = newer_half(stage, identity) if kind is LogKind.HALF else encode_ops([Op(99, identity)])
        stage.append(kind, newer)
        stage.clock.advance(10)
        checker = stage.checker()
        assert 1 == checker.run_once().blocked
        ops = len(stage.broker.log("g", LogKind.OP, 0))
        for _ in range(3):
            stage.clock.advance(100)
            assert 1 == checker.run_once().blocked
        assert ops == len(stage.broker.log("g", LogKind.OP, 0))
        assert 1 == stage.events.count(PARTITION_BLOCKED)
        assert "a newer txcore reads it" in checker.stats().partitions[0].blocked
        assert 0 == stage.delivered(b"a")
        checker.stop()
        assert ("g", 0) not in stage.broker.checkpoints

    def test_its_owner_holds_it_and_claims_it_once(self, kafka_like):
        """The owner of a blocked partition keeps it and does not claim it again."""
        stage = kafka_like
        stage.append(LogKind.HALF, newer_half(stage, stage.ids.new()))
        checker = stage.checker(limits=Limits(poll_s=0.001, idle_poll_s=0.001))
        checker.run_once()
        for _ in range(50):
            stage.clock.advance(1)
            checker._membership.poll()
            checker._membership.loop.turn()
        checker.run_once()
        claims = [op for record in stage.broker.log("g", LogKind.OP, 0) for op in decode_ops(record.body)]
        assert (1, 1) == (len(claims), stage.events.count(PARTITION_BLOCKED))

    def test_the_settings_may_have_a_half_parked_instead(self, stage):
        """A newer half may be parked with its own id, so that its producer or an upgraded txcore can end it."""
        earlier, identity = stage.send(b"a"), stage.ids.new()
        stage.listener.answers[earlier] = State.COMMIT
        stage.append(LogKind.HALF, newer_half(stage, identity))
        stage.append(LogKind.OP, encode_ops([Op(99, identity)]))
        stage.clock.advance(10)
        checker = stage.checker(limits=Limits(poll_s=0.001, newer_records="park"))
        sweep(checker, 1)
        stage.clock.advance(10)
        assert 0 == sweep(checker).blocked
        assert 1 == stage.delivered(b"a")
        assert [(identity, "NEWER")] == [(each.transaction_id, each.code) for each in stage.operator.parked()]
        assert newer_half(stage, identity) == stage.journey(identity).parked[-1].half


def test_a_half_that_retention_took_is_parked_as_lost(kafka_like):
    """A half that retention took while no checker ran is parked as LOST if the checkpoint's note names it."""
    stage = kafka_like
    first = stage.send(b"gone", immunity_s=DAY_S)
    ended = stage.producer.begin()
    ended.publish(Message("t", b"ended", check_policy=CheckPolicy(immunity_s=DAY_S, interval_s=5, check_max=3)))
    ended.prepare()
    checker = stage.checker()
    sweep(checker)
    checker.stop()
    ended.commit()
    kept = stage.send(b"kept")
    stage.listener.answers[kept] = State.COMMIT
    position = stage.broker.log("g", LogKind.HALF, 0)[-1].position
    stage.broker.trim("g", LogKind.HALF, 0, position)
    stage.clock.advance(10)
    sweep(stage.checker("c2"))
    assert [(first, "LOST")] == [(each.transaction_id, each.code) for each in stage.operator.parked()]
    assert (1, 1, 0) == (stage.delivered(b"kept"), stage.delivered(b"ended"), stage.delivered(b"gone"))
    with pytest.raises(TransactionStateError, match="ask the database whether it committed"):
        stage.operator.resume(first, "try again")
    stage.operator.rollback(first, "the database says that it did not commit")
    assert [] == stage.operator.parked()
    assert b"" == stage.operator.show(first).parked[0].half


def test_a_parked_half_that_its_producer_ends_does_not_come_back(kafka_like):
    """A CLOSED record keeps an ended half off the list after retention took the half log and the op log."""
    stage = kafka_like
    transaction = stage.producer.begin()
    transaction.publish(Message("t", b"late", check_policy=CheckPolicy(immunity_s=5, interval_s=5, check_max=1)))
    transaction.prepare()
    checker = stage.checker()
    sweep(checker, 1)
    stage.clock.advance(5)
    sweep(checker, 1)
    stage.append(LogKind.OP, encode_ops([Op(OpKind.COMMIT, transaction.transaction_id)]))
    stage.clock.advance(10)
    sweep(checker)
    parked = [decode_parked(record.body).code for record in stage.broker.log("g", LogKind.PARKED, 0)]
    assert ["CHECKS_EXHAUSTED", "CLOSED"] == parked
    for kind in (LogKind.HALF, LogKind.OP):
        stage.broker.trim("g", kind, 0, 1 << 40)
    assert [] == stage.operator.parked()


def test_a_half_that_is_parked_again_stays_on_the_list(kafka_like):
    """A CLOSED record for the first entry that lands after the second entry does not hide the second one."""
    stage = kafka_like
    identity, checker = park(stage, b"x1")
    checker.stop()
    stage.listener.answers[identity] = State.COMMIT
    stage.broker.refusing.add("t")
    stage.operator.resume(identity, "try again")
    sweep(stage.checker("c2", limits=Limits(poll_s=0.001, refusals_max=1)))
    body = closed_record(identity, 0, "c:c2", 0)
    assert [] == [each for each in closings(stage) if each.generation > 0]
    stage.append(LogKind.PARKED, body)
    assert [(identity, 1, "UNDELIVERABLE")] == [
        (each.transaction_id, each.generation, each.code) for each in stage.operator.parked()
    ]


def closings(stage):
    """Return the CLOSED entries of the parked log."""
    entries = [decode_parked(record.body) for record in stage.broker.log("g", LogKind.PARKED, 0)]
    return [entry for entry in entries if entry.code == "CLOSED"]


def test_what_an_owner_has_read_gets_no_older_gap():
    """An owner's gap does not grow: a half that is undecided for longer than ops are kept is not parked."""
    world = Owners()
    world.half(1)
    world.op(OpKind.COMMIT, 1)
    world.run(1)
    world.broker.append("g", LogKind.OP, 0, b"")
    world.trim(LogKind.OP, 1 << 40)
    world.half(7, check_max=100_000, interval_ms=60_000)
    world.run(1)
    world.start()
    world.run(1_500)
    assert 7 not in [number for number, _ in world.parked()]
    assert world.checkpoint() is not None


@pytest.mark.parametrize("has_neighbour", [False, True])
def test_a_copy_is_not_parked_for_a_gap_in_the_journal_of_another(has_neighbour):
    """Of two copies whose journals are read again together, only the one with a removed place is parked."""
    world = Owners(listener=lambda _: State.COMMIT)
    for number in range(20, 40):
        world.half(number)
        end = world.op(OpKind.COMMIT, number)
    stored_ms = world.clock.wall_ms()
    if has_neighbour:
        world.copied(7, folded_to=2, first_appended_ms=stored_ms - 100_000)
    world.copied(8, folded_to=end - 1, first_appended_ms=stored_ms - 1_000)
    world.trim(LogKind.OP, end - 5)
    first = world.log(LogKind.HALF)[20].position
    world.broker.checkpoints["g", 0] = Checkpoint(first, Position(end))
    world.start()
    world.run(10)
    assert [b"b8"] == world.delivered()
    assert has_neighbour == (world.parked() == [(7, ParkCode.COVERAGE_GAP)])


def test_a_known_half_is_parked_for_the_gap_that_its_copy_tells_of():
    """A half whose copy names no place is parked, although its own record is known: its end may be lost."""
    world = Owners(listener=lambda _: State.COMMIT)
    world.half(7)
    world.copied(7, folded_to=-1, first_appended_ms=world.clock.wall_ms())
    world.start()
    world.run(10)
    assert ([(7, ParkCode.COVERAGE_GAP)], [], []) == (world.parked(), world.delivered(), world.asked)


def test_an_op_after_a_gap_is_judged_by_the_claim_in_force_there():
    """A DISCARD under the claim before a gap does not count after a newer claim, even if the gap took that claim."""
    world = Owners(listener=lambda _: State.COMMIT)
    old, new = b"o" * 16, b"n" * 16
    world.claim(old)
    gone = int(world.log(LogKind.OP)[-1].position)
    world.claim(new)
    kept = world.op(OpKind.NUDGE, 9)
    world.op(OpKind.DISCARD, 8, token=old, reason=ParkCode.CHECKS_EXHAUSTED)
    end = world.op(OpKind.NUDGE, 9)
    world.copied(7, folded_to=gone, token=old)
    world.copied(8, folded_to=kept, token=new)
    world.trim(LogKind.OP, kept)
    world.broker.checkpoints["g", 0] = Checkpoint(Position(1), Position(end), new)
    world.start()
    world.run(10)
    assert [b"b8"] == world.delivered()


@pytest.mark.parametrize("order", ["known first", "newer first"])
def test_a_newer_copy_of_a_known_half_has_it_parked_where_the_settings_say_so(order):
    """A newer copy of a known half has the half parked, whichever of the two is read first."""
    limits = Limits(newer_records="park", body_bytes_max=1)
    world = Owners(limits=limits, listener=lambda _: State.COMMIT)
    known = world.half(7) if order == "known first" else None
    newer = Half(NEWER, name_of(7), "g", 0, 0, 0, 1, 1000, 3, False, "p:1", [TargetMessage("t", None, b"n", {})])
    world.broker.append("g", LogKind.HALF, 0, encode_half(newer))
    if known is None:
        world.half(7)
    world.start()
    world.run(60)
    assert ([(7, ParkCode.NEWER)], []) == (world.parked(), world.delivered())
    assert encode_half(newer) == decode_parked(world.log(LogKind.PARKED)[0].body).half


def test_a_copy_of_a_half_that_was_thought_lost_is_judged():
    """A half is judged if a frozen owner's copy of it lands before its entry as LOST is stored."""
    faults = Faults()
    faults.fate = lambda what, _: Fate.LOST if what == "parked" else Fate.DONE
    world = Owners(listener=lambda _: None, faults=faults)
    world.half(7)
    owner = world.start()
    world.run(3)
    world.kill(owner)
    world.half(8)
    world.trim(LogKind.HALF, 2)
    world.start()
    world.run(3)
    faults.fate = lambda *_: Fate.DONE
    world.listener = lambda _: State.COMMIT
    world.copied(7, folded_to=1)
    world.run(60)
    assert ([(7, ParkCode.CLOSED)], {b"b7", b"b8"}) == (world.parked(), set(world.delivered()))


@pytest.mark.parametrize("answer", State)
def test_what_is_in_hand_writes_nothing_once_its_partition_is_blocked(answer):
    """A check that ends after its partition was blocked writes no op and delivers nothing."""
    world = Owners(listener=lambda _: answer)
    world.half(7)
    world.call_s = 2.0
    owner = world.start()
    assert world.run(10, lambda: world.asked)
    newer = Half(NEWER, name_of(8), "g", 0, 0, 0, 1, 1000, 3, False, "p:1", [TargetMessage("t", None, b"n", {})])
    world.broker.append("g", LogKind.HALF, 0, encode_half(newer))
    world.run(30)
    assert owner.tenure.blocked
    assert ([], []) == (world.kinds(7), world.delivered())
