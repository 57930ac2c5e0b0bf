"""Each invariant's predicate notices its own breach, and an ordinary history breaks none."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace
from txcore_conformance import invariants
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.invariants import Facts, Invariant, Local, Promises, TargetFact, judge

from txcore import wire
from txcore.history.journey import Journey
from txcore.records import (
    Checkpoint,
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

A = b"a" * 16
OURS, THEIRS = b"ours" * 4, b"them" * 4
MESSAGES = [TargetMessage("t", b"k", b"0", {"h": "v"}), TargetMessage("t", None, b"1", {})]


def half(generation=0, check_max=3):
    """Return a half with two messages for one topic."""
    return Half(1, A, "g", 0, generation, 0, 100, 0, check_max, fenced=False, by="p", messages=MESSAGES)


def target(number, position=None, **changes):
    """Return the record that target *number* should have, with *changes*."""
    message = MESSAGES[number]
    fields = {
        "index": number,
        "topic": message.topic,
        "key": message.key,
        "body": message.body,
        "headers": dict(message.headers) | {"txcore-by": "p", "txcore-id": "x", "txcore-group": "g"},
        "position": number if position is None else position,
    }
    return TargetFact(**(fields | changes))


def journey(*ops, halves=1, parked=(), journaled=0):
    """Return a journey folded from ops, as `journeys_of` would."""
    made = Journey(A, 0, halves=[half()] * halves, ops=[(Position(n), op) for n, op in enumerate(ops)])
    made.journaled = journaled
    finals = [op.kind for op in ops if op.kind in (OpKind.COMMIT, OpKind.ROLLBACK)]
    made.final = finals[0] if finals else 0
    made.discarded_generation = max((op.generation for op in ops if op.kind == OpKind.DISCARD), default=-1)
    made.forced = sum(bool(op.forced) and op.kind != OpKind.FORCE for op in ops)
    made.overrides = sum(op.forced == Forced.OVERRIDE and op.kind != OpKind.FORCE for op in ops)
    made.exhausted = {op.generation for op in ops if op.kind == OpKind.DISCARD and op.reason}
    made.parked = [Parked(1, A, 0, code, "", 3, "c", 0, OURS, b"") for code in parked]
    return made


def owned(*ops):
    """Return the journey of a half that its partition's owner releases."""
    made = journey(*ops)
    made.halves = [replace(half(), version=2, release=1)]
    made.final = 0
    for position, each in enumerate(ops):
        made.end(each.kind, Position(position))
    return made


def op(kind, **fields):
    """Return an op of the transaction."""
    return Op(kind, A, **fields)


COMMITTED_OP, RELEASED = op(OpKind.COMMITTED), op(OpKind.RELEASED)
COMMIT, ROLLBACK = op(OpKind.COMMIT), op(OpKind.ROLLBACK)
DISCARD = op(OpKind.DISCARD, reason=ParkCode.CHECKS_EXHAUSTED)
REQUEST = op(OpKind.FORCE, forced=Forced.YES, decision=OpKind.COMMIT)
OVERRIDE = op(OpKind.FORCE, forced=Forced.OVERRIDE, decision=OpKind.COMMIT)
REFUSAL = op(OpKind.FORCE, token=OURS, decision=OpKind.COMMIT, count=1)
BOTH = [target(0), target(1)]
COMMITTED = {"targets": BOTH, "local": Local.COMMITTED, "is_acknowledged": True}
BY_TABLE = {
    "targets": [target(n, headers=dict(MESSAGES[n].headers) | {"txcore-by": "r:1"}) for n in (0, 1)],
    "local": Local.COMMITTED,
    "is_acknowledged": True,
    "is_via_table": True,
    "messages": MESSAGES,
}
DELAYED = BY_TABLE | {"targets": [dataclasses.replace(each, appended_ms=2_000) for each in BY_TABLE["targets"]]}
ATOMIC = Promises(atomic_release=True, resolution_is_unique=True)


def broken(facts, promises=ATOMIC, *, at_rest=True):
    """Return the names of the invariants that *facts* break."""
    return sorted({violation.invariant.name for violation in judge(facts, promises, at_rest=at_rest)})


