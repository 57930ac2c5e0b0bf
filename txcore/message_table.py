"""The message table's port: messages that wait in the user's own database until a relay has published them.

A producer that does not write a half puts its messages there, in the transaction of its fence row, which then has
state 3. Rows are sent in the order in which they were inserted, one at a time for each *lane* (one group and message
key); while it sends, a relay holds the *slots* of its lanes. `sqlfence` implements this on SQLAlchemy.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec

from txcore.enums import direct

ModeName = Literal["half", "table", "auto"]
"""The names of `Mode`, as a producer's argument."""
SLOT_COUNT: Final = 64
"""Slots of one group; part of the stored format."""


@direct
class CancelState(enum.Enum):
    """The outcome of a cancel, if the database transaction in which it was called commits."""

    CANCELLED = "CANCELLED"  #: the delayed messages of the transaction are never sent; also when repeated
    TOO_LATE = "TOO_LATE"  #: one was due and a relay has queued it, or none was delayed: nothing is cancelled
    NOT_FOUND = "NOT_FOUND"  #: not committed, pruned, or of another group or database


@direct
class Mode(enum.StrEnum):
    """How a producer's messages travel to the broker."""

    HALF = "half"  #: a half record, acknowledged before the database commits
    TABLE = "table"  #: rows of the message table, in the database transaction; a relay publishes them
    AUTO = "auto"  #: a half, and the message table while the broker is down, slow or full


class TableRow(msgspec.Struct, frozen=True):
    """One message on its way through the table.

    Attributes:
        index: Its position in the transaction.
        lane: The lane, within which order is kept; see `lane_of`.
        body: The encoded message, see `wire.encode_message`.
        tries: How often its target has refused it.
        number: Its position in the order of insertion; 0 before the insertion.
        due_ms: When it may be sent, in milliseconds since 1970 by the database's clock; 0 at once.
    """

    transaction_id: bytes
    index: int
    lane: int
    body: bytes
    tries: int = 0
    number: int = 0
    due_ms: int = 0

    @property
    def slot(self) -> int:
        """The slot of its lane."""
        return self.lane % SLOT_COUNT


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that its target refused once more, or that cannot be read; parked rows are not retried."""

    row: TableRow
    reason: str
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that one relay holds, in the order of their insertion within each lane.

    Attributes:
        hold: The table's own object that keeps other relays off the slots.
    """

    slots: Sequence[int]
    rows: Sequence[TableRow]
    hold: Any = None


@dataclass(frozen=True, slots=True)
class Turned:
    """Result of one look at the delayed rows.

    Attributes:
        count: Rows that became ordinary ones, because they were due.
        next_s: Seconds until the next row is due, 0 where one is; None when no row waits.
    """

    count: int = 0
    next_s: float | None = None


class MessageTable(Protocol):
    """The interface of the table for a relay. One thread at a time for each relay; any number of relays."""

    def take(self, group: str, resting: Collection[int], row_max: int) -> Taken | None:
        """Hold some free slots, and return their oldest rows, at least one; None when there is nothing to do.

        All returned rows are committed and durable. The hold ends with `settle` or `drop`, with this process, and
        after `hold_s` at the latest.

        Args:
            resting: Lanes that are left out for now.
            row_max: Most rows of all slots together.

        Raises:
            BackendUnavailableError: the database failed; nothing is held.
        """

    def turn_due(self, group: str, row_max: int) -> Turned:
        """Turn up to *row_max* rows that are due into ordinary ones, in a short durable transaction of its own.

        Rows that another transaction holds are passed over: another relay turns them, or a cancel is under way.

        Raises:
            BackendUnavailableError: the database failed; rows that were not turned wait.
        """

    def settle(self, taken: Taken, sent: Sequence[TableRow], refused: Sequence[Refused]) -> None:
        """Delete the sent rows, record the refused ones, and release the slots; all of it or nothing.

        Raises:
            BackendUnavailableError: the database failed: sent rows may be sent again, with the same ids.
        """

    def drop(self, taken: Taken) -> None:
        """Release the slots and change nothing; raises nothing."""


def lane_of(group: str, key: bytes | None, transaction_id: bytes) -> int:
    """Return the lane of a message: one for each key of a group; without a key, one for each transaction.

    Two keys may share a lane; the only effect is that their messages wait for each other.
    """
    name = b"t" + transaction_id if key is None else b"k" + key
    digest = hashlib.blake2b(group.encode() + b"\0" + name, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # signed integers of the databases hold 63 bits
