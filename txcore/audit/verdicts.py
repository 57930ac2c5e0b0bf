"""The audit's verdicts on one transaction, by id, as predicates over a tally of plain numbers.

The predicates use nothing but `&`, `|`, comparison, `+` and `-`, so one and the same function judges a `Tally` of
Python integers (the oracle) and a table of columns with the same names (the audit).
The meaning of an absent record depends on the logs that were read: see `absence` and `row_absence`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

FAR: Final = 1 << 62
"""The value for "there is none" in a position or time of which the smallest counts."""
SENT: Final = 5
"""The state read instead of a fence row's 3 when the message table no longer holds a row of the transaction."""
DROPPED: Final = 6
"""The state read instead of a fence row's 3 when an operator has dropped all its rows in the message table."""
PARKED: Final = 7
"""The state read instead of a fence row's 3 when the relay has parked a message of it."""
CANCELLED: Final = 8
"""The state read instead of a fence row's 3 when its delayed messages were cancelled, and the others sent."""
VIA_TABLE: Final = (3, SENT, DROPPED, PARKED, CANCELLED)
"""The states of a fence row whose messages go by the message table."""
STATES: Final = 16
"""Number of places for the state of a fence row, where it is one number with the reading of its table."""
OPS_PER_RECORD: Final = 4_096
"""Number of places for the ops of one merged record; further ops share the last one."""


class Severity(enum.IntEnum):
    """The severity of a verdict; the value is the exit code of a run that it decides, see `exit_code`."""

    INFO = 0
    WARNING = 1
    VIOLATION = 2
    INCONCLUSIVE = 3


class Verdict(enum.Enum):
    """A verdict on one transaction; the value is the rule in one sentence."""

    severity: Severity  #: a violation, if the member names none

    def __new__(cls, rule: str, severity: Severity = Severity.VIOLATION) -> Self:
        """Return the member of a rule."""
        made = object.__new__(cls)
        made._value_, made.severity = rule, severity
        return made

    CONFLICT = "two different final decisions, and the first one in the log is not all there is"
    CONFLICT_REFUSED = "a COMMIT after a ROLLBACK, without a target: refused by each reader", Severity.WARNING
    LOST = "committed, but a declared target does not exist, or neither half nor target does"
    LEAK = "a target exists of a transaction that was rolled back or discarded"
    PHANTOM = "a target or a decision without a half, and not by the message table"
    MISDECIDED = "the decision is not the database's outcome"
    CORRUPT = "a target's topic, key, body or headers are not the half's, or these are not what the database committed"
    DUP_TARGET = "one target is at several positions", Severity.WARNING
    DUP_OP = "one decision was written several times", Severity.INFO
    STUCK = "undecided for longer than all its checks may take"
    DISCARDED = "given up after its last check, and not resumed", Severity.WARNING
    UNDELIVERABLE = "committed, but a target refuses; parked", Severity.WARNING
    FORCED = "decided by an operator against the fence, or a message dropped by one", Severity.WARNING
    LATE_CHECK = "decided later than the service level allows", Severity.WARNING
    COVERAGE_GAP = "some of the records to read are missing", Severity.INCONCLUSIVE


SEVERITIES: Final[Mapping[Verdict, Severity]] = {verdict: verdict.severity for verdict in Verdict}
"""The severities unless a configuration says otherwise."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The times against which verdicts are given, in milliseconds.

    Attributes:
        now_ms: Time at which the logs were cut; ages are measured up to it.
        grace_ms: Added to the time that all checks of a half may take, before it counts as stuck.
        late_ms: Longest time from half to decision that is not LATE_CHECK.
        release_ms: A target this long after its DISCARD cannot come from a release that was under way.
    """

    now_ms: int
    grace_ms: int = 60_000
    late_ms: int = 600_000
    release_ms: int = 60_000


