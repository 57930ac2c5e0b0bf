"""The journey of each transaction in the logs, and the half that a resume appends."""

from __future__ import annotations

import pytest
from txcore_conformance.oracle import journeys_of

from txcore import wire
from txcore.errors import TransactionStateError
from txcore.history.force_rules import force_op
from txcore.history.journey import topics_of
from txcore.history.parked_entries import half_in
from txcore.history.resuming import next_generation
from txcore.records import (
    REASON_SIZE_MAX,
    Forced,
    Half,
    LogRecord,
    Op,
    OpKind,
    ParkCode,
    Parked,
    Position,
    TargetMessage,
)

A, B = b"a" * 16, b"b" * 16
OURS, THEIRS = b"ours" * 4, b"them" * 4


def half(identity=A, generation=0, **fields):
    """Return a half with two messages."""
    messages = [TargetMessage("t2", None, b"1", {}), TargetMessage("t1", None, b"2", {})]
    return Half(1, identity, "g", 0, generation, 5, 100, 0, 3, fenced=False, by="p", messages=messages, **fields)


def parked(identity=A, generation=0, body=None, missing=()):
    """Return a parked record."""
    body = wire.encode_half(half(identity, generation)) if body is None else body
    return Parked(1, identity, generation, ParkCode.CHECKS_EXHAUSTED, "r", 3, "c", 0, OURS, body, list(missing))


def fold(halves=(), ops=(), park=(), **options):
    """Return journeys folded from records at positions 1, 2, 3…"""
    return journeys_of(
        0,
        [LogRecord(Position(n), wire.encode_half(h) if isinstance(h, Half) else h) for n, h in enumerate(halves, 1)],
        [LogRecord(Position(n), wire.encode_ops(o if isinstance(o, list) else [o])) for n, o in enumerate(ops, 1)],
        [LogRecord(Position(n), wire.encode_parked(p)) for n, p in enumerate(park, 1)],
        **options,
    )


CLAIM = Op(OpKind.CLAIM, OURS, token=OURS)
DISCARD = Op(OpKind.DISCARD, A, token=OURS, reason=ParkCode.CHECKS_EXHAUSTED)


def test_an_undecided_half_is_pending():
    """An undecided half is neither parked nor finished."""
    journey = fold([half()])[A]
    assert (True, False, 0) == (journey.is_pending, journey.is_parked, journey.final)


def test_the_first_final_op_is_the_end():
    """No op after the first final op changes the end."""
    journey = fold([half()], [Op(OpKind.ROLLBACK, A), Op(OpKind.COMMIT, A)])[A]
    assert (OpKind.ROLLBACK, False, 2) == (journey.final, journey.is_pending, len(journey.ops))


def test_a_discard_parks_and_a_resume_makes_it_pending_again():
    """A DISCARD parks a half up to its generation, and a resume makes the half pending again."""
    assert fold([half()], [CLAIM, DISCARD], [parked()])[A].is_parked
    resumed = fold([half(), half(generation=1)], [CLAIM, DISCARD], [parked()])[A]
    assert (True, 1) == (resumed.is_pending, resumed.generation)


def test_a_final_op_closes_a_parked_entry():
    """A final op takes a parked half off the list."""
    journey = fold([half()], [CLAIM, DISCARD, Op(OpKind.COMMIT, A)], [parked()])[A]
    assert not journey.is_parked


def test_what_a_replaced_checker_wrote_is_kept_but_does_not_count():
    """An op of a replaced checker is shown to operators and does not count."""
    stale = [Op(OpKind.CHECKED, A, token=THEIRS, count=2), Op(OpKind.DISCARD, A, token=THEIRS)]
    journey = fold([half()], [CLAIM, *stale, Op(OpKind.CHECKED, A, token=OURS, count=1)])[A]
    assert (1, True, 3) == (journey.count, journey.is_pending, len(journey.ops))


def test_the_token_in_force_at_the_start_is_given():
    """The caller gives the token in force at the start, because reading may begin after the first claim."""
    assert 2 == fold([half()], [Op(OpKind.CHECKED, A, token=THEIRS, count=2)], token=THEIRS)[A].count


def test_checks_of_an_earlier_generation_do_not_count():
    """A check of an earlier generation does not count for a resumed half."""
    journey = fold([half(generation=1)], [CLAIM, Op(OpKind.CHECKED, A, 0, token=OURS, count=3)])[A]
    assert 0 == journey.count


def test_merged_ops_reach_their_own_transactions():
    """Each op of a record that holds ops of several ids reaches its own transaction."""
    found = fold([half(), half(B)], [[Op(OpKind.COMMIT, A), Op(OpKind.ROLLBACK, B)]])
    assert (OpKind.COMMIT, OpKind.ROLLBACK) == (found[A].final, found[B].final)


def test_ticks_and_claims_are_no_transactions():
    """Ticks and claims are no transactions, because their nonces are not ids."""
    assert {} == fold([], [CLAIM, Op(OpKind.TICK, b"n" * 16)])


def test_only_one_transaction_may_be_asked_for():
    """A reader that asks for one transaction skips the others in all three logs."""
    found = fold([half(), half(B)], [Op(OpKind.COMMIT, A), Op(OpKind.COMMIT, B)], [parked(), parked(B)], only=B)
    assert [B] == list(found)


def test_a_poison_record_in_the_half_log_is_skipped():
    """A poison record in the half log is skipped; the parked log shows it."""
    assert [A] == list(fold([b"poison", half()]))


