"""The differences that a comparison of two sides has found, and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txcore.audit.verdicts import Severity, exit_code


@dataclass(frozen=True, slots=True)
class Found:
    """One row or message that is not right.

    Attributes:
        verdict: Name of the verdict.
        name: The id as the table or the message gives it.
        topic: The topic that the row names, or where the message is; empty for none.
        what: What differs, in words.
    """

    verdict: str
    name: str
    topic: str
    what: str


def counts_of(findings: Sequence[Found]) -> dict[str, int]:
    """Return the number of findings by verdict."""
    return dict(Counter(each.verdict for each in findings))


def exit_code_of(findings: Sequence[Found], severities: Mapping[str, Severity], gaps: Sequence[str]) -> int:
    """Return 0 pass, 1 warnings, 2 violations, 3 inconclusive: with a gap it is never a pass.

    Args:
        severities: Severity of each verdict, by its name.
    """
    found = {severities[each.verdict] for each in findings}
    return exit_code(found | ({Severity.INCONCLUSIVE} if gaps else set()))