@dataclass(slots=True)
class Tally:
    """The records of one transaction in all logs, in numbers.

    Attributes:
        halves: Copies of the half; a resumed or carried one counts.
        generation: The newest copy's; -1 without one.
        declared: Messages that the half declares.
        fenced: Whether the fence table decides it.
        deadline_ms: When all its checks are over, at the latest; 0 without a half.
        half_ms: Time of its first copy; FAR without one.
        op_ms: Time of its first final op or COMMITTED; FAR without one.
        targets: Targets on the half's own broker, every occurrence.
        present: Different targets among them.
        corrupt: Different targets that differ from the half, on any broker.
        altered: Whether a copy of the half has other messages than those whose digest the fence row has.
        missent: The same of the targets of a transaction without a half, which came by the message table.
        target_ms: Time of the newest target; 0 without one.
        commits, rollbacks: Final ops of each kind; a RELEASED is a COMMIT here.
        committed: COMMITTED ops: decided, and to be released by the partition's owner.
        first_commit, first_rollback: The first places in the op log of each decision, a COMMITTED included; FAR without
            one.
        decided: 1 if a DECIDED(COMMIT) is in force, or a COMMITTED; 2 for ROLLBACK, else 0.
        discarded: Highest generation of a DISCARD in force; -1 without one.
        undeliverable: Highest generation of such a DISCARD for targets that refuse; -1 without one.
        discarded_ms: Time of the newest DISCARD in force; 0 without one.
        overrides: Decisions that an operator made against the fence.
        forces: Requests of operators for a decision, and the checkers' replies.
        parked, poison: Parked records, and those among them that hold no half: POISON and LOST.
        row: The fence row's state, 0 without a row; 1 and those of `VIA_TABLE` say committed, 4 forced, 2
            rolled back, but only where the half is `fenced`: else it is the tombstone after which a listener was asked.
        row_early: Whether the row was seen as committed, or sent, before the ends of the logs were taken.
        absence: Whether every log of the group was read for the time of this transaction.
        row_absence: Whether a missing row means that there is none.
    """

    halves: int = 0
    generation: int = -1
    declared: int = 0
    fenced: int = 0
    deadline_ms: int = 0
    half_ms: int = FAR
    op_ms: int = FAR
    targets: int = 0
    present: int = 0
    corrupt: int = 0
    altered: int = 0
    missent: int = 0
    target_ms: int = 0
    commits: int = 0
    rollbacks: int = 0
    committed: int = 0
    first_commit: int = FAR
    first_rollback: int = FAR
    decided: int = 0
    discarded: int = -1
    undeliverable: int = -1
    discarded_ms: int = 0
    overrides: int = 0
    forces: int = 0
    parked: int = 0
    poison: int = 0
    row: int = 0
    row_early: int = 0
    absence: int = 1
    row_absence: int = 0


# A tally is a `Tally` of integers, or an object whose attributes are columns: `Any` covers both.
Predicate = Callable[[Any, Thresholds], Any]


def _is_commit(t: Any) -> Any:
    return t.first_commit < t.first_rollback


def _is_rollback(t: Any) -> Any:
    return t.first_rollback < t.first_commit


def _is_via_table(t: Any) -> Any:
    return (t.row == 3) | (t.row == SENT) | (t.row == DROPPED) | (t.row == PARKED) | (t.row == CANCELLED)


def _is_undone(t: Any) -> Any:
    return (t.row == 2) & (t.fenced == 1)


def _is_by_half(t: Any) -> Any:
    return (t.row < 3) | (t.row == 4)


def _is_open(t: Any) -> Any:
    """No final op that counts: a ROLLBACK after a COMMITTED is none, and a COMMITTED waits for its RELEASED."""
    return (t.commits == 0) & ((t.rollbacks == 0) | _is_commit(t))


def _has_decision(t: Any) -> Any:
    return (t.commits + t.rollbacks + t.committed) > 0


def _is_given_up(t: Any) -> Any:
    """Discarded, not decided and not resumed: a DISCARD is no end if a later generation follows."""
    return _is_open(t) & (t.discarded >= 0) & (t.discarded >= t.generation)


def _conflict(t: Any, _: Thresholds) -> Any:
    return (t.commits + t.committed > 0) & (t.rollbacks > 0) & (_is_commit(t) | (t.targets > 0))


def _conflict_refused(t: Any, _: Thresholds) -> Any:
    return (t.commits + t.committed > 0) & _is_rollback(t) & (t.targets == 0)


def _lost(t: Any, _: Thresholds) -> Any:
    is_out = _is_by_half(t) | (t.row == SENT)  # a message that is still in the message table is not lost
    has_hole = (t.commits > 0) & _is_commit(t) & (t.halves > 0) & (t.present < t.declared) & is_out
    is_owed = (t.row == 1) | (t.row == SENT)
    has_nothing = is_owed & (t.row_early == 1) & (t.halves == 0) & (t.targets == 0) & _is_open(t)
    return (t.absence == 1) & (has_hole | (has_nothing & (t.row_absence == 1)))


def _leak(t: Any, s: Thresholds) -> Any:
    is_not_committed = (t.row == 0) | (t.row == 2) | (t.row == 4)
    is_behind_discard = _is_given_up(t) & (t.undeliverable < t.generation) & is_not_committed
    is_late = (t.discarded_ms > 0) & (t.target_ms > t.discarded_ms + s.release_ms)
    return (t.targets > 0) & (t.overrides == 0) & (_is_rollback(t) | _is_undone(t) | (is_behind_discard & is_late))


