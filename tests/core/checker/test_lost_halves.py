"""Halves that a checkpoint still names and the half log no longer holds; `test_log_reader` has one parked as LOST."""

from __future__ import annotations

from unittest import mock

import pytest
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.owners import Owners

from txcore import wire
from txcore.checker.checkpoint import NoteEntry, noted_in
from txcore.checker.limits import Limits
from txcore.checker.log_reader import LogReader
from txcore.checker.lost_halves import LostHalves
from txcore.errors import BackendTimeoutError, DataLossError
from txcore.fence import FenceAnswer, FenceReading
from txcore.memory import Fate, Faults
from txcore.memory.reading import MemoryReader
from txcore.message import LocalTransactionState
from txcore.port import failed, resolved
from txcore.records import Checkpoint, LogKind, OpKind, ParkCode, Position

A, B = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    ("read", "expected"),
    [([], [A, B]), ([(A, 0), (B, 2)], []), ([(A, 1)], [B]), ([(A, 0), (B, 1)], [B]), ([(B, 3)], [A])],
)
def test_what_was_not_read_is_lost(read, expected):
    """A half of the note is lost unless a copy of the same or a later generation was read."""
    lost = LostHalves(None, [NoteEntry(A, 0, 0, 0), NoteEntry(B, 2, 0, 0)])
    lost.lose_beginning(5)
    for identity, generation in read:
        lost.found(identity, generation)
    assert expected == list(lost.missing)
    assert bool(expected) == lost.holds_checkpoint()


@pytest.mark.parametrize("damaged", [b"", b"\xc1garbage", b"\x91\x94\xc4\x01a\x00\x00\x00", b"\x91\x01"])
def test_a_damaged_note_names_nothing(damaged):
    """A damaged note names no half, because a note is only a hint."""
    assert [] == noted_in(Checkpoint(None, None, b"", damaged))


def gone_half(**options):
    """Return a partition whose half 7 a checkpoint names and retention has taken while no owner ran."""
    world = Owners(**options)
    world.half(7)
    owner = world.start()
    world.run(3)
    world.kill(owner)
    for number in range(20, 24):
        world.half(number)
        world.op(OpKind.ROLLBACK, number)
    world.trim(LogKind.HALF, 3)
    return world


class Unanswered(Faults):
    """Faults that store no parked record while `is_on`."""

    is_on = False

    def fate(self, what, transaction_ids):
        return Fate.LOST if self.is_on and what == "parked" else Fate.DONE


def drained(world, faults):
    """Let an owner give up before it has judged a half."""
    world.start().tenure.is_draining = True
    world.run(5)


def killed(world, faults):
    """Kill an owner before the entry is stored."""
    faults.is_on = True
    owner = world.start()
    world.run(3)
    world.kill(owner)
    faults.is_on = False


def silent(world, faults):
    """Kill an owner that gets no answer to the question where the half log ends."""
    with mock.patch.object(MemoryReader, "end", return_value=failed(BackendTimeoutError("away"))):
        owner = world.start()
        world.run(3)
        world.kill(owner)


@pytest.mark.parametrize("hindered", [drained, killed, silent])
def test_a_lost_half_is_parked_however_its_first_finder_ends(hindered):
    """Each checkpoint names a lost half until its entry is stored and read back, so the next owner parks it."""
    faults = Unanswered()
    world = gone_half(faults=faults, listener=lambda _: None)
    hindered(world, faults)
    world.restart(world.start())
    assert [(7, ParkCode.LOST)] == world.parked()


def test_a_lost_half_that_waits_reopens_none_that_ended():
    """A lost half has no place in the half log, so no checkpoint is made of its place."""
    faults = Unanswered()
    world = gone_half(faults=faults, listener=lambda _: None)
    killed(world, faults)
    checkpoint = world.checkpoint()
    assert "" == judge_checkpoint(checkpoint, world.log(LogKind.HALF), world.log(LogKind.OP))
    world.listener = lambda _: LocalTransactionState.COMMIT
    world.start()
    world.run(60)
    assert ([], [7]) == (world.delivered(), world.listed())


