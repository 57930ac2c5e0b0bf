"""A checker's part in halves that their partition's owner releases: what it publishes, keeps and parks (R17)."""

from __future__ import annotations

import msgspec
import pytest
from txcore_conformance.owners import Owners, name_of

from txcore import LocalTransactionState as State
from txcore import wire
from txcore.checker.carrying import copy_of
from txcore.checker.decide import Decision, Pending, decide, terms_of
from txcore.checker.early_ops import committed_in
from txcore.checker.partition_state import PartitionState
from txcore.history.folding import Journeys
from txcore.history.parked_entries import open_entry
from txcore.history.resuming import next_generation
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Fate, Faults
from txcore.op_rules import PlacedOp, excludes, outcome_of
from txcore.records import Half, LogKind, LogRecord, Op, OpKind, ParkCode, Parked, Position, TargetMessage
from txcore.wire import decode_parked, encode_half, encode_ops

PROFILES = [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG]
A, OURS = b"a" * 16, b"ours" * 4
COMMITTED, ROLLBACK, RELEASED = OpKind.COMMITTED, OpKind.ROLLBACK, OpKind.RELEASED


def read(*kinds):
    """Return the state after a half that its owner releases, and the ops in their order."""
    state = PartitionState()
    terms = terms_of(6_000.0, 1_000.0, 3, fenced=False, is_by_owner=True)
    state.read_half(Position(0), Pending(transaction_id=A, position=0, generation=0, terms=terms, immune_until_ms=9e9))
    for position, kind in enumerate(kinds, 1):
        state.read_op(Position(position), kind if isinstance(kind, Op) else Op(kind, A))
    return state


def test_a_committed_closes_nothing_and_is_due_at_once():
    """A half with a COMMITTED is undecided for checkpoints, and released before its immunity has ended."""
    state = read(COMMITTED)
    (pending,) = state.pending.values()
    assert (1, 1, OpKind.COMMIT) == (state.pending_count, pending.extras.final_at, pending.decision)
    assert Decision.FINISH is decide(pending, 0.0, must_carry=False)


@pytest.mark.parametrize(
    ("kinds", "end", "conflicts"),
    [
        ((COMMITTED, RELEASED), OpKind.COMMIT, []),
        ((RELEASED,), OpKind.COMMIT, []),
        ((ROLLBACK, COMMITTED), ROLLBACK, [(ROLLBACK, COMMITTED)]),
        ((COMMITTED, ROLLBACK, RELEASED), OpKind.COMMIT, [(OpKind.COMMIT, ROLLBACK)]),
        ((COMMITTED, RELEASED, ROLLBACK), OpKind.COMMIT, [(OpKind.COMMIT, ROLLBACK)]),
        ((COMMITTED, COMMITTED, RELEASED, RELEASED), OpKind.COMMIT, []),
    ],
)
def test_the_first_final_op_holds(kinds, end, conflicts):
    """COMMITTED decides as a final op does; the other end is a conflict that changes nothing."""
    state = read(*kinds)
    assert ({A: end}, conflicts) == (dict(state.closings()), [(first, op.kind) for first, op in state.conflicts])


def test_a_rollback_after_a_committed_leaves_the_half_to_its_owner():
    """A ROLLBACK after a COMMITTED does not close the half."""
    state = read(COMMITTED, ROLLBACK)
    assert [True] == [each.is_committed for each in state.pending.values()]


def test_a_discard_for_exhausted_checks_is_void_after_a_committed():
    """Both may be stored late: what is committed is released, and what was parked first stays parked."""
    discard = Op(OpKind.DISCARD, A, token=b"", reason=ParkCode.CHECKS_EXHAUSTED)
    assert 1 == read(COMMITTED, discard).pending_count
    parked = read(discard, COMMITTED, ROLLBACK)
    assert ({A: OpKind.DISCARD}, []) == (dict(parked.closings()), parked.ended_parked)