def _phantom(t: Any, _: Thresholds) -> Any:
    # An operator takes an entry without a half off the list with a ROLLBACK, or with the COMMIT that is journaled.
    is_unasked = (t.first_rollback >= t.first_commit) & (t.decided != 1)
    is_no_dismissal = (t.parked == 0) | (t.poison < t.parked) | is_unasked
    has_op = _has_decision(t) & is_no_dismissal
    # A target that came by the message table never needed a half.
    has_target = (t.targets > 0) & _is_by_half(t)
    return (t.absence == 1) & (t.halves == 0) & (has_target | has_op)


def _misdecided(t: Any, _: Thresholds) -> Any:
    has_no_row = (t.row == 0) & (t.fenced == 1) & (t.row_absence == 1) & (t.absence == 1)
    is_wrong_commit = _is_commit(t) & (_is_undone(t) | has_no_row)
    is_wrong_rollback = _is_rollback(t) & ((t.row == 1) | _is_via_table(t))
    # The fence says "forced", but no operator has asked for anything.
    is_forced_by_nothing = (t.row == 4) & (t.forces == 0) & _has_decision(t) & (t.absence == 1)
    return (t.overrides == 0) & (is_wrong_commit | is_wrong_rollback | is_forced_by_nothing)


def _corrupt(t: Any, _: Thresholds) -> Any:
    return (t.corrupt > 0) | (t.altered > 0) | ((t.missent > 0) & (t.absence == 1))


def is_pending(t: Any) -> Any:
    """Whether its half is neither ended nor given up."""
    return (t.halves > 0) & _is_open(t) & (t.discarded < t.generation)


def _stuck(t: Any, s: Thresholds) -> Any:
    is_unreleased = (t.committed > 0) & (t.op_ms + s.grace_ms < s.now_ms)  # its owner asks no fence before it
    return (t.absence == 1) & is_pending(t) & (is_unreleased | (t.deadline_ms + s.grace_ms < s.now_ms))


def _discarded(t: Any, _: Thresholds) -> Any:
    is_poison = (t.halves == 0) & (t.poison > 0)
    return _is_given_up(t) & ((t.halves > 0) | is_poison) & ((t.undeliverable < t.generation) | (t.undeliverable < 0))


def _undeliverable(t: Any, _: Thresholds) -> Any:
    by_checker = _is_given_up(t) & (t.undeliverable >= 0) & (t.undeliverable >= t.generation)
    return by_checker | (t.row == PARKED)


def _late_check(t: Any, s: Thresholds) -> Any:
    return (t.halves > 0) & _has_decision(t) & (t.op_ms < FAR) & (t.op_ms > t.half_ms + s.late_ms)


PREDICATES: Final[Mapping[Verdict, Predicate]] = {
    Verdict.CONFLICT: _conflict,
    Verdict.CONFLICT_REFUSED: _conflict_refused,
    Verdict.LOST: _lost,
    Verdict.LEAK: _leak,
    Verdict.PHANTOM: _phantom,
    Verdict.MISDECIDED: _misdecided,
    Verdict.CORRUPT: _corrupt,
    Verdict.DUP_TARGET: lambda t, _: t.targets > t.present,
    Verdict.DUP_OP: lambda t, _: (t.commits > 1) | (t.rollbacks > 1),
    Verdict.STUCK: _stuck,
    Verdict.DISCARDED: _discarded,
    Verdict.UNDELIVERABLE: _undeliverable,
    Verdict.FORCED: lambda t, _: (t.overrides > 0) | (t.row == DROPPED),
    Verdict.LATE_CHECK: _late_check,
}
"""Every verdict on a transaction; COVERAGE_GAP is one on a range that was to be read."""


def verdicts_of(tally: Tally, thresholds: Thresholds) -> Iterator[Verdict]:
    """Yield every verdict on one transaction."""
    return (verdict for verdict, holds in PREDICATES.items() if holds(tally, thresholds))


PASS: Final = 0
WARNINGS: Final = 1
FAILED: Final = 4


def exit_code(severities: set[Severity], *, has_failed: bool = False) -> int:
    """Return how a run ends: 0 pass, 1 warnings, 2 violations, 3 inconclusive, 4 error; 4 > 2 > 3 > 1 > 0."""
    if has_failed:
        return FAILED
    deciding = (Severity.VIOLATION, Severity.INCONCLUSIVE, Severity.WARNING)
    return next((int(severity) for severity in deciding if severity in severities), PASS)