def test_the_end_of_a_half_that_is_gone_is_kept_until_the_half_log_was_read():
    """The end of a half that is gone is kept until the half log was read: it proves that the half is not lost."""
    world = gone_half(listener=lambda _: None)
    world.op(OpKind.ROLLBACK, 7)
    with mock.patch.object(LogReader, "read_to_end", side_effect=late):
        world.start()
        world.run(3)
    world.run(10)
    assert ([], []) == (world.parked(), world.delivered())


def late():
    """Return False, as a reading does that did not reach the end in time."""
    yield 0.1
    return False


@pytest.mark.parametrize("fenced", [False, True])
def test_a_half_that_is_gone_under_a_running_owner_is_parked(fenced):
    """A half that is due and gone from the half log is parked as LOST by a running owner."""
    limits = Limits(body_bytes_max=1, checkpoint_interval_s=0.0)
    world = Owners(limits=limits, fence=Committed(), listener=lambda _: LocalTransactionState.COMMIT)
    world.half(7, immunity_ms=5_000, fenced=fenced)
    world.half(8, immunity_ms=5_000)
    world.start()
    world.run(2)
    world.half(9)
    world.trim(LogKind.HALF, 2)
    world.run(60)
    assert [(7, ParkCode.LOST)] == world.parked()
    assert {b"b8", b"b9"} == set(world.delivered())
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))


def test_a_record_that_cannot_be_read_for_a_while_is_not_lost():
    """A record that cannot be read is not lost until the log begins after its place."""
    world = Owners(limits=Limits(body_bytes_max=1), listener=lambda _: LocalTransactionState.COMMIT)
    world.half(7, immunity_ms=5_000)
    world.half(8)
    world.start()
    world.run(2)
    with mock.patch.object(MemoryReader, "fetch", return_value=resolved({})):
        world.run(30)
    assert [] == world.parked()
    world.run(60)
    assert {b"b7", b"b8"} == set(world.delivered())


def test_poison_that_is_still_in_the_log_is_not_lost():
    """The checkpoint names it as undecided; once it was read again, it is parked with its bytes."""
    faults = Unanswered()
    world = Owners(faults=faults, listener=lambda _: None)
    world.half(7)
    world.broker.append("g", LogKind.HALF, 0, b"\xc1 no half")
    killed(world, faults)
    world.trim(LogKind.HALF, 2)
    world.start()
    world.run(60)
    entries = [wire.decode_parked(record.body) for record in world.log(LogKind.PARKED)]
    assert {("LOST", b""), ("POISON", b"\xc1 no half")} == {(entry.code, entry.half) for entry in entries}


def test_an_end_before_the_half_log_lost_its_beginning_closes_its_entry(monkeypatch):
    """It was written under the owner's claim, so no owner before it has closed the entry of the parked half."""
    faults = Faults()
    world = Owners(faults=faults, check_max=1)
    world.half(7, check_max=1)
    owner = world.start()
    world.run(30)
    world.half(8)
    world.op(OpKind.ROLLBACK, 8)
    world.run(10)
    world.restart(owner, 10)
    faults.readable = lambda kind, _, count: count * (kind is LogKind.OP)
    world.half(9)
    world.op(OpKind.COMMIT, 7)
    world.run(5)
    faults.readable = lambda kind, _, count: count
    read, losses = MemoryReader.read, [DataLossError(Position(3), Position(3))]

    def lossy(self, count_max):
        if self._key[1] is LogKind.HALF and losses:
            raise losses.pop()
        return read(self, count_max)

    monkeypatch.setattr(MemoryReader, "read", lossy)
    world.run(10)
    assert (7, ParkCode.CLOSED) in world.parked()


class Committed:
    """A fence that answers COMMIT for each transaction."""

    is_async = False

    def check(self, identities, group, databases=None):
        return {identity: FenceReading(FenceAnswer.COMMIT) for identity in identities}
