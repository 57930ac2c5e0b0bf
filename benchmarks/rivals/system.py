"""What a measured system is, what is asked of it, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

BODY_SIZE: Final = 300
CALLERS: Final = 16
"""Callers of every row with a database, and of the steady load."""

BUSINESS: Final = "business only"
TRANSACTIONAL: Final = "transactional"
DRAIN: Final = "relay drain"
VISIBLE: Final = "commit to visible"
RECOVERY: Final = "recovery"
OVERLOAD: Final = "overload"


class MissingError(Exception):
    """A system cannot be had on this machine; the text is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, under which load, in which unit."""

    measure: str
    load: str
    unit: str


Figures = Mapping[Row, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        seconds: Of each row.
        rate: Transactions per second of the steady load under which commit to visible is taken.
        in_doubt: Transactions left undecided, and messages a relay finds waiting.
        overload_s: How long commits are reported as fast as callers can.
        has_incidents: Whether recovery and overload are part of this round.
    """

    seconds: float = 5.0
    rate: int = 500
    in_doubt: int = 10_000
    overload_s: float = 60.0
    has_incidents: bool = True


class System(Protocol):
    """One measured system."""

    name: str

    def prepare(self) -> None:
        """Fetch and build what is needed; raises MissingError."""

    def measure(self, plan: Plan) -> Figures:
        """Start it, measure, and stop it."""


def body_of(number: int) -> bytes:
    """Return a message's body, which tells its number."""
    return b"%020d" % number + b"x" * (BODY_SIZE - 20)


def number_of(body: bytes) -> int:
    """Return the number that `body_of` was given."""
    return int(body[:20])


def callers(count: int, kind: str = "thread") -> str:
    """Return the load of so many callers in words."""
    return f"{count:,} {kind}{'' if count == 1 else 's'}"


def percentiles(latencies_ms: list[float], load: str) -> dict[Row, float]:
    """Return the rows of commit to visible: nearest rank."""
    ordered = sorted(latencies_ms)
    return {
        Row(f"{VISIBLE} p{percent}", load, "ms"): ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
        for percent in (50, 99)
    }
