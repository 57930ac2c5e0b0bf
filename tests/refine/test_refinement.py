"""A partition's two logs, read in any pieces and in any order, end in the state of the whole logs."""

from __future__ import annotations

from txcore_conformance.refine import folding, owning
from txcore_conformance.refine.__main__ import play
from txcore_conformance.refine.history import GROUP
from txcore_conformance.refine.replay import judge_logs
from txcore_conformance.refine.whole import Placed, truth_of

from txcore import wire
from txcore.history.folding import Journeys
from txcore.records import Checkpoint, Half, LogRecord, Op, OpKind, ParkCode, Position

A, TOKEN = b"a" * 16, b"t" * 16
EXHAUSTED = ParkCode.CHECKS_EXHAUSTED
FOLDED, OWNED = 5_000, 150
"""Numbers of histories of the two layers; each layer takes about two seconds."""


def half(generation=0, folded_to=-1, **fields):
    """Return a half, or a copy of one."""
    copy = {"folded_to": folded_to, "token": TOKEN if folded_to >= 0 else b""} | fields
    return Half(1, A, GROUP, 0, generation, 0, 0, 0, 3, fenced=False, by="p", messages=[], **copy)


def op(kind, generation=0, token=TOKEN, **fields):
    """Return an op of the transaction."""
    return Op(kind, A, generation, token=token, **fields)


CLAIM = Op(OpKind.CLAIM, TOKEN, token=TOKEN)


def log(*bodies):
    """Return records with ascending positions."""
    return [LogRecord(Position(place), body) for place, body in enumerate(bodies)]


def logs(halves, ops):
    """Return both logs, one op in a record."""
    return log(*map(wire.encode_half, halves)), log(*(wire.encode_ops([each]) for each in ops))


def test_the_fold_says_what_the_whole_logs_say():
    """The fold agrees with the whole logs in any interleaving, with copies, claims, merged records and restarts."""
    assert [] == play((1, 0, FOLDED)).bad


def test_real_owners_say_what_the_whole_logs_say():
    """Owners that are silent, frozen or killed agree with the whole logs; no checkpoint passes an undecided half."""
    assert [] == play((2, 0, OWNED)).bad


def test_a_seed_replays_its_history():
    """The same seed writes the same logs and has the same judgement."""
    assert folding.describe(7) == folding.describe(7)
    assert owning.play(7) == owning.play(7)


class TestWhatTheWholeLogsSay:
    """The rules of the oracle, one by one."""

    @staticmethod
    def truth_in(halves, *ops, token=TOKEN):
        """Return the truth of these logs, all ops under one claim."""
        return truth_of(halves, [Placed(place, token, each) for place, each in enumerate(ops)])

    def test_the_first_final_op_wins_whatever_its_claim(self):
        """The first final op holds under any claim, and a later one changes nothing."""
        truth = self.truth_in([half()], op(OpKind.ROLLBACK, token=b"old"), op(OpKind.COMMIT))
        assert (OpKind.ROLLBACK, 0) == (truth.closed_by, truth.closed_at)

    def test_an_op_under_an_outdated_claim_does_not_count(self):
        """No check, decision or discard under an outdated claim counts."""
        kinds = (OpKind.CHECKED, OpKind.DECIDED, OpKind.DISCARD)
        truth = self.truth_in([half()], *(op(kind, token=b"old", count=1, decision=1) for kind in kinds))
        assert ((0, 0, 0, None), 0) == (truth.open_state, truth.closed_by)

    def test_a_discard_for_exhausted_checks_is_void_after_a_decision_and_not_before(self):
        """A DISCARD for exhausted checks is void after a DECIDED, and closes the half before one."""
        discard, decided = op(OpKind.DISCARD, reason=EXHAUSTED), op(OpKind.DECIDED, decision=OpKind.COMMIT)
        assert 0 == self.truth_in([half()], decided, discard).closed_by
        assert OpKind.DISCARD == self.truth_in([half()], discard, decided).closed_by

    def test_checks_count_for_their_generation_and_a_decision_for_all(self):
        """A resumed half keeps the decision, and no checks of the earlier generation."""
        ops = (op(OpKind.CHECKED, count=2), op(OpKind.DECIDED, decision=OpKind.COMMIT))
        assert (1, 0, OpKind.COMMIT, None) == self.truth_in([half(), half(1, 0)], *ops).open_state

    def test_journeys_take_a_discard_before_the_decision_for_void_when_a_copy_holds_the_decision(self):
        """`Journeys` is wrong here: it folds a copy's decision before all ops, so the DISCARD is void."""
        discard, decided = op(OpKind.DISCARD, reason=EXHAUSTED), op(OpKind.DECIDED, decision=OpKind.COMMIT)
        copies = [half(), half(1, 2, decided=OpKind.COMMIT)]
        closing = op(OpKind.DISCARD, 1, reason=EXHAUSTED)
        halves, ops = logs(copies, [CLAIM, discard, decided, closing])
        journeys = Journeys(0)
        for record in halves:
            journeys.read_half(record)
        for record in ops:
            journeys.read_ops(record)
        assert 0 == self.truth_in(copies, discard, decided, closing).closed_by
        assert not journeys.found[A].is_parked


class TestReplayedLogs:
    """The judgement of logs as a broker holds them."""

    def test_ordinary_logs_pass(self):
        """Ordinary logs pass, also with bytes that are no record in both of them."""
        halves, ops = logs([half(), half(folded_to=1, count=1)], [CLAIM, op(OpKind.CHECKED, count=1)])
        halves.append(LogRecord(Position(9), b"stray"))
        ops.append(LogRecord(Position(9), b"stray"))
        assert [] == judge_logs(halves, ops, [Checkpoint(Position(1), Position(1), TOKEN)])

    def test_a_checkpoint_that_passes_ops_is_found(self):
        """A checkpoint that passes the end of its half is found, because a reader takes the half for undecided."""
        halves, ops = logs([half()], [CLAIM, op(OpKind.COMMIT), CLAIM])
        wrong = judge_logs(halves, ops, [Checkpoint(Position(0), Position(2), TOKEN)])
        assert "passes the first op 1" in wrong[0]
        assert any("the fold says (0, 0, 0, None), the logs None" in text for text in wrong)

    def test_a_copy_made_after_the_end_is_found_without_a_checkpoint(self):
        """A copy whose journal is folded to a place after its final op is found."""
        halves, ops = logs([half(), half(folded_to=2)], [CLAIM, op(OpKind.ROLLBACK), CLAIM])
        assert "ROLLBACK at op 1 closed it" in judge_logs(halves, ops, [])[0]