FAULTLESS = {
    "poison that an operator took off the list": Facts(
        journey(op(OpKind.DISCARD, reason=ParkCode.POISON), ROLLBACK, halves=0, parked=[ParkCode.POISON])
    ),
    "a lost half that an operator took off the list with the journaled COMMIT": Facts(
        journey(
            op(OpKind.DISCARD, reason=ParkCode.LOST), COMMIT, halves=0, parked=[ParkCode.LOST], journaled=OpKind.COMMIT
        )
    ),
    "committed": Facts(journey(COMMIT), **COMMITTED),
    "committed for an owner and released by it": Facts(owned(COMMITTED_OP, RELEASED), **COMMITTED),
    "committed for an owner, and sent by the message table": Facts(owned(RELEASED), **BY_TABLE),
    "rolled back": Facts(journey(ROLLBACK), local=Local.ROLLED_BACK),
    "parked": Facts(journey(DISCARD, parked=[ParkCode.CHECKS_EXHAUSTED]), unknown_answers=3),
    "duplicate with a cause": Facts(
        journey(COMMIT),
        [*BOTH, target(0, 5, headers={"h": "v", "txcore-by": "c"})],
        Local.COMMITTED,
        duplicate_causes=1,
    ),
    "override against the database": Facts(
        journey(op(OpKind.DECIDED, forced=Forced.OVERRIDE), COMMIT), BOTH, Local.ROLLED_BACK
    ),
    "records lost by the broker itself": Facts(journey(COMMIT), local=Local.ROLLED_BACK, is_excused=True),
    "undeliverable": Facts(
        journey(op(OpKind.DISCARD), parked=[ParkCode.UNDELIVERABLE]), [target(0)], Local.COMMITTED, is_acknowledged=True
    ),
    "by the message table, without a half": Facts(journey(halves=0), **BY_TABLE),
    "by the message table, with a half that turned up": Facts(journey(COMMIT), **BY_TABLE),
    "by the message table, after a half that no checker could judge any more": Facts(
        journey(op(OpKind.DISCARD, reason=ParkCode.COVERAGE_GAP), parked=[ParkCode.COVERAGE_GAP]), **BY_TABLE
    ),
    "a message that is parked in the table": Facts(
        journey(halves=0), **BY_TABLE | {"targets": BY_TABLE["targets"][:1], "in_table": frozenset({1})}
    ),
    "a message that was dropped from the table": Facts(
        journey(COMMIT), **BY_TABLE | {"targets": BY_TABLE["targets"][:1], "dropped": frozenset({1})}
    ),
    "a delayed message that came in time": Facts(journey(halves=0), **DELAYED | {"dues_ms": {1: 2_000}}),
    "a cancelled message that was not sent": Facts(
        journey(halves=0), **DELAYED | {"targets": DELAYED["targets"][:1], "cancelled": frozenset({1})}
    ),
    "both ends asked for by the application": Facts(
        journey(COMMIT, ROLLBACK), BOTH, Local.COMMITTED, has_contrary_caller=True
    ),
}


@pytest.mark.parametrize("what", FAULTLESS)
def test_an_allowed_history_breaks_nothing(what):
    """A duplicate with a cause, an operator's override and a parked half break no invariant."""
    assert [] == broken(FAULTLESS[what], Promises())


