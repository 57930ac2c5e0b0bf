"""A checker that returns to a log of millions of records holds the undecided halves, not the closed ones."""

from __future__ import annotations

import random

import pytest
from txcore_conformance.owners import Owners, name_of

from txcore import Checker, Limits, Message, TransactionProducer
from txcore.checker import log_reader, read_halves
from txcore.checker.checkpoint import checkpoint_of
from txcore.checker.decide import Pending, terms_of
from txcore.checker.due_halves import STALE_MAX
from txcore.checker.partition_state import PartitionState
from txcore.checker.read_halves import LEFT_IN_MAX
from txcore.memory import Faults, MemoryBackend, MemoryBroker
from txcore.records import LogKind, Op, OpKind
from txcore.runtime.flow_loop import Loop

from .test_restart_cost import STATE, Listener

TERMS = terms_of(100.0, 0.0, 3, fenced=False)


def half(identity, position, generation, due_ms):
    """Return a half as the log reader makes it."""
    return Pending(
        transaction_id=identity,
        position=position,
        generation=generation,
        terms=TERMS,
        immune_until_ms=due_ms,
        due_ms=due_ms,
    )


def history(seed):
    """Return the records of two logs as they are read: halves, copies, ends, discards and resumes, in either order."""
    rng = random.Random(seed)
    events, generations = [], {}
    for number in range(rng.randrange(20, 120)):
        identity = rng.choice([number.to_bytes(16, "big")] * 6 + [*generations][-3:])
        generation = generations.setdefault(identity, 0)
        events.append(("half", number, identity, generation))
        fate = rng.random()
        if fate < 0.1:
            continue
        if fate < 0.2:
            events.append(("op", 0, Op(OpKind.DISCARD, identity, generation)))
            generations[identity] += 1
            continue
        for kind in rng.choice([[OpKind.COMMIT], [OpKind.ROLLBACK], [OpKind.CHECKED, OpKind.COMMIT], [OpKind.NUDGE]]):
            events.insert(rng.randrange(max(len(events) - 12, 0), len(events) + 1), ("op", 0, Op(kind, identity)))
    places = iter(range(1, len(events) + 1))
    return [(what, next(places), *rest) if what == "op" else (what, place, *rest) for what, place, *rest in events]


def answers(events):
    """Return the answers of a state after each of *events*."""
    state, found = PartitionState(), []
    for what, place, *rest in events:
        if what == "op":
            state.read_op(place, rest[0])
        elif not state.read_ended(place, *rest):
            state.read_half(place, half(rest[0], place, rest[1], 100.0))
        found.append(
            (
                [(after_count, each.transaction_id, each.generation) for after_count, each in state.oldest_open()],
                checkpoint_of(state, (), 0.0, 3_000) if place % 3 else None,
                state.replay_count,
                len(state.early_ops),
                sorted(state.pending),
            )
        )
    return found


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_what_is_left_out_changes_no_answer(first, monkeypatch):
    """A state that drops closed records gives the same answers as one that keeps every record."""
    for seed in range(first, first + 100):
        events = history(seed)
        monkeypatch.setattr(read_halves, "LEFT_IN_MAX", 10**9)
        whole = answers(events)
        monkeypatch.setattr(read_halves, "LEFT_IN_MAX", 2)
        assert whole == answers(events), seed


def test_a_long_log_after_an_undecided_half_takes_little_memory():
    """Closed records are counted, not kept; the bounds stay at the oldest half, and advance once that is closed."""
    state, count = PartitionState(), 5 * LEFT_IN_MAX
    state.read_half(1, half(bytes(16), 1, 0, 100.0))
    for number in range(2, count):
        identity = number.to_bytes(16, "big")
        state.read_half(number, half(identity, number, 0, 200.0))
        state.read_op(number, Op(OpKind.COMMIT, identity))
    assert len(state._newest) <= 2 * LEFT_IN_MAX
    assert len(state.line) <= 2 * LEFT_IN_MAX
    assert len(state._due) <= STALE_MAX + 2
    assert (count - 1, [count - 2]) == (state.replay_count, [after_count for after_count, _ in state.oldest_open()])
    made = checkpoint_of(state, (), 0.0, 0)
    assert (1, 2) == (made.half, made.op)
    state.read_op(count, Op(OpKind.COMMIT, bytes(16)))
    made = checkpoint_of(state, (), 0.0, 0)
    assert (count - 1, count - 1, 1) == (made.half, made.op, state.replay_count)


