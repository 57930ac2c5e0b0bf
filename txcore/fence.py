"""The fence port: the row in the user's own database that makes a check decisive.

The producer's database transaction inserts the row with state 1. The check writes a tombstone (state 2) for the
same key on a connection of its own and reads the winner, for ever. `sqlfence` implements this on SQLAlchemy.
Methods that take a connection return an awaitable when the connection is an asynchronous one.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txcore.enums import direct
from txcore.table import TableRow


@direct
class FenceAnswer(enum.Enum):
    """What the fence says about one transaction."""

    COMMIT = "COMMIT"  #: state 1: the local transaction committed
    ROLLBACK = "ROLLBACK"  #: state 2: it never will
    VIA_TABLE = "VIA_TABLE"  #: state 3: committed; its messages wait in the message table, whose relay sends them
    SENT = "SENT"  #: state 3, and the message table holds nothing of it any more: the relay has sent them
    FORCED = "FORCED"  #: state 4: an operator decided against the fence; the op log says how
    PRUNED = "PRUNED"  #: no row, and the id lies below the horizon: nobody can know any more
    ABSENT = "ABSENT"  #: no row (only from `peek`, which writes none)
    NO_ANSWER = "NO_ANSWER"  #: lock timeout, unreachable, standby: ask again, count nothing


@dataclass(frozen=True, slots=True)
class FenceReading:
    """An answer and, for NO_ANSWER, its reason, and in how many seconds asking again may help (0 if nobody knows)."""

    answer: FenceAnswer
    reason: str = ""
    retry_after_s: float = 0.0


class Fence(Protocol):
    """Who decides whether a local transaction committed. Thread safe."""

    def begin(self, engine: Any, transaction_id: bytes, group: str) -> Any:
        """Open a connection of *engine* (None: the fence's own), begin, insert the row, make the commit durable.

        Returns the connection, or an awaitable of it for an asynchronous engine. Raises as `insert`, after rolling
        back and closing, and BackendUnavailableError when the database cannot be reached.
        """

    def insert(
        self, connection: Any, transaction_id: bytes, group: str, rows: Sequence[TableRow] = ()
    ) -> Awaitable[None] | None:
        """Insert the row in the caller's open top-level transaction and make its commit durable.

        When it returns, the row belongs to that transaction for certain, so a half that follows at once needs no
        `verify`. With *rows*, these go into the message table, and the row has state 3.

        Raises:
            FenceMisuseError: autocommit connection, open savepoint, or a database that does not keep commits.
            FencedError: the row is there already, or the id lies below the horizon.
            NotSentError: the database failed otherwise.
            After each of them the transaction has been rolled back, so that a swallowed error commits nothing.
        """

    def verify(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Check, just before the half append, that the row belongs to this still open top-level transaction.

        Raises:
            FenceMisuseError: it does not; the transaction was rolled back, and closed if `begin` opened it.
            FencedError: the horizon has passed the id meanwhile; likewise.
            NotSentError: the database failed; likewise.
        """

    def is_open(self, connection: Any) -> bool:
        """Return whether the transaction that carries the row is still open; never waits.

        Where the library cannot tell transactions apart (a plain driver connection), any open one counts.
        """

    def withdraw(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Delete the row again inside its own open transaction (a block that published nothing)."""

    def enqueue(
        self, connection: Any, transaction_id: bytes, group: str, rows: Sequence[TableRow]
    ) -> Awaitable[None] | None:
        """Put messages into the message table and turn the row to state 3, in the row's own open transaction.

        Raises:
            FenceMisuseError: the row is not in this transaction; it was rolled back, as after each other error.
            NotSentError: the database failed.
        """

    def commit(self, connection: Any) -> Awaitable[None] | None:
        """Commit and close a connection that `begin` opened.

        Raises:
            CommitUnknownError: COMMIT failed and may have applied.
        """

    def rollback(self, connection: Any) -> Awaitable[None] | None:
        """Roll the transaction back, whoever opened it, and close the connection if `begin` opened it.

        Idempotent; raises nothing for the database's sake.
        """

    def check(
        self, transaction_ids: Sequence[bytes], group: str
    ) -> Mapping[bytes, FenceReading] | Awaitable[Mapping[bytes, FenceReading]]:
        """Write tombstones on a connection of its own and return the winner of each id.

        Never raises for the database's sake: what could not be found out is NO_ANSWER. A COMMIT or ROLLBACK is
        durable and final. An id of another group is NO_ANSWER with that reason.
        """

    def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """Read states without writing; ABSENT for no row. For operators and audits, never for decisions."""

    def force(self, transaction_id: bytes, group: str) -> Awaitable[None] | None:
        """Set state 4, inserting the row if there is none. Raises BackendUnavailableError when unreachable."""