def test_a_rollback_waits_until_the_journal_of_a_copy_was_read():
    """A copy's journal may begin with a COMMITTED before what was read: a ROLLBACK ends it only after that."""
    state = PartitionState()
    terms = terms_of(0.0, 1_000.0, 3, fenced=False, is_by_owner=True)
    state.read_half(Position(5), Pending(transaction_id=A, position=5, generation=0, terms=terms), 3, OURS)
    state.read_op(Position(9), Op(ROLLBACK, A))
    (pending,) = state.pending.values()
    state.look_back(pending, Op(COMMITTED, A), Position(4), OURS)
    state.look_back(pending, Op(ROLLBACK, A), Position(9), OURS)
    assert (False, 4) == (pending.is_closed, pending.extras.final_at)


@pytest.mark.parametrize(
    ("ends", "is_ended"), [((COMMITTED,), False), ((COMMITTED, RELEASED), True), ((ROLLBACK,), False)]
)
def test_a_half_is_passed_over_only_with_its_own_end(ends, is_ended):
    """A half whose ops were read first is closed without being decoded if they release it; never by a late ROLLBACK."""
    state = PartitionState()
    for position, kind in enumerate(ends):
        state.read_op(Position(position), Op(kind, A))
    assert is_ended is state.read_ended(Position(0), A, 0, may_be_committed=True)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda each: each.name)
def test_a_committed_half_is_published_and_asked_about_by_no_owner(profile):
    """The owner releases what its producer committed, before its immunity has ended, and asks no listener."""
    world = Owners(profile, listener=lambda _: State.ROLLBACK)
    world.owned(7)
    world.op(COMMITTED, 7)
    world.start()
    world.run(60)
    kinds = [op.kind for record in world.log(LogKind.OP) for op in wire.decode_ops(record.body)]
    assert ([b"b7"], [], [RELEASED]) == (world.delivered(), world.asked, [each for each in kinds if each == RELEASED])


@pytest.mark.parametrize("profile", [KAFKA_LIKE, RABBITMQ_LIKE], ids=lambda each: each.name)
def test_a_committed_without_its_half_is_parked_where_the_half_log_lost_its_beginning(profile):
    """Retention has removed a half that was committed and not released: it is parked as LOST, and not forgotten."""
    world = Owners(profile)
    world.owned(7)
    world.op(COMMITTED, 7)
    world.half(8)
    world.broker.trim("g", LogKind.HALF, 0, world.log(LogKind.HALF)[-1].position)
    world.start()
    world.run(60)
    parked = [decode_parked(record.body) for record in world.log(LogKind.PARKED)]
    assert [(name_of(7), ParkCode.LOST)] == [(each.transaction_id, each.code) for each in parked][:1]


def test_a_stray_committed_of_a_whole_log_is_dropped():
    """A COMMITTED without a half says nothing where no half was removed: its half had ended before the checkpoint."""
    world = Owners(KAFKA_LIKE)
    world.half(8)
    world.op(COMMITTED, 7)
    world.start()
    world.run(60)
    parked = [decode_parked(record.body).transaction_id for record in world.log(LogKind.PARKED)]
    assert name_of(7) not in parked


def test_a_copy_says_where_its_committed_is():
    """A resumed copy of a parked half holds its COMMITTED, so that no owner judges it again."""
    half = Half(2, A, "g", 0, 0, 5, 100, 0, 3, False, "p", [TargetMessage("t", None, b"x", {})], release=1)
    fold = Journeys(0)
    fold.read_half(LogRecord(Position(0), encode_half(half), 1))
    for position, op in enumerate([Op(OpKind.DISCARD, A, reason=ParkCode.CHECKS_EXHAUSTED), Op(COMMITTED, A)]):
        fold.read_ops(LogRecord(Position(position), encode_ops([op]), 1))
    journey = fold.found[A]
    assert ("parked", True, OpKind.COMMIT, 0) == (journey.state, journey.awaits_release, journey.decided, journey.final)
    copy = next_generation(journey, "ann", "it was committed")
    assert (1, 2, 1, 1) == (copy.final_at, copy.version, copy.generation, copy.release)


@pytest.mark.parametrize(
    ("holder", "allowed"),
    [
        (COMMITTED, {"RELEASED", "placed DISCARD"}),
        (ROLLBACK, set()),
        (RELEASED, set()),
        (OpKind.DISCARD, set()),
    ],
)
def test_what_may_follow_a_stored_end(holder, allowed):
    """Where resolutions are unique, only its RELEASED and a DISCARD by a reader of it follow a COMMITTED."""
    ops = {kind.name: Op(kind, A) for kind in (OpKind.COMMIT, ROLLBACK, COMMITTED, RELEASED, OpKind.DISCARD)}
    ops["placed DISCARD"] = PlacedOp(OpKind.DISCARD, A, position=Position(3))
    assert allowed == {name for name, op in ops.items() if not excludes(holder, 0, op)}