def test_a_final_op_after_a_discard_that_was_left_out_holds():
    """A resumed half stays closed by a COMMIT that came after a DISCARD which the state has dropped."""
    state = PartitionState()
    state.read_half(1, half(bytes(16), 1, 0, 100.0))
    state.read_op(1, Op(OpKind.DISCARD, bytes(16)))
    state.read_half(2, half(b"b" * 16, 2, 0, 100.0))
    state.pass_closed()
    state.read_op(2, Op(OpKind.COMMIT, bytes(16)))
    state.read_half(3, half(bytes(16), 3, 1, 100.0))
    assert [b"b" * 16] == [*state.pending]


def test_ops_do_not_run_far_ahead_of_their_halves(running_clock, monkeypatch):
    """The number of ops that wait for their halves is bounded: the reader of the op log waits for the half log."""
    monkeypatch.setattr(log_reader, "ORPHANS_MAX", 60)
    broker = MemoryBroker(clock=running_clock)
    backend = MemoryBackend(broker)
    producer = TransactionProducer(backend, "g", listener=Listener(), clock=running_clock, partition_count=1)
    sent = [each.transaction_id for each in producer.send_many([(Message("t", b"x"), STATE.UNKNOWN)] * 600)]
    for start in range(0, 600, 30):
        broker.append_ops("g", 0, [Op(OpKind.COMMIT, identity) for identity in sent[start : start + 30]])
    heights, read_halves = [], log_reader.LogReader.read_halves

    def looked_at(self):
        heights.append(len(self._tenure.state.early_ops))
        return read_halves(self)

    monkeypatch.setattr(log_reader.LogReader, "read_halves", looked_at)
    limits = Limits(read_count_max=20, poll_s=0.0005)
    checker = Checker(backend, "g", listener=Listener(), clock=running_clock, limits=limits)
    checker.run_once()
    checker.stop()
    assert (600, 0) == (checker.counts["halves"], heights[-1])
    assert 0 < max(heights) <= 60


@pytest.mark.parametrize("is_silent", [False, True])
def test_ops_wait_for_their_halves_however_few_are_read_at_a_time(monkeypatch, is_silent):
    """With small reads or a silent half log, too, the waiting ops are bounded and no op is lost."""
    monkeypatch.setattr(log_reader, "ORPHANS_MAX", 60)
    monkeypatch.setattr(log_reader, "MERGED_COUNT", 10)
    faults = Faults()
    world = Owners(faults=faults, limits=Limits(read_count_max=7, mark_timeout_s=30.0))
    for start in range(1, 400, 10):
        numbers = range(start, start + 10)
        for number in numbers:
            world.half(number)
        ops = [Op(OpKind.ROLLBACK, name_of(number), 0, "p:1") for number in numbers]
        world.broker.append_ops("g", 0, ops)
    if is_silent:
        faults.readable = lambda kind, _, count: count * (kind is LogKind.OP)
    owner, most = world.start(), [0]

    def looked():
        most[0] = max(most[0], len(owner.tenure.state.early_ops))
        return False

    world.run(10, looked)
    assert most[0] <= 60
    faults.readable = lambda kind, _, count: count
    world.run(30, looked)
    assert (0, 0, 0) == (owner.tenure.state.pending_count, len(owner.tenure.state.early_ops), len(world.asked))
    assert owner.stats().is_claimed
    assert most[0] <= 60


def test_ops_without_halves_hold_up_no_claim(monkeypatch):
    """Ops whose halves are before the checkpoint delay no claim: the end of the half log proves that none follows."""
    monkeypatch.setattr(log_reader, "ORPHANS_MAX", 5)
    world = Owners()
    for number in range(1, 100):
        world.op(OpKind.COMMIT, number)
    owner = world.start()
    world.run(1)
    assert owner.stats().is_claimed


def test_while_a_long_log_is_read_others_have_their_turn(running_clock, monkeypatch):
    """Each read of a long log is a turn of the loop of its own, so that the claim is polled between them."""
    broker = MemoryBroker(clock=running_clock)
    backend = MemoryBackend(broker)
    producer = TransactionProducer(backend, "g", listener=Listener(), clock=running_clock, partition_count=1)
    producer.send_many([(Message("t", b"x"), STATE.COMMIT)] * 600)
    turns, turn, read = [0], Loop.turn, log_reader.LogReader.read
    reads = []

    def counted(self):
        turns[0] += 1
        turn(self)

    def noted(self):
        count = read(self)
        if count:
            reads.append(turns[0])
        return count

    monkeypatch.setattr(Loop, "turn", counted)
    monkeypatch.setattr(log_reader.LogReader, "read", noted)
    limits = Limits(read_count_max=20, poll_s=0.0005)
    checker = Checker(backend, "g", listener=Listener(), clock=running_clock, limits=limits)
    checker.run_once()
    checker.stop()
    assert 30 <= len(reads) == len(set(reads))
