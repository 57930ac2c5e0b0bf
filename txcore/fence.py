"""The fence port: the row in the user's own database that makes a check decisive.

The producer's database transaction inserts the row with state 1. The check writes a tombstone (state 2) for the
same key on a connection of its own and reads the winner, which is final. `sqlfence` implements this on SQLAlchemy.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from txcore.enums import direct
from txcore.message_table import CancelState, TableRow

NO_DATABASE: Final = bytes(16)
"""Identity of a fence whose database has no identity; it matches every database."""


@direct
class FenceAnswer(enum.Enum):
    """The fence's answer for one transaction."""

    COMMIT = "COMMIT"  #: state 1: the local transaction committed
    ROLLBACK = "ROLLBACK"  #: state 2: the local transaction never commits
    VIA_TABLE = "VIA_TABLE"  #: state 3: committed; its messages wait in the message table, whose relay sends them
    SENT = "SENT"  #: state 3, and the message table holds none of its messages: the relay has sent them
    FORCED = "FORCED"  #: state 4: an operator decided against the fence; the op log holds the decision
    PRUNED = "PRUNED"  #: no row, and the id lies below the horizon: the decision cannot be known any more
    ABSENT = "ABSENT"  #: no row (only from `peek` and `settled`, which write none)
    NO_ANSWER = "NO_ANSWER"  #: lock timeout, unreachable, standby: ask again, count nothing


@dataclass(frozen=True, slots=True)
class FenceReading:
    """An answer and, for NO_ANSWER, its reason and the seconds after which a retry may help (0: not known).

    Attributes:
        is_foreign: No answer, because the fence reads another database than the transaction's.
    """

    answer: FenceAnswer
    reason: str = ""
    retry_after_s: float = 0.0
    is_foreign: bool = False


class FenceAtHand(Protocol):
    """The part of a fence of either kind that never waits."""

    @property
    def is_async(self) -> bool:
        """Whether it is an `AsyncFence`."""

    @property
    def digests(self) -> bool:
        """Whether its rows take a digest of the transaction's messages; the producer then makes it."""

    def is_open(self, connection: Any) -> bool:
        """Return whether the transaction that carries the row is still open; never waits.

        Where the library cannot distinguish transactions (a plain driver connection), any open one counts.
        """

    def database_of(self, connection: Any) -> bytes:
        """Return the identity of the database into which the row on *connection* went; never waits.

        Empty where the fence knows none, as for `known_database`.
        """

    def known_database(self) -> bytes | None:
        """Return the identity of the fence's own database; None when it must be read first."""


