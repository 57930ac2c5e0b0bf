"""Reading a group without owning it: its undecided halves, on a broker that is idle, is busy, or has lost records."""

from __future__ import annotations

import functools
import itertools
from contextlib import closing

import pytest

import txcore
from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.errors import BackendTimeoutError, BackendUnavailableError, TransactionStateError, UsageError
from txcore.history.copies import is_copy
from txcore.history.folding import Journeys
from txcore.history.log_survey import Survey, existing_partitions
from txcore.memory import RABBITMQ_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.operator.awaited import Awaited
from txcore.port import SettlesEach, resolved
from txcore.records import (
    Half,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    ParkCode,
    Parked,
    Resolution,
    Status,
    TargetMessage,
)
from txcore.results import EndState

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
TOKEN = b"t" * 16


class Batch(SettlesEach):
    """A batch that keeps its outcomes."""

    def __init__(self, *items):
        self.items = items
        self.outcomes = {}

    def settle(self, index, outcome):
        self.outcomes[index] = outcome


class World:
    """One group with two partitions; records are appended by hand."""

    def __init__(self, profile=STRONG):
        self.broker = MemoryBroker(profile)
        self.backend = MemoryBackend(self.broker)
        self.backend.ensure_group("g", 2).result()
        self.operator = txcore.Operator(self.backend, "g", by="anna")

    def survey(self, **options):
        return closing(
            Survey(
                options.pop("backend", self.backend),
                "g",
                clock=SystemClock(),
                randomness=system_randomness(),
                **options,
            )
        )

    def half(self, identity=A, generation=0, partition=0, **fields):
        messages = [TargetMessage("t", None, b"body", {})]
        made = Half(
            1,
            identity,
            "g",
            partition,
            generation,
            SystemClock().wall_ms(),
            100,
            0,
            0,
            fenced=False,
            by="p",
            messages=messages,
            **fields,
        )
        if is_copy(made):
            self.backend.mark("g", partition, Op(OpKind.TICK, wire.proof_of(made))).result()
            made.proved_at = int(self.broker.log("g", LogKind.OP, partition)[-1].position)
        record = HalfRecord("g", partition, identity, generation, wire.encode_half(made), messages)
        batch = Batch(record)
        self.backend.append_halves(batch)
        assert batch.outcomes[0].status is Status.DURABLE
        return record

    def op(self, record, kind, **fields):
        park = fields.pop("park", None)
        missing = fields.pop("missing", ())
        body = b""
        if park:
            entry = Parked(
                1, record.transaction_id, record.generation, park, "r", 3, "c", 5, TOKEN, record.body, list(missing)
            )
            body = wire.encode_parked(entry)
            fields.setdefault("reason", park)
        made = Op(kind, record.transaction_id, record.generation, "c", 5, **fields)
        batch = Batch(Resolution(record, made, (), body, "c", flush=True))
        self.backend.release(batch)
        return batch.outcomes[0]

    def claim(self, partition=0):
        self.backend.mark("g", partition, Op(OpKind.CLAIM, TOKEN, 0, "checker-1", 7, TOKEN)).result()

    def park(self, record, code=ParkCode.CHECKS_EXHAUSTED, **fields):
        self.claim(record.partition)
        return self.op(record, OpKind.DISCARD, token=TOKEN, park=code, **fields)


@pytest.fixture(params=[STRONG, RABBITMQ_LIKE], ids=["strong", "no-server-time"])
def world(request):
    return World(request.param)


def test_a_survey_sees_what_is_undecided_and_forgets_what_has_ended(world):
    """The survey covers all partitions; a late copy of a finished half does not count as a new one."""
    world.half(A)
    world.op(world.half(B, partition=1), OpKind.COMMIT)
    with world.survey(forget_finished=True) as survey:
        survey.catch_up()
        assert [A] == [journey.transaction_id for journey in survey.journeys()]
        world.half(B, generation=1, partition=1)
        survey.catch_up()
        assert [A] == [journey.transaction_id for journey in survey.journeys()]


def test_a_survey_is_kept_up_to_date(world):
    """Polling reads the new records, and shows the owner of a partition."""
    record = world.half(A)
    with world.survey() as survey:
        survey.catch_up()
        assert survey.find(A).is_pending
        assert {} == survey.owners
        world.claim()
        world.op(record, OpKind.ROLLBACK)
        while survey.poll():
            pass
        assert OpKind.ROLLBACK == survey.find(A).final
        assert ("checker-1", 7) == (survey.owners[0].by, survey.owners[0].at_ms)
        assert survey.find(B) is None


