"""What `txcore doctor` says and how its checks are written: small functions in tables, each with an id.

A backend offers its own table through the hook `txcore_doctor`; the checks that hold for every backend and for
databases stand above the port. A check looks and changes nothing; what it cannot see it says (`UntoldError`), because
a setting that nobody has looked at is no OK.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from txcore.errors import TxcoreError

S = TypeVar("S")

HORIZON_S: Final = 86_400.0
"""How long a half may stay undecided unless told otherwise: a checker that is down for a day."""
BODY_SIZE: Final = 100_000
"""Bytes of one transaction's messages that must fit unless told otherwise."""
RETENTION_FACTOR: Final = 2
"""Halves are kept this many times the check horizon: they may have to be carried forward within the second half."""


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "OK"
    WARN = "WARN"  #: works, but something is weaker than it could be, or could not be seen
    FAIL = "FAIL"  #: messages can be lost, blocked, or refused


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found: why it matters, and the command or setting that changes it ("" for OK)."""

    level: Level
    text: str
    change: str = ""


def ok(text: str) -> Finding:
    """Return a finding that needs no change."""
    return Finding(Level.OK, text)


def warn(text: str, change: str) -> Finding:
    """Return a finding that should be changed."""
    return Finding(Level.WARN, text, change)


def fail(text: str, change: str) -> Finding:
    """Return a finding that must be changed."""
    return Finding(Level.FAIL, text, change)


class UntoldError(TxcoreError):
    """The server does not tell; `change` says how it can be brought to."""

    def __init__(self, message: str, change: str = "") -> None:
        super().__init__(message)
        self.change = change


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """One line of the doctor's report.

    Attributes:
        name: The id, `part.what`; stable, for programs.
        meaning: What must be so, in one phrase.
        look: Finds out. May raise `UntoldError`, or anything that its driver raises.
        needs: The id of a check that stands before this one; if it fails or is not told, this one is not made.
    """

    name: str
    meaning: str
    look: Callable[[S], Finding]
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be examined.

    Attributes:
        group: The producer group; never created.
        targets: Topics whose settings are looked at.
        body_size: Bytes of one transaction's messages that must fit.
        horizon_s: The longest time that a half may stay undecided, a checker's outage included.
        monitor_url: Where the broker shows what its protocol does not tell (RabbitMQ: management API, NATS: monitoring
            port); "" for nowhere.
    """

    group: str
    targets: tuple[str, ...] = ()
    body_size: int = BODY_SIZE
    horizon_s: float = HORIZON_S
    monitor_url: str = ""

    @property
    def retention_s(self) -> float:
        """The least time for which halves must be kept."""
        return RETENTION_FACTOR * self.horizon_s


@dataclass(frozen=True, slots=True)
class Examination(Generic[S]):
    """A table of checks, what they look at, and how to let go of it."""

    checks: Sequence[Check[S]]
    subject: S
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report."""

    name: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, and per check that was not made the check it needs."""

    lines: Sequence[Line]
    skipped: Sequence[tuple[str, str]]

    @property
    def level(self) -> Level:
        """The worst of all lines."""
        levels = {line.finding.level for line in self.lines}
        return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)

    def joined(self, other: Report) -> Report:
        """Return both as one."""
        return Report((*self.lines, *other.lines), (*self.skipped, *other.skipped))


def examine(examination: Examination[Any]) -> Report:
    """Make all checks in their order. Never raises for what a check raises: that is a line."""
    lines: list[Line] = []
    skipped: list[tuple[str, str]] = []
    roots: dict[str, str] = {}  # check that failed or was not made -> the one that failed
    for check in examination.checks:
        if check.needs in roots:
            roots[check.name] = roots[check.needs]
            skipped.append((check.name, roots[check.name]))
            continue
        finding, is_told = _look(check, examination.subject)
        if finding.level is Level.FAIL or not is_told:
            roots[check.name] = check.name
        lines.append(Line(check.name, finding))
    return Report(tuple(lines), tuple(skipped))


def _look(check: Check[Any], subject: object) -> tuple[Finding, bool]:
    try:
        return check.look(subject), True
    except UntoldError as error:
        reason, change = str(error), error.change
    except Exception as error:  # noqa: BLE001 - what a driver raises is what this check could not see
        reason, change = str(error) or type(error).__name__, ""
    return warn(f"not known whether {check.meaning}: {' '.join(reason.split())}", change), False


def shortened(names: Sequence[str], count_max: int = 3) -> str:
    """Return a few of *names* and how many more there are."""
    shown = ", ".join(names[:count_max])
    return shown if len(names) <= count_max else f"{shown} and {len(names) - count_max} more"


def counted(count: int, noun: str) -> str:
    """Return a number of things, as "1 target" or "2 targets"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Return a length of time for people."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, length, until in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < until:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"


def size(count: int) -> str:
    """Return a number of bytes for people; exact where it is a limit that one sets."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= 20 * factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:,} B"


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparing: "2.12.1-rc" is (2, 12, 1); () for none."""
    numbers: list[int] = []
    for part in text.strip().lstrip("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