class Fence(FenceAtHand, Protocol):
    """The component that decides whether a local transaction committed. Thread safe."""

    def begin(self, engine: Any, transaction_id: bytes, group: str, digest: bytes = b"") -> Any:
        """Open a connection of *engine* (None: the fence's own), begin, insert the row, make the commit durable.

        *digest* is that of the transaction's messages, if they are known already. Returns the connection. Raises as
        `insert`, after rolling back and closing, and BackendUnavailableError when the database cannot be reached.
        """

    def insert(
        self,
        connection: Any,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        expected: bytes = b"",
        digest: bytes = b"",
    ) -> None:
        """Insert the row in the caller's open top-level transaction and make its commit durable.

        After it returns, the row certainly belongs to that transaction, so a half that follows at once needs no
        `verify`. With *rows*, these go into the message table, and the row has state 3. *expected* is set when the
        half was written before and names its database. *digest* is that of the transaction's messages.

        Raises:
            WrongDatabaseError: the connection is to another database than *expected*.
            FenceMisuseError: autocommit connection, open savepoint, or a database that does not keep commits.
            FencedError: the row exists already, or the id lies below the horizon.
            NotSentError: the database failed otherwise.
            After each of them the transaction has been rolled back, so that a swallowed error commits nothing.
        """

    def verify(self, connection: Any, transaction_id: bytes, digest: bytes = b"") -> None:
        """Check, just before the half append, that the row belongs to this still open top-level transaction.

        A *digest* is written into the row: it was not known when `begin` wrote that. Only a call without one may be
        repeated.

        Raises:
            FenceMisuseError: it does not; the transaction was rolled back, and closed if `begin` opened it.
            FencedError: the horizon has passed the id meanwhile; likewise.
            NotSentError: the database failed; likewise.
        """

    def withdraw(self, connection: Any, transaction_id: bytes) -> None:
        """Delete the row again inside its own open transaction (a block that published nothing)."""

    def enqueue(
        self, connection: Any, transaction_id: bytes, group: str, rows: Sequence[TableRow], digest: bytes = b""
    ) -> None:
        """Insert messages into the message table and set the row to state 3, in the row's own open transaction.

        A *digest* is written into the row. Rows with a `due_ms` wait until then.

        Raises:
            FenceMisuseError: the row is not in this transaction; it was rolled back, as after each other error.
            NotSentError: the database failed.
        """

    def now_ms(self, connection: Any) -> int:
        """Return the clock of the connection's database, in whole milliseconds since 1970, rounded down.

        Raises:
            NotSentError: the database failed; the transaction was rolled back.
        """

    def cancel(self, connection: Any, transaction_id: bytes, group: str) -> CancelState:
        """Cancel the delayed messages of a transaction in the caller's open transaction; all of them or none.

        The result holds if and only if that transaction commits. Until its end, no relay turns a row of them.

        Raises:
            FenceMisuseError: the connection commits each statement by itself, or is of another kind of database.
            What else the database raises is raised as it is: the caller's transaction is the caller's.
        """

    def commit(self, connection: Any) -> None:
        """Commit and close a connection that `begin` opened.

        Raises:
            CommitUnknownError: COMMIT failed and may have applied.
        """

    def rollback(self, connection: Any) -> None:
        """Roll the transaction back in any case, and close the connection if `begin` opened it.

        Idempotent; a failure of the database raises nothing.
        """

    def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading]:
        """Write tombstones on a connection of its own and return the winner of each id.

        A failure of the database never raises: an id without a result is NO_ANSWER. A COMMIT or ROLLBACK is
        durable and final. An id of another group is NO_ANSWER with that reason. So is one whose half carries the
        identity of another database in *databases* (`is_foreign`): no tombstone is written for it.
        """

    def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """Read states without writing; ABSENT for no row. For operators and audits, never for decisions."""

    def settled(self, transaction_ids: Sequence[bytes], connection: Any = None) -> Mapping[bytes, FenceReading]:
        """Read the rows that are certainly committed and durable; ABSENT for every other id.

        A producer may act on COMMIT and VIA_TABLE; `check` decides all other answers. A failure of the database never
        raises: an unread id is NO_ANSWER.

        Reads on *connection*, which carried the row, if its holder still has it and no transaction is open on it: the
        pool may have no other connection. Otherwise reads on a connection of the fence's own.
        """

    def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> None:
        """Set state 4, inserting the row if there is none.

        Raises:
            BackendUnavailableError: unreachable.
            InMessageTableError: its messages are in the message table, so only their relay can hold them up.
            WrongDatabaseError: *database*, the identity in the half, is another one; nothing was written.
        """

    def read_database(self) -> bytes:
        """Read the identity of the fence's own database. Raises BackendUnavailableError when unreachable."""


class AsyncFence(FenceAtHand, Protocol):
    """`Fence` for asyncio: on asynchronous engines and connections, for one event loop."""

    async def begin(self, engine: Any, transaction_id: bytes, group: str, digest: bytes = b"") -> Any:
        """See `Fence.begin`."""

    async def insert(
        self,
        connection: Any,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        expected: bytes = b"",
        digest: bytes = b"",
    ) -> None:
        """See `Fence.insert`."""

    async def verify(self, connection: Any, transaction_id: bytes, digest: bytes = b"") -> None:
        """See `Fence.verify`."""

    async def withdraw(self, connection: Any, transaction_id: bytes) -> None:
        """See `Fence.withdraw`."""

    async def enqueue(
        self, connection: Any, transaction_id: bytes, group: str, rows: Sequence[TableRow], digest: bytes = b""
    ) -> None:
        """See `Fence.enqueue`."""

    async def now_ms(self, connection: Any) -> int:
        """See `Fence.now_ms`."""

    async def cancel(self, connection: Any, transaction_id: bytes, group: str) -> CancelState:
        """See `Fence.cancel`."""

    async def commit(self, connection: Any) -> None:
        """See `Fence.commit`."""

    async def rollback(self, connection: Any) -> None:
        """See `Fence.rollback`."""

    async def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading]:
        """See `Fence.check`."""

    async def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """See `Fence.peek`."""

    async def settled(self, transaction_ids: Sequence[bytes], connection: Any = None) -> Mapping[bytes, FenceReading]:
        """See `Fence.settled`."""

    async def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> None:
        """See `Fence.force`."""

    async def read_database(self) -> bytes:
        """See `Fence.read_database`."""


AnyFence: TypeAlias = Fence | AsyncFence
"""A fence of either kind; the drivers of flows await the second one's calls."""
