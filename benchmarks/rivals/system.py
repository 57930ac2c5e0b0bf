"""Interface of a measured system: its plan and its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

BODY_SIZE: Final = 300
CALLERS: Final = 16
"""Number of callers of every row with a database, and of the steady load."""

BUSINESS: Final = "business only"
TRANSACTIONAL: Final = "transactional"
DRAIN: Final = "relay drain"
VISIBLE: Final = "commit to visible"
RECOVERY: Final = "recovery"
OVERLOAD: Final = "overload"
MESSAGES: Final = "messages"
PAIRS: Final = "two messages in a row"


class MissingError(Exception):
    """A system is not available on this machine; the text is one sentence with the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: its measure, its load and its unit."""

    measure: str
    load: str
    unit: str


Figures = Mapping[Row, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of each measurement.

    Attributes:
        seconds: Duration of each row.
        rate: Transactions per second of the steady load under which commit to visible is measured.
        in_doubt: Number of transactions left undecided, and of messages that wait for a relay.
        overload_s: Duration of the overload, in which callers commit as fast as they can.
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
        """Fetch and build the system; raises MissingError."""

    def measure(self, plan: Plan) -> Figures:
        """Start the system, measure it, and stop it."""


def body_of(number: int) -> bytes:
    """Return a message's body, which contains its number."""
    return b"%020d" % number + b"x" * (BODY_SIZE - 20)


def number_of(body: bytes) -> int:
    """Return the number in a body of `body_of`."""
    return int(body[:20])


def callers(count: int, kind: str = "thread") -> str:
    """Return the load of *count* callers in words."""
    return f"{count:,} {kind}{'' if count == 1 else 's'}"


def percentiles(latencies_ms: list[float], load: str) -> dict[Row, float]:
    """Return the rows of commit to visible, by nearest-rank percentiles."""
    ordered = sorted(latencies_ms)
    return {
        Row(f"{VISIBLE} p{percent}", load, "ms"): ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
        for percent in (50, 99)
    }