S1, S2, S3, S4, S5, S6, S7, S8, S9, S10 = (f"S{n}" for n in range(1, 11))
S12, S13, S14 = (f"S{n}" for n in (12, 13, 14))
BREACHES = {
    "two ends": (Facts(journey(COMMIT, ROLLBACK), **COMMITTED), Promises(), [S1]),
    "one end twice on a store that keeps it unique": (Facts(journey(COMMIT, COMMIT), **COMMITTED), ATOMIC, [S1]),
    "targets of a rolled back transaction": (Facts(journey(ROLLBACK), BOTH), ATOMIC, [S2]),
    "targets without a committed local transaction": (
        Facts(journey(COMMIT), BOTH, Local.ROLLED_BACK),
        ATOMIC,
        [S2, S4],
    ),
    "targets without a decision": (Facts(journey(), BOTH), ATOMIC, ["L1", S2]),
    "a missing target": (Facts(journey(COMMIT), [target(0)]), ATOMIC, [S3]),
    "a decision against the database": (Facts(journey(ROLLBACK), local=Local.COMMITTED), ATOMIC, [S4]),
    "targets of dismissed poison": (
        Facts(journey(ROLLBACK, halves=0, parked=[ParkCode.POISON]), [target(0)]),
        ATOMIC,
        [S2, S5],
    ),
    "poison that was committed": (Facts(journey(COMMIT, halves=0, parked=[ParkCode.POISON])), ATOMIC, [S5]),
    "a lost half that was committed": (Facts(journey(COMMIT, halves=0, parked=[ParkCode.LOST])), ATOMIC, [S5]),
    "an end without a half that was no poison": (Facts(journey(ROLLBACK, halves=0)), ATOMIC, [S5]),
    "targets without a half": (Facts(journey(COMMIT, halves=0), BOTH), ATOMIC, [S5]),
    "a duplicate without a cause": (
        Facts(journey(COMMIT), [*BOTH, target(1, 9)], Local.COMMITTED, duplicate_causes=0),
        ATOMIC,
        [S6],
    ),
    "another payload": (Facts(journey(COMMIT), [target(0, body=b"x"), target(1)]), ATOMIC, [S7]),
    "another key": (Facts(journey(COMMIT), [target(0, key=b"x"), target(1)]), ATOMIC, [S7]),
    "a lost header": (Facts(journey(COMMIT), [target(0, headers={"txcore-by": "p"}), target(1)]), ATOMIC, [S7]),
    "an index that does not exist": (Facts(journey(COMMIT), [*BOTH, target(1, index=7)]), Promises(), [S7]),
    "an acknowledged send without its half": (
        Facts(Journey(A, 0), local=Local.COMMITTED, is_acknowledged=True),
        ATOMIC,
        [S8],
    ),
    "an acknowledged send without its target": (
        Facts(journey(), local=Local.COMMITTED, is_acknowledged=True),
        ATOMIC,
        ["L1", S8],
    ),
    "too many checks": (Facts(journey(op(OpKind.CHECKED, count=4), COMMIT), BOTH), ATOMIC, [S9]),
    "a discard before its answers were given": (
        Facts(journey(DISCARD, parked=[ParkCode.CHECKS_EXHAUSTED]), unknown_answers=2),
        ATOMIC,
        [S9],
    ),
    "targets of a rolled back transaction whose override was refused": (
        Facts(journey(OVERRIDE, REFUSAL, ROLLBACK), BOTH, Local.ROLLED_BACK),
        Promises(),
        [S2],
    ),
    "a decision against the database after a refused override": (
        Facts(journey(OVERRIDE, REFUSAL, ROLLBACK), local=Local.COMMITTED),
        Promises(),
        [S4],
    ),
    "a discard with targets after a refused request": (
        Facts(journey(REQUEST, REFUSAL, DISCARD, parked=[ParkCode.CHECKS_EXHAUSTED]), BOTH),
        Promises(),
        [S10],
    ),
    "a discard without a parked record": (Facts(journey(DISCARD)), ATOMIC, [S10]),
    "a discard with targets": (Facts(journey(DISCARD, parked=[ParkCode.CHECKS_EXHAUSTED]), BOTH), Promises(), [S10]),
    "messages of one release, each in its own partition": (
        Facts(journey(COMMIT), [target(0, 5), target(1, 4, partition=1)]),
        ATOMIC,
        [],
    ),
    "messages of one release in another order": (Facts(journey(COMMIT), [target(0, 5), target(1, 4)]), ATOMIC, [S12]),
    "an end without a half, by the message table": (Facts(journey(COMMIT, halves=0), **BY_TABLE), ATOMIC, [S5]),
    "a message of the table that was not sent": (
        Facts(journey(halves=0), **BY_TABLE | {"targets": BY_TABLE["targets"][:1]}),
        ATOMIC,
        [S8],
    ),
    "a message of the table that a checker published": (
        Facts(journey(COMMIT), **BY_TABLE | {"targets": [target(0, headers={"h": "v", "txcore-by": "c:1"}), BOTH[1]]}),
        ATOMIC,
        [S6],
    ),
    "a message of the table whose transaction rolled back": (
        Facts(journey(halves=0), **BY_TABLE | {"local": Local.ROLLED_BACK}),
        ATOMIC,
        [S2, S5],
    ),
    "another payload than the table's": (
        Facts(journey(halves=0), **BY_TABLE | {"targets": [target(0, body=b"x"), BY_TABLE["targets"][1]]}),
        ATOMIC,
        [S7],
    ),
    "a delayed message that came too early": (
        Facts(journey(halves=0), **DELAYED | {"dues_ms": {1: 2_001}}),
        ATOMIC,
        [S13],
    ),
    "a cancelled message that was sent": (
        Facts(journey(halves=0), **DELAYED | {"cancelled": frozenset({1})}),
        ATOMIC,
        [S13],
    ),
    "a delayed message that was neither sent nor cancelled": (
        Facts(journey(halves=0), **DELAYED | {"targets": DELAYED["targets"][:1], "dues_ms": {1: 2_000}}),
        ATOMIC,
        [S8],
    ),
    "published by its producer, not by its owner": (
        Facts(owned(COMMITTED_OP, RELEASED), [target(0, headers={"h": "v", "txcore-by": "p:1"}), target(1)]),
        ATOMIC,
        [S14],
    ),
    "published without a COMMITTED": (Facts(owned(RELEASED), BOTH), ATOMIC, [S14]),
    "committed for an owner and rolled back": (Facts(owned(COMMITTED_OP, ROLLBACK, RELEASED), BOTH), Promises(), [S1]),
    "released twice on a store that keeps it unique": (
        Facts(owned(COMMITTED_OP, RELEASED, RELEASED), BOTH),
        ATOMIC,
        [S1],
    ),
    "committed for an owner and never released": (Facts(owned(COMMITTED_OP), **COMMITTED), ATOMIC, ["L1", S2]),
    "undecided at rest": (Facts(journey()), ATOMIC, ["L1"]),
}


