"""The next step after each kind of finding: what an operator or auditor does, and the command where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txcore.audit.verdicts import PARKED, Verdict

REPAIRS: Final[Mapping[Verdict, str]] = {
    Verdict.LOST: "txcore audit repair {run} --only {id} --apply",
    Verdict.STUCK: "txcore show {id} --group {group}; txcore audit repair {run} --only {id} --apply",
    Verdict.DISCARDED: "txcore resume {id} --group {group}",
    Verdict.UNDELIVERABLE: "txcore resume {id} --group {group}",
    Verdict.CONFLICT: "txcore show {id} --group {group}",
    Verdict.MISDECIDED: "txcore show {id} --group {group}",
    Verdict.PHANTOM: "txcore show {id} --group {group}",
    Verdict.CORRUPT: "txcore show {id} --group {group} --bodies",
    Verdict.FORCED: "txcore show {id} --group {group}",
}
"""The operator's command for each kind that has one; no command withdraws a leaked message."""
RESUME_TABLE: Final = "txcore table resume {id} --group {group}"
"""The operator's command, instead of `txcore resume`, for a message that the relay has parked."""
ADVICE: Final[Mapping[Verdict, str]] = {
    Verdict.CONFLICT: "Find the writer of the second decision; compare both with the fence row.",
    Verdict.CONFLICT_REFUSED: "Nothing was sent. Find the process that committed after the rollback.",
    Verdict.LOST: "Publish the missing messages again; ask whether the broker lost what it had acknowledged.",
    Verdict.LEAK: "No command withdraws a message: notify its consumers, and find its writer.",
    Verdict.PHANTOM: "Find the program that may write such records; notify the consumers.",
    Verdict.MISDECIDED: "Compare with the database: was it restored, or failed over to a replica that lagged?",
    Verdict.CORRUPT: "Compare target, half and business rows; find the program that may write there.",
    Verdict.DUP_TARGET: "Nothing, if every consumer has an inbox; otherwise look for a second effect.",
    Verdict.DUP_OP: "Nothing: a retry wrote the same decision again.",
    Verdict.STUCK: "Start a checker; without one, park the transaction.",
    Verdict.DISCARDED: "Repair the cause that the parked record names, then resume.",
    Verdict.UNDELIVERABLE: "Make the target accept it, then resume.",
    Verdict.FORCED: "Ask whether the operator's act was authorised: name, time and reason are in its story.",
    Verdict.LATE_CHECK: "Look for a checker that was down or slow at that time.",
    Verdict.COVERAGE_GAP: "Make the range readable, then audit again; until then a missing record proves nothing.",
}
"""What to do, for every kind."""
NO_ROWS: Final = "This run kept no rows (--no-land): audit again with them, then repair that run."


def command_of(verdict: Verdict, row: int, *, has_rows: bool) -> str:
    """Return the command for a finding, with the names `run`, `id` and `group` to fill in; "" if there is none.

    Args:
        row: The state of the fence row.
        has_rows: Whether the run kept its rows, which a repair reads.
    """
    if verdict is Verdict.LOST and not has_rows:
        return ""
    if verdict is Verdict.UNDELIVERABLE and row == PARKED:
        return RESUME_TABLE
    return REPAIRS.get(verdict, "")


def advice_of(verdict: Verdict, *, has_rows: bool) -> str:
    """Return what to do after a finding of this kind."""
    return NO_ROWS if verdict is Verdict.LOST and not has_rows else ADVICE[verdict]