class Instead:
    """A backend whose readers read by another function; all else is passed on to the backend."""

    def __init__(self, backend, read):
        self._backend, self._read = backend, read
        self.capabilities = backend.capabilities

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def read(self, group, kind, partition, start=None):
        reader = self._backend.read(group, kind, partition, start)
        read = functools.partial(self._read, reader, kind, partition)
        return ReadInstead(reader, read)


class ReadInstead:
    def __init__(self, reader, read):
        self._reader, self.read = reader, read

    def __getattr__(self, name):
        return getattr(self._reader, name)


def test_a_group_that_never_falls_quiet_is_read_all_the_same(world):
    """Reading a log that grows with each read ends at the place where the log ended when the reading began."""
    count = itertools.count(1)

    def read(reader, kind, partition, count_max):
        if kind is LogKind.HALF and not partition:
            world.half(next(count).to_bytes(16, "big"))
        return reader.read(count_max)

    with world.survey(backend=Instead(world.backend, read), timeout_s=5.0) as survey:
        survey.catch_up()
        assert survey.halves_read >= 1
    assert next(count) < 10


@pytest.mark.parametrize("silent", list(LogKind))
def test_a_log_that_is_silent_for_a_while_is_read_to_its_end(world, silent):
    """A survey finds the records that were stored before the call, however many reads are empty."""
    world.half(A)
    world.park(world.half(B))
    reads = itertools.count()

    def read(reader, kind, partition, count_max):
        if kind is silent and next(reads) < 120:
            return []
        return reader.read(count_max)

    with world.survey(backend=Instead(world.backend, read)) as survey:
        survey.catch_up()
        assert survey.find(A).is_pending
        assert (True, 1) == (survey.find(B).is_parked, len(survey.find(B).parked))


def test_a_half_that_came_after_the_tick_is_not_shown_without_its_end(world, monkeypatch):
    """A half after the tick is not shown as pending, because its end may be after the tick, too."""
    monkeypatch.setattr("txcore.history.log_survey.READ_COUNT_MAX", 1)
    count = itertools.count(1)

    class Busy(Instead):
        def mark(self, *args):
            marked = self._backend.mark(*args)
            halves = [world.half(next(count).to_bytes(16, "big"), partition=args[1]) for _ in range(20)]
            for half in reversed(halves):
                world.op(half, OpKind.ROLLBACK)
            return marked

    backend = Busy(world.backend, lambda reader, _kind, _partition, count_max: reader.read(count_max))
    with world.survey(backend=backend) as survey:
        survey.catch_up()
        assert [] == [journey for journey in survey.journeys() if journey.is_pending]


def test_an_unknown_group_is_said_to_be_unknown_and_not_created(world):
    """A group that does not exist is reported as unknown, and a misspelt name creates no group."""
    with pytest.raises(UsageError, match="no group 'gg'"):
        existing_partitions(world.backend, "gg")
    with pytest.raises(UsageError, match="no group 'gg'"):
        txcore.Operator(world.backend, "gg").pending()
    with pytest.raises(UsageError, match="no group 'gg'"):
        existing_partitions(world.backend, "gg")
    assert 2 == existing_partitions(world.backend, "g")


def test_a_broker_that_says_nothing_ends_the_reading(world):
    """A survey without an answer raises the broker's own error, or a time-out if the broker gives none."""

    class Silent:
        def __init__(self, trouble=None):
            self.capabilities = world.backend.capabilities
            self.trouble = trouble

        def __getattr__(self, name):
            return getattr(world.backend, name)

        def read(self, group, kind, partition, start=None):
            outer = self

            class Reader:
                passed = 0

                def read(self, count_max):
                    if outer.trouble:
                        raise outer.trouble
                    return []

                def end(self):
                    return resolved(1)

                def close(self):
                    pass

            return Reader()

    with (
        world.survey(backend=Silent(), timeout_s=0.1) as survey,
        pytest.raises(BackendTimeoutError, match="logs of group 'g'"),
    ):
        survey.catch_up()
    with (
        world.survey(backend=Silent(BackendUnavailableError("gone fishing")), timeout_s=0.1) as survey,
        pytest.raises(BackendUnavailableError, match="gone fishing"),
    ):
        survey.catch_up()