@pytest.mark.parametrize("what", BREACHES)
def test_a_breach_is_reported_by_its_id(what):
    """Each broken predicate is reported by its invariant's id, and the text names the transaction."""
    facts, promises, expected = BREACHES[what]
    assert expected == broken(facts, promises)
    assert all("61616161" in str(violation) for violation in judge(facts, promises, at_rest=True))


def test_an_undecided_half_is_allowed_while_faults_last():
    """An undecided half breaks an invariant only at rest, after the faults."""
    assert [] == broken(Facts(journey()), at_rest=False)


def test_every_safety_invariant_has_a_breach_here():
    """Each invariant has a breach in the table; S11 is the checkpoint's, and L2 to L4 concern whole runs."""
    judged = {name for _, _, names in BREACHES.values() for name in names} | {"S11"}
    assert {each.name for each in Invariant if each.name not in {"L2", "L3", "L4"}} == judged


class TestCheckpoint:
    HALVES = (LogRecord(Position(1), wire.encode_half(half())),)

    @staticmethod
    def ops(*written):
        return [LogRecord(Position(n), wire.encode_ops([each])) for n, each in enumerate(written, 1)]

    def test_a_lower_bound_is_allowed(self):
        """A checkpoint may be at the undecided half and its first op, with the token in force there."""
        ops = self.ops(Op(OpKind.CLAIM, OURS, token=OURS), op(OpKind.CHECKED, token=OURS, count=1))
        assert "" == judge_checkpoint(Checkpoint(Position(1), Position(2), OURS), self.HALVES, ops)
        assert "" == judge_checkpoint(Checkpoint(None, None), self.HALVES, ops)

    def test_passing_an_undecided_half_is_a_breach(self):
        """No checker would check an undecided half that a checkpoint has passed."""
        assert "passes undecided" in judge_checkpoint(Checkpoint(Position(2), None), self.HALVES, [])

    def test_passing_a_finished_half_is_allowed(self):
        """A checkpoint may pass a half whose end is in the op log."""
        assert "" == judge_checkpoint(Checkpoint(Position(2), Position(1)), self.HALVES, self.ops(COMMIT))

    def test_passing_the_first_op_is_a_breach(self):
        """A restarted checker would repeat a check or a publication whose op the checkpoint has passed."""
        ops = self.ops(op(OpKind.CHECKED, count=1), op(OpKind.TICK))
        assert "passes the first op" in judge_checkpoint(Checkpoint(Position(1), Position(2)), self.HALVES, ops)

    def test_another_token_is_a_breach(self):
        """With another token, a restarted checker would misjudge the ops after the bound."""
        ops = self.ops(Op(OpKind.CLAIM, OURS, token=OURS), op(OpKind.CHECKED, token=OURS))
        assert "token" in judge_checkpoint(Checkpoint(Position(1), Position(2), THEIRS), self.HALVES, ops)

    def test_stray_bytes_in_the_op_log_say_nothing(self):
        """The judge skips stray bytes in the op log, as the checker does."""
        ops = [*self.ops(COMMIT), LogRecord(Position(2), b"stray")]
        assert "" == judge_checkpoint(Checkpoint(Position(2), Position(1)), self.HALVES, ops)


