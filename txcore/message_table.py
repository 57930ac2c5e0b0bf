"""The message table's port: messages that wait in the user's own database until a relay has published them.

A producer that does not write a half puts its messages there, in the transaction of its fence row, which then has
state 3. Rows are sent in the order in which they were inserted, one at a time for each *lane* (one group and message
key); a relay holds the *slots* that its lanes fall into while it sends. `sqlfence` implements this on SQLAlchemy.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from txcore.enums import direct

SLOT_COUNT: Final = 64
"""Slots of one group; part of the stored format."""


@direct
class Mode(enum.StrEnum):
    """How a producer's messages travel to the broker."""

    HALF = "half"  #: a half record, acknowledged before the database commits
    TABLE = "table"  #: rows of the message table, in the database transaction; a relay publishes them
    AUTO = "auto"  #: a half, and the message table while the broker is down, slow or full


class TableRow(msgspec.Struct, frozen=True):
    """One message on its way through the table.

    Attributes:
        index: Its place in the transaction.
        lane: What is kept in order: see `lane_of`.
        body: The encoded message, see `wire.encode_message`.
        tries: How often its target has refused it.
        number: Its place in the order of insertion; 0 before that.
    """

    transaction_id: bytes
    index: int
    lane: int
    body: bytes
    tries: int = 0
    number: int = 0

    @property
    def slot(self) -> int:
        """The slot that its lane falls into."""
        return self.lane % SLOT_COUNT


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that its target refused once more, or that cannot be read; parked ones are tried no more."""

    row: TableRow
    reason: str
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows in the hand of one relay, in the order of their insertion within each lane.

    Attributes:
        is_full: There was more to take.
        hold: What keeps other relays off the slots; the table's own.
    """

    slots: Sequence[int]
    rows: Sequence[TableRow]
    is_full: bool
    hold: Any = None


class MessageTable(Protocol):
    """What a relay asks of the table. One thread at a time for each relay; any number of relays."""

    def take(self, group: str, resting: Collection[int], row_max: int) -> Taken | None:
        """Hold some slots that nobody else holds, and return their oldest rows; None when there is nothing to do.

        All that it returns is committed and durable. The hold ends with `settle` or `drop`, with this process, and
        after `hold_s` at the latest.

        Args:
            resting: Lanes that are left out for now.
            row_max: Most rows of all slots together.

        Raises:
            BackendUnavailableError: the database failed; nothing is held.
        """

    def settle(self, taken: Taken, sent: Sequence[TableRow], refused: Sequence[Refused]) -> None:
        """Delete what was sent, note what was refused, and let go of the slots; all of it or nothing.

        Raises:
            BackendUnavailableError: the database failed: what was sent may be sent again, with the same ids.
        """

    def drop(self, taken: Taken) -> None:
        """Let go of the slots and change nothing; raises nothing."""


def lane_of(group: str, key: bytes | None, transaction_id: bytes) -> int:
    """Return the lane of a message: one for each key of a group; without a key, one for each transaction.

    Lanes of two keys may fall together; then their messages wait for each other and nothing else.
    """
    name = b"t" + transaction_id if key is None else b"k" + key
    digest = hashlib.blake2b(group.encode() + b"\0" + name, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # signed integers of the databases hold 63 bits