@pytest.mark.parametrize(("folded_to", "is_parked"), [(1, False), (5, True)])
def test_a_decision_that_only_a_copy_holds_voids_a_discard_after_it(folded_to, is_parked):
    """A DISCARD is void after a decision that only a copy holds, because retention may have removed the DECIDED."""
    copy = half(decided=OpKind.COMMIT, folded_to=folded_to)
    assert is_parked is fold([copy], [CLAIM, DISCARD], [parked()])[A].is_parked


class TestNextGeneration:
    def test_it_holds_the_half_with_a_fresh_budget_and_no_immunity(self):
        """The next generation has no checks, no immunity, and the journal folded up to the last op read."""
        journey = fold([half()], [CLAIM, DISCARD], [parked()])[A]
        copy = next_generation(journey, "anna", "the listener was down")
        assert (A, 1, -1) == (copy.transaction_id, copy.generation, copy.proved_at)
        assert (0, 0, 2, OURS) == (copy.immunity_ms, copy.count, copy.folded_to, copy.token)
        assert "anna: the listener was down" == copy.reason
        assert half().messages == copy.messages

    def test_only_missing_targets_are_sent_again(self):
        """The next generation names only the missing targets that the undeliverable park names."""
        journey = fold([half()], [CLAIM, DISCARD], [parked(missing=[1])])[A]
        assert [1] == next_generation(journey, "a", "r").missing

    def test_a_journaled_decision_goes_along(self):
        """The next generation keeps a journaled decision, so that the half is never asked about again."""
        decided = Op(OpKind.DECIDED, A, token=OURS, decision=OpKind.COMMIT)
        undeliverable = Op(OpKind.DISCARD, A, token=OURS, reason=ParkCode.UNDELIVERABLE)
        journey = fold([half()], [CLAIM, decided, undeliverable], [parked()])[A]
        assert OpKind.COMMIT == next_generation(journey, "a", "r").decided

    def test_the_half_may_be_gone_from_its_log(self):
        """A half that is gone from its log is resumed from the parked record, which holds it."""
        journey = fold([], [CLAIM, DISCARD], [parked()])[A]
        assert 1 == next_generation(journey, "a", "r").generation

    def test_what_a_carried_copy_has_counted_is_not_taken_along(self):
        """The next generation begins with 0 checks, whatever a carried copy has counted."""
        discard = Op(OpKind.DISCARD, A, 1, token=OURS, reason=ParkCode.CHECKS_EXHAUSTED)
        journey = fold([half(), half(generation=1, count=2, folded_to=1)], [CLAIM, discard], [parked(generation=1)])[A]
        assert 0 == next_generation(journey, "a", "r").count

    def test_it_is_above_all_that_was_discarded_or_closed(self):
        """The next generation is above each DISCARD and CLOSED, because an old one would close it again."""
        third = Op(OpKind.DISCARD, A, 2, token=OURS, reason=ParkCode.CHECKS_EXHAUSTED)
        assert 3 == next_generation(fold([half()], [CLAIM, third], [parked()])[A], "a", "r").generation
        closed = Parked(1, A, 4, ParkCode.CLOSED, "", 0, "c", 0, OURS, b"")
        assert 5 == next_generation(fold([half()], [CLAIM, DISCARD], [parked(), closed])[A], "a", "r").generation

    @pytest.mark.parametrize("code", [ParkCode.POISON, ParkCode.NEWER])
    def test_what_no_checker_could_read_keeps_its_immunity(self, code):
        """A half that no checker could read keeps its immunity, because its producer may still be at work."""
        entry = parked()
        entry.code = code
        journey = fold([half()], [CLAIM, DISCARD], [entry])[A]
        assert 100 == next_generation(journey, "a", "r").immunity_ms

    def test_poison_cannot_be_resumed(self):
        """Poison cannot be resumed, because there is no half in its record."""
        journey = fold([], [CLAIM, DISCARD], [parked(body=b"poison")])[A]
        assert half_in(journey.parked[0]) is None
        with pytest.raises(TransactionStateError, match="poison"):
            next_generation(journey, "a", "r")

    def test_a_long_reason_is_cut(self):
        """A long reason is cut, so that records stay within their overhead."""
        journey = fold([half()], [CLAIM, DISCARD], [parked()])[A]
        assert REASON_SIZE_MAX == len(next_generation(journey, "a", "r" * 9_999).reason)
        assert REASON_SIZE_MAX == len(force_op(journey, OpKind.COMMIT, 0, "a", 1, Forced.YES, "r" * 9_999).reason)


def test_a_request_names_operator_time_reason_and_decision():
    """A request names operator, time, reason and decision, and carries no token, because the owner executes it."""
    journey = fold([half()])[A]
    op = force_op(journey, OpKind.ROLLBACK, 2, "anna", 7, Forced.OVERRIDE, "why")
    assert (OpKind.FORCE, A, 2, "anna", 7, b"", OpKind.ROLLBACK, Forced.OVERRIDE, "why") == (
        op.kind,
        op.transaction_id,
        op.generation,
        op.by,
        op.at_ms,
        op.token,
        op.decision,
        op.forced,
        op.reason,
    )


def test_topics_are_listed_once_and_sorted():
    """The topics of a half are listed once and sorted, for operators' lists."""
    assert ("t1", "t2") == topics_of(half())