class TestCopy:
    """A copy must hold its journal up to `folded_to`; from there on its reader reads the op log."""

    CLAIM = Op(OpKind.CLAIM, OURS, token=OURS)
    CHECKED = op(OpKind.CHECKED, token=OURS, count=1)
    DECIDED = op(OpKind.DECIDED, token=OURS, decision=OpKind.COMMIT)
    DISCARD = op(OpKind.DISCARD, token=OURS, reason=ParkCode.CHECKS_EXHAUSTED)
    REQUEST = op(OpKind.FORCE, decision=OpKind.COMMIT)
    TICK = Op(OpKind.TICK, A, token=OURS)

    @staticmethod
    def judged(folded_to, *ops, generation=0, **fields):
        """Return the fault of a checkpoint at a copy; the claim is at op 1, *ops* from 2 on."""
        copy = replace(half(generation), folded_to=folded_to, token=OURS, **fields)
        halves = [*TestCheckpoint.HALVES, LogRecord(Position(2), wire.encode_half(copy))]
        written = TestCheckpoint.ops(TestCopy.CLAIM, *ops)
        return judge_checkpoint(Checkpoint(Position(2), Position(1)), halves, written)

    def test_a_copy_that_holds_its_journal_is_allowed(self):
        """A copy's reader reads the op at `folded_to` again, so the copy need not hold it."""
        assert "" == self.judged(3, self.CHECKED, self.DECIDED, count=1, decided=OpKind.COMMIT)
        assert "" == self.judged(2, self.CHECKED)
        assert "" == self.judged(2, self.DECIDED)
        assert "" == self.judged(2, self.REQUEST)

    def test_a_copy_made_before_the_end_is_allowed(self):
        """A copy may be folded to a place before the end, because its reader then finds the end."""
        assert "" == self.judged(2, self.CHECKED, COMMIT)

    def test_a_copy_is_not_judged_by_logs_that_end_before_its_journal(self):
        """The reply to a request may follow logs that end before `folded_to` (seed 125 of the simulator)."""
        assert "lacks the request" in self.judged(4, self.REQUEST, self.TICK, self.TICK)
        assert "" == self.judged(5, self.REQUEST, self.TICK, self.TICK)

    @pytest.mark.parametrize("folded_to", [2, 3])
    def test_a_copy_at_or_after_the_end_is_a_breach(self, folded_to):
        """A reader that begins at a copy after the end would take the half for undecided."""
        assert "COMMIT at op 2 closed it" in self.judged(folded_to, COMMIT, self.TICK)
        assert "DISCARD at op 2 closed it" in self.judged(folded_to, self.DISCARD, self.TICK)

    def test_a_resumed_copy_comes_after_its_discard(self):
        """A copy may follow the DISCARD of an earlier generation, or a void DISCARD, which closed none."""
        assert "" == self.judged(2, self.DISCARD, generation=1)
        assert "" == self.judged(3, self.DECIDED, self.DISCARD, decided=OpKind.COMMIT)

    @pytest.mark.parametrize(
        ("written", "lack"),
        [(CHECKED, "lacks a check"), (DECIDED, "lacks the decision COMMIT"), (REQUEST, "lacks the request at op 2")],
    )
    def test_a_copy_that_lacks_an_op_is_a_breach(self, written, lack):
        """A copy must hold each op before `folded_to`, because its reader does not read those ops."""
        assert lack in self.judged(3, written, self.TICK)


def test_the_list_is_complete():
    """The invariants are S1 to S14 and L1 to L4, as documents, simulator and oracle name them."""
    assert [f"S{n}" for n in range(1, 15)] + [f"L{n}" for n in range(1, 5)] == [each.name for each in Invariant]
    assert all(each.value[0].islower() for each in invariants.Invariant)