def test_the_outcome_of_each_kind():
    """COMMITTED and RELEASED say COMMIT, every other kind itself."""
    assert [OpKind.COMMIT] * 3 == [outcome_of(kind) for kind in (OpKind.COMMIT, COMMITTED, RELEASED)]
    assert (ROLLBACK, OpKind.DISCARD) == (outcome_of(ROLLBACK), outcome_of(OpKind.DISCARD))


class Unreachable(Faults):
    """The faults of a broker that answers no publish of a target."""

    def fate(self, what, transaction_ids):
        """Lose each target."""
        return Fate.LOST if what == "target" else Fate.DONE


@pytest.mark.parametrize(("profile", "after_takeover_s"), [(KAFKA_LIKE, 150), (RABBITMQ_LIKE, 30)])
def test_stats_show_the_longest_wait_for_a_release(profile, after_takeover_s):
    """It counts from the COMMITTED, which comes late here; without the broker's time, from where it was read."""
    world = Owners(profile, faults=Unreachable(), listener=lambda _: State.UNKNOWN)
    world.owned(7, check_max=1_000)
    world.owned(8, check_max=1_000)
    owner = world.start()
    world.run(80)
    assert 0 == owner.stats().unreleased_age_s
    assert 80 == pytest.approx(owner.stats().oldest_age_s, abs=1)
    world.op(COMMITTED, 7)
    world.run(120)
    assert 120 == pytest.approx(owner.stats().unreleased_age_s, abs=2)
    assert 200 == pytest.approx(owner.stats().owned_s, abs=2)
    following = world.restart(owner, 30)
    assert after_takeover_s == pytest.approx(following.stats().unreleased_age_s, abs=2)
    assert 30 == pytest.approx(following.stats().owned_s, abs=2)


def test_a_lost_entry_replaces_none_that_has_messages():
    """An entry LOST has no messages, so an entry of the same generation that has them stays the open one."""
    whole = Parked(1, A, 0, ParkCode.UNDELIVERABLE, "", 0, "c", 0, b"", b"half")
    lost = Parked(1, A, 0, ParkCode.LOST, "", 0, "c", 0, b"", b"")
    later = msgspec.structs.replace(lost, generation=1)
    assert [whole, lost, later] == [open_entry(whole, lost), open_entry(None, lost), open_entry(whole, later)]


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ([COMMITTED], (0, 0)),
        ([COMMITTED, RELEASED], None),
        ([ROLLBACK, COMMITTED], None),
        ([Op(OpKind.DISCARD, A, reason=ParkCode.CHECKS_EXHAUSTED), COMMITTED], None),
        ([COMMITTED, Op(OpKind.DISCARD, A, reason=ParkCode.CHECKS_EXHAUSTED)], (0, 0)),
        ([COMMITTED, Op(OpKind.DISCARD, A, reason=ParkCode.UNDELIVERABLE)], None),
    ],
)
def test_a_committed_whose_half_is_gone_is_looked_at(ops, found):
    """It leaves the half undecided, unless the half has ended or its entry holds its messages."""
    placed = [(Position(at), op if isinstance(op, Op) else Op(op, A)) for at, op in enumerate(ops)]
    assert found == committed_in(placed)


@pytest.mark.parametrize("has_gap", [False, True])
def test_a_copy_names_no_committed_that_need_not_be_the_first_end(has_gap):
    """Where retention has removed ops of a half before its COMMITTED was read, a ROLLBACK may have come first."""
    world = Owners(KAFKA_LIKE, faults=Unreachable())
    half = world.owned(7, check_max=1_000)
    at = world.op(COMMITTED, 7)
    owner = world.start()
    world.run(5)
    pending = owner.tenure.state.pending[name_of(7)]
    if has_gap:
        pending.note(park=(ParkCode.COVERAGE_GAP, "ops are gone"))
    assert (-1 if has_gap else at) == copy_of(owner.tenure, half, pending).final_at
