"""The report of `txcore doctor` and the form of its checks: small functions in tables, each with an id.

A backend offers its own table as `BackendPlugin.examination`; the checks that hold for every backend and for
databases are in the layers above the port. A check reads and changes nothing. It reports a setting that it cannot read
(`UntoldError`), because an unread setting is not OK.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from txcore.errors import TxcoreError

S = TypeVar("S")

HORIZON_S: Final = 86_400.0
"""Default of the longest time, in seconds, that a half may stay undecided: a checker that is down for a day."""
BODY_SIZE: Final = 100_000
"""Default size, in bytes, of one transaction's messages that must fit."""
SKEW_WARN_MS: Final = 1_000
SKEW_FAIL_MS: Final = 60_000
RETENTION_FACTOR: Final = 2
"""Least retention of halves as a multiple of the check horizon: the second half of it is for carrying forward."""


class Level(enum.StrEnum):
    """The severity of a finding."""

    OK = "OK"
    WARN = "WARN"  #: works, but a setting is weaker than it could be, or could not be read
    FAIL = "FAIL"  #: messages can be lost, blocked, refused, or read and written by others
    DEV = "DEV"  #: a finding of these two levels that a developer's broker of one node may have


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its text with the effect, and the command or setting that changes it ("" for OK).

    `is_for_production`: a developer's broker of one node may have it; see `Report.for_developer`.
    """

    level: Level
    text: str
    change: str = ""
    is_for_production: bool = False


def ok(text: str) -> Finding:
    """Return a finding that needs no change."""
    return Finding(Level.OK, text)


def warn(text: str, change: str) -> Finding:
    """Return a finding that should be changed."""
    return Finding(Level.WARN, text, change)


def fail(text: str, change: str) -> Finding:
    """Return a finding that must be changed."""
    return Finding(Level.FAIL, text, change)


def for_production(finding: Finding) -> Finding:
    """Return *finding* as one that a developer's broker of one node may have."""
    return replace(finding, is_for_production=True)


def skewed(text: str, skew_ms: float, effect: str) -> Finding:
    """Return the finding about a clock that is off this machine's by *skew_ms* for certain; *effect* is a warning's."""
    change = "run chronyd or ntpd on both machines; see: chronyc tracking"
    if skew_ms > SKEW_FAIL_MS:
        return fail(f"{text}: ids carry this machine's time, and a prune could refuse or forget them", change)
    return warn(f"{text}: {effect}", change) if skew_ms > SKEW_WARN_MS else ok(text)


class UntoldError(TxcoreError):
    """The server does not report a setting; `change` says how to make it report.

    `is_for_production`: a developer's broker of one node need not report it.
    """

    def __init__(self, message: str, change: str = "", *, is_for_production: bool = False) -> None:
        super().__init__(message)
        self.change = change
        self.is_for_production = is_for_production


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """One line of the doctor's report.

    Attributes:
        name: The id, `part.what`; stable, for programs.
        meaning: The requirement, in one phrase.
        look: Function that makes the check. May raise `UntoldError`, or any exception of its driver.
        needs: The id of an earlier check; if that one fails or has no result, this one is not made.
    """

    name: str
    meaning: str
    look: Callable[[S], Finding]
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """The object of an examination.

    Attributes:
        group: The producer group; never created.
        targets: Topics whose settings are examined.
        body_size: Bytes of one transaction's messages that must fit.
        horizon_s: The longest time that a half may stay undecided, a checker's outage included.
        monitor_url: URL at which the broker shows settings that its protocol does not report (RabbitMQ: management API,
            NATS: monitoring port); "" for none.
    """

    group: str
    targets: tuple[str, ...] = ()
    body_size: int = BODY_SIZE
    horizon_s: float = HORIZON_S
    monitor_url: str = field(default="", repr=False)

    @property
    def retention_s(self) -> float:
        """The least time for which halves must be kept."""
        return RETENTION_FACTOR * self.horizon_s


@dataclass(frozen=True, slots=True)
class Examination(Generic[S]):
    """A table of checks, their subject, and the function that closes the subject."""

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
    """All lines; and for each check that was not made, the check that it needs."""

    lines: Sequence[Line]
    skipped: Sequence[tuple[str, str]]

    @property
    def level(self) -> Level:
        """The worst of all lines."""
        levels = {line.finding.level for line in self.lines}
        return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)

    def for_developer(self) -> Report:
        """Return the report on a developer's broker: what such a broker may lack has the level DEV."""
        return Report(tuple(map(_of_developer, self.lines)), self.skipped)

    def joined(self, other: Report) -> Report:
        """Return both as one."""
        return Report((*self.lines, *other.lines), (*self.skipped, *other.skipped))


def _of_developer(line: Line) -> Line:
    finding = line.finding
    is_allowed = finding.is_for_production and finding.level is not Level.OK
    return Line(line.name, replace(finding, level=Level.DEV)) if is_allowed else line


def examine(examination: Examination[Any]) -> Report:
    """Make all checks in their order. An exception of a check becomes a line and is never raised."""
    lines: list[Line] = []
    skipped: list[tuple[str, str]] = []
    roots: dict[str, str] = {}  # check that failed or was not made -> the one that failed
    for check in examination.checks:
        if check.needs in roots:
            roots[check.name] = roots[check.needs]
            skipped.append((check.name, roots[check.name]))
            continue
        finding, is_known = _look(check, examination.subject)
        if finding.level is Level.FAIL or not is_known:
            roots[check.name] = check.name
        lines.append(Line(check.name, finding))
    return Report(tuple(lines), tuple(skipped))


def _look(check: Check[Any], subject: object) -> tuple[Finding, bool]:
    try:
        return check.look(subject), True
    except UntoldError as error:
        reason, change, is_for_production = str(error), error.change, error.is_for_production
    except Exception as error:  # noqa: BLE001 - a driver's error is a result that this check could not read
        reason, change, is_for_production = str(error) or type(error).__name__, "", False
    finding = warn(f"not known whether {check.meaning}: {' '.join(reason.split())}", change)
    return replace(finding, is_for_production=is_for_production), False


def shortened(names: Sequence[str], count_max: int = 3) -> str:
    """Return a few of *names* and the number of the others."""
    shown = ", ".join(names[:count_max])
    return shown if len(names) <= count_max else f"{shown} and {len(names) - count_max} more"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return a number of things, as "1 target" or "2,000 targets"; *nouns* is a plural without that "s"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a duration as readable text."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, length, until in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < until:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"


def size(count: int) -> str:
    """Return a number of bytes as readable text; exact for a limit that a user sets."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= 20 * factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:,} B"


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparing: "2.12.1-rc" is (2, 12, 1); () for none."""
    leading = re.match(r"[0-9]+(\.[0-9]+)*", text.strip().lstrip("v"))
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()