def test_a_tick_that_the_broker_refuses_is_its_error(world):
    """A survey raises the broker's error if the broker refuses the tick."""

    class Refusing:
        def __init__(self):
            self.capabilities = world.backend.capabilities

        def __getattr__(self, name):
            return getattr(world.backend, name)

        def mark(self, *arguments):
            return resolved(Outcome(Status.REFUSED, BackendUnavailableError("the disk is full")))

    with world.survey(backend=Refusing()) as survey, pytest.raises(BackendUnavailableError, match="the disk is full"):
        survey.catch_up()


def test_logs_whose_beginning_is_gone_are_read_from_what_is_left(world):
    """A log whose beginning is gone is read from its first record."""
    world.half(A)
    world.half(B)
    world.broker.trim("g", LogKind.HALF, 0, 2)
    with world.survey() as survey:
        survey.catch_up()
        assert [B] == [journey.transaction_id for journey in survey.journeys()]


def test_progress_is_reported():
    """A long reading reports a growing number of records."""
    world = World()
    for number in range(5):
        world.half(number.to_bytes(16, "big"))
    counts = []
    operator = txcore.Operator(world.backend, "g", on_progress=counts.append)
    operator.pending()
    assert counts == sorted(counts)
    assert counts[-1] >= 5


def test_nothing_parked_means_that_the_old_log_is_not_read():
    """Without a parked half, each log is read once, from its checkpoint."""
    world = World()
    reads = []
    original = world.backend.read
    world.backend.read = lambda group, kind, partition, start=None: (
        reads.append((kind, start)) or original(group, kind, partition, start)
    )
    assert [] == world.operator.parked()
    assert 6 == len(reads)


def test_a_carried_copy_brings_its_checks_and_its_decision(world):
    """A survey from the checkpoint gets checks and decision of a half from its carried copy."""
    world.half(A, folded_to=3, count=2, decided=int(OpKind.COMMIT))
    with world.survey() as survey:
        survey.catch_up()
        journey = survey.find(A)
        assert (2, OpKind.COMMIT, False) == (journey.count, journey.decided, journey.has_beginning)


def test_checks_count_in_whatever_order_the_two_logs_are_read():
    """A check counts even if its op is read before its half."""
    fold = Journeys(0, TOKEN)
    body = World().half(A).body
    fold.read_ops(LogRecord(1, wire.encode_ops([Op(OpKind.CHECKED, A, token=TOKEN, count=2)])))
    assert 0 == fold.found[A].count
    fold.read_half(LogRecord(1, body))
    assert 2 == fold.found[A].count


@pytest.mark.parametrize("log", ["half", "ops", "parked"])
def test_what_cannot_be_read_is_skipped(log):
    """A survey skips a record that it cannot read."""
    fold = Journeys(0)
    assert not getattr(fold, f"read_{log}")(LogRecord(1, b"\xc1 no record"))
    assert {} == fold.found


