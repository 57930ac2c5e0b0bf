"""AsyncSqlFence: `SqlFence` for asyncio. It holds no logic: `fence_core` and `fence_table` have it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from txcore.sqlfence.connections import on_border
from txcore.sqlfence.fence_core import FenceCore
from txcore.sqlfence.fence_table import CHUNK
from txcore.sqlfence.schema import LOWEST_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from txcore.connections import AsyncDatabaseConnection
    from txcore.fence import FenceReading
    from txcore.message_table import CancelState, TableRow
    from txcore.sqlfence.dialects import FenceRow
    from txcore.sqlfence.fence_table import FenceStats
    from txcore.sqlfence.identity import Database
    from txcore.sqlfence.prune import IsClosed, PruneResult


class AsyncSqlFence(FenceCore["AsyncEngine"]):
    """`SqlFence` for asyncio: on an AsyncEngine, with AsyncConnections and AsyncSessions.

    One serves a whole service in one event loop: its producer, and a `Checker` with that `event_loop`. A prune waits
    by `asyncio.sleep`, unless *sleep* is given.
    """

    is_async: ClassVar[Literal[True]] = True

    # The producer's side ----------------------------------------------------------------------------------------------

    async def begin(
        self, engine: AsyncEngine | None, transaction_id: bytes, group: str, digest: bytes = b""
    ) -> AsyncConnection:
        """See `SqlFence.begin`."""
        insert = partial(self._rows.insert, transaction_id=transaction_id, group=group, owned=True, digest=digest)
        return await self._runner_of(engine).begin_async(insert)

    async def insert(
        self,
        connection: AsyncDatabaseConnection,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        expected: bytes = b"",
        digest: bytes = b"",
    ) -> None:
        """See `SqlFence.insert`."""
        await on_border(connection, self._inserting(transaction_id, group, rows, expected, digest), self.engine)

    async def read_database(self) -> bytes:
        """See `SqlFence.read_database`."""
        return await self._read_database()

    async def verify(self, connection: AsyncDatabaseConnection, transaction_id: bytes, digest: bytes = b"") -> None:
        """See `SqlFence.verify`."""
        verify = partial(self._rows.verify, transaction_id=transaction_id, digest=digest)
        await on_border(connection, verify, self.engine)

    async def withdraw(self, connection: AsyncDatabaseConnection, transaction_id: bytes) -> None:
        """See `SqlFence.withdraw`."""
        await on_border(connection, self._withdrawing(transaction_id), self.engine)

    async def enqueue(
        self,
        connection: AsyncDatabaseConnection,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow],
        digest: bytes = b"",
    ) -> None:
        """See `SqlFence.enqueue`."""
        await on_border(connection, self._enqueueing(transaction_id, group, rows, digest), self.engine)

    async def now_ms(self, connection: AsyncDatabaseConnection) -> int:
        """See `SqlFence.now_ms`."""
        return await on_border(connection, self._read_clock, self.engine)

    async def cancel(self, connection: AsyncDatabaseConnection, transaction_id: bytes, group: str) -> CancelState:
        """See `SqlFence.cancel`."""
        return await on_border(connection, self._cancelling(transaction_id, group), self.engine)

    async def commit(self, connection: AsyncDatabaseConnection) -> None:
        """See `SqlFence.commit`."""
        await on_border(connection, self._rows.commit, self.engine)

    async def rollback(self, connection: AsyncDatabaseConnection) -> None:
        """See `SqlFence.rollback`."""
        await on_border(connection, self._rows.roll_back, self.engine)

    # The checker's side -----------------------------------------------------------------------------------------------

    async def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading]:
        """See `SqlFence.check`."""
        return await self._check(transaction_ids, group, databases)

    async def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """See `SqlFence.peek`."""
        return await self._peek(transaction_ids)

    async def settled(
        self, transaction_ids: Sequence[bytes], connection: AsyncDatabaseConnection | None = None
    ) -> Mapping[bytes, FenceReading]:
        """See `SqlFence.settled`."""
        return await self._settle(transaction_ids, connection)

    async def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> None:
        """See `SqlFence.force`."""
        await self._force(transaction_id, group, database)

    # The operator's side ----------------------------------------------------------------------------------------------

    async def create(self) -> None:
        """See `SqlFence.create`."""
        await self._create()

    async def identity(self) -> Database:
        """See `SqlFence.identity`."""
        return await self._identify()

    async def adopt(self, reason: str, by: str, former: bytes = b"") -> Database:
        """See `SqlFence.adopt`."""
        return await self._adopt(reason, by, former)

    async def rows(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceRow]:
        """See `SqlFence.rows`."""
        return await self._read_rows(transaction_ids)

    async def ids_below(self, below: bytes, after: bytes = LOWEST_ID, count: int = CHUNK) -> list[bytes]:
        """See `SqlFence.ids_below`."""
        return await self._ids_below(below, after, count)

    async def sent(self, transaction_ids: Sequence[bytes]) -> set[bytes]:
        """See `SqlFence.sent`."""
        return await self._sent(transaction_ids)

    async def stats(self) -> FenceStats:
        """See `SqlFence.stats`."""
        return await self._count()

    async def prune(
        self, below: bytes, is_closed: IsClosed, *, wait_s: float | None = None, chunk: int = CHUNK
    ) -> PruneResult:
        """See `SqlFence.prune`."""
        return await self._prune(below, is_closed, wait_s, chunk)