class TestForce:
    def test_a_journaled_commit_is_not_turned_into_a_rollback(self, world):
        """A journaled COMMIT cannot be rolled back or overridden, because its messages may be out."""
        record = world.half(A)
        world.claim()
        world.op(record, OpKind.DECIDED, token=TOKEN, decision=OpKind.COMMIT)
        world.park(record, ParkCode.UNDELIVERABLE, missing=[0])
        with pytest.raises(TransactionStateError, match="COMMIT is journaled and messages may be out"):
            world.operator.rollback(A, "away with it")
        with pytest.raises(TransactionStateError, match="COMMIT is journaled already"):
            world.operator.commit(A, "again", override_fence=True)
        assert 1 == len(world.operator.show(A).halves)
        assert [OpKind.DECIDED, OpKind.DISCARD] == [op.kind for _, op in world.operator.show(A).ops]
        assert EndState.UNKNOWN is world.operator.commit(A, "the topic is back").state
        assert 1 == world.operator.show(A).generation

    def test_a_refusal_is_returned_with_its_reason(self, world):
        """The result is the owner's reply after this operator's request, with its reason, not an older reply."""
        record = world.half(A)
        world.claim()
        world.op(record, OpKind.FORCE, token=TOKEN, reason="an old refusal", decision=OpKind.COMMIT)
        world.operator.rollback(A, "why")
        assert world.operator.show(A).reply_to("anna") is None
        assert world.operator.show(A).request.reason == "why"
        assert EndState.UNKNOWN is world.operator.rollback(A, "why", wait_s=0.05).state
        world.op(record, OpKind.FORCE, token=TOKEN, reason="refused: the fence says COMMIT", decision=OpKind.ROLLBACK)
        with closing(world.operator.watch([A], from_checkpoint=True)) as survey:
            (result,) = world.operator.follow(survey, [Awaited(A, OpKind.ROLLBACK, 0)], 1.0)
        assert (EndState.CONFLICT, "refused: the fence says COMMIT") == (result.state, str(result.error))
        assert world.operator.show(A).request is None

    def test_many_are_followed_at_once(self, world):
        """Each result is returned when its end is read; requests without an end are UNKNOWN."""
        records = {identity: world.half(identity) for identity in (A, B, C)}
        with closing(world.operator.watch([A, B, C], from_checkpoint=True)) as survey:
            awaited = [Awaited.after(survey.find(identity), OpKind.COMMIT) for identity in (A, B, C)]
            for identity in (A, B, C):
                world.operator.ask(survey.find(identity), OpKind.COMMIT, "why")
            world.op(records[B], OpKind.COMMIT)
            world.op(records[A], OpKind.ROLLBACK)
            ends = {end.transaction_id: end.state for end in world.operator.follow(survey, awaited, 0.1)}
        assert {A: EndState.CONFLICT, B: EndState.ACCEPTED, C: EndState.UNKNOWN} == ends

    def test_a_half_that_is_parked_again_is_reported(self, world):
        """A commit whose topic still refuses ends when the half is parked again, before the end of the wait."""
        world.park(world.half(A))
        with closing(world.operator.watch([A], from_checkpoint=False)) as survey:
            journey = survey.find(A)
            awaited = Awaited.after(journey, OpKind.COMMIT)
            world.operator.ask(journey, OpKind.COMMIT, "why")
            assert 1 == awaited.generation
            (early,) = world.operator.follow(survey, [awaited], 0.05)
            assert EndState.UNKNOWN is early.state
            world.park(world.half(A, generation=1), ParkCode.UNDELIVERABLE)
            (result,) = world.operator.follow(survey, [awaited], 1.0)
        assert (EndState.CONFLICT, "parked: UNDELIVERABLE") == (result.state, str(result.error))

    def test_any_end_of_a_resumed_half_will_do(self, world):
        """Any end of a resumed half is accepted, because a resume asks for no particular one."""
        world.park(world.half(A))
        with closing(world.operator.watch([A], from_checkpoint=False)) as survey:
            awaited = Awaited.after(survey.find(A), None)
            world.operator.resume_journey(survey.find(A))
            world.op(world.half(A, generation=1), OpKind.ROLLBACK)
            (result,) = world.operator.follow(survey, [awaited], 1.0)
        assert EndState.ACCEPTED is result.state

    def test_a_rollback_takes_poison_off_the_list(self, world):
        """A rollback takes poison off the list at once; a second one is ALREADY_DONE, and a commit is refused."""
        poison = HalfRecord("g", 0, A, 0, b"\xc1 no half", [])
        world.park(poison, ParkCode.POISON)
        assert [A] == [each.transaction_id for each in world.operator.parked()]
        with pytest.raises(TransactionStateError, match="poison"):
            world.operator.commit(A, "why")
        assert EndState.ACCEPTED is world.operator.rollback(A, "a stray script").state
        assert [] == world.operator.parked()
        assert EndState.ALREADY_DONE is world.operator.rollback(A, "again").state
        last = world.operator.show(A).ops[-1][1]
        assert (OpKind.ROLLBACK, "anna", "a stray script") == (last.kind, last.by, last.reason)

    def test_a_request_for_what_is_finished_writes_nothing(self, world):
        """A request about a finished half writes no op, and its result is the end that holds."""
        world.op(world.half(A), OpKind.ROLLBACK)
        assert EndState.ALREADY_DONE is world.operator.rollback(A, "why").state
        assert EndState.CONFLICT is world.operator.commit(A, "why", wait_s=5).state
        assert [OpKind.ROLLBACK] == [op.kind for _, op in world.operator.show(A).ops]


def test_resuming_what_was_read_just_now(world):
    """`resume_journey` resumes a half without reading it again, and refuses a half that is not parked."""
    record = world.half(A)
    with pytest.raises(TransactionStateError, match="pending already"):
        world.operator.resume_journey(world.operator.show(A), "why")
    world.park(record)
    assert 1 == world.operator.resume_journey(world.operator.show(A), "why")
    assert ["anna: why"] == [half.reason for half in world.operator.show(A).halves if half.generation]
    assert [] == world.operator.parked()
