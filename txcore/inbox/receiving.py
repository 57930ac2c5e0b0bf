"""`Inbox` and `AsyncInbox`, the consumer's interface.

`table` holds the statements, `identity` the message's identity, and the fence's code opens connections.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from sqlalchemy import Engine, MetaData

from txcore.clock import Clock, SystemClock
from txcore.errors import ConfigError, UsageError
from txcore.ids import first_id_at
from txcore.inbox.identity import message_id_of
from txcore.inbox.table import InboxTable
from txcore.sqlfence.connections import border_of, on_border
from txcore.sqlfence.definitions import inbox_ddl, inbox_metadata
from txcore.sqlfence.dialects import ROWS_MAX
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.prune import PruneResult, prune_steps
from txcore.sqlfence.runners import Runner, at_once, require_engine
from txcore.sqlfence.schema import tables_named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

    from txcore.connections import AsyncDatabaseConnection, DatabaseConnection
    from txcore.sqlfence.border import Border

EngineT = TypeVar("EngineT", bound="Engine | AsyncEngine")
DEFAULT_TABLE: Final = "txcore_inbox"
_CREATE_WAIT_S: Final = 10.0


class Unentered:
    """What `receive` returns is no answer yet, so a program that takes it for one is stopped before any effect."""

    def __bool__(self) -> bool:
        raise UsageError(
            "inbox.receive(…) has no answer, and has recorded nothing, before its block is entered: write "
            "`with inbox.receive(connection, message) as is_first:`, and `async with` for an AsyncInbox"
        )


class Delivery(Unentered, AbstractContextManager[bool]):
    """The result of `Inbox.receive`; entering it records the message. Leaving it does nothing: the transaction ends."""

    def __init__(self, take: Callable[[], bool]) -> None:
        self._take = take

    def __enter__(self) -> bool:
        return self._take()

    def __exit__(self, *_: object) -> None:
        pass


class AsyncDelivery(Unentered, AbstractAsyncContextManager[bool]):
    """The result of `AsyncInbox.receive`, as `Delivery` is that of `Inbox.receive`."""

    def __init__(self, take: Callable[[], Awaitable[bool]]) -> None:
        self._take = take

    async def __aenter__(self) -> bool:
        return await self._take()

    async def __aexit__(self, *_: object) -> None:
        pass


class InboxCore(Generic[EngineT]):
    """The engine of an inbox, see `Inbox` for the arguments, and the work of its methods.

    Its coroutines wait for nothing but the database when the engine is a blocking one; see `runners.at_once`.
    """

    _is_async: ClassVar[bool]

    def __init__(self, engine: EngineT, *, table: str = DEFAULT_TABLE, clock: Clock | None = None) -> None:
        require_engine(type(self), engine, is_async=self._is_async)
        self.engine = engine
        self.table = table
        self._clock = clock or SystemClock()
        self._statements = InboxTable(engine.dialect.name, tables_named(table))
        self._own = Runner(engine, self._statements.dialect, engine.url.password)

    @staticmethod
    def ddl(dialect: str, *, table: str = DEFAULT_TABLE) -> list[str]:
        """Return the statements with which `create` makes an inbox's tables, without a connection.

        Repeating them is harmless. The last one writes the row of `<table>_meta`.

        Args:
            dialect: postgresql, mysql, mariadb or sqlite.
            table: Name of the table, as for the inbox.

        Raises:
            FenceMisuseError: an unknown dialect.
            ConfigError: *table* is not a plain name.
        """
        own = dialect_of(dialect, tables_named(table))
        return inbox_ddl(own.family, own.tables)

    @staticmethod
    def metadata(dialect: str, *, table: str = DEFAULT_TABLE) -> MetaData:
        """Return an inbox's tables as SQLAlchemy's, for the `target_metadata` of Alembic; see `SqlFence.metadata`.

        Raises: as `ddl`.
        """
        own = dialect_of(dialect, tables_named(table))
        return inbox_metadata(own.family, own.tables)

    async def _create(self) -> None:
        await self._own.transact(self._statements.create, _CREATE_WAIT_S)

    def _taking(self, message: Any, *, old_is_first: bool) -> Callable[[Border], bool]:
        identity = message_id_of(message)
        return lambda border: self._statements.take(border, identity, old_is_first=old_is_first)

    async def _prune(self, keep_s: float) -> PruneResult:
        if not keep_s > 0:
            raise ConfigError(f"keep_s={keep_s!r} must be more than 0 seconds", key="keep_s")
        below = first_id_at(max(self._clock.wall_ms() - round(keep_s * 1000), 0))
        steps = prune_steps(self._statements.dialect, below, frozenset, wait_s=0.0, chunk=ROWS_MAX, has_states=False)
        return await self._own.drive(steps)


class Inbox(InboxCore[Engine]):
    """Remembers the target messages that one consumer application has received. Thread safe.

    For blocking programs; `AsyncInbox` is the same for asyncio. Applications that share a database and read the same
    topics need a table each: a message that one of them has received is a repeated one for the other.

    Args:
        engine: SQLAlchemy Engine of the consumer's database, used by `create` and `prune` only.
        table: Name of the table, with a schema before it if need be; `<table>_meta` is the second one.
        clock: The clock from whose time `prune` counts back.

    Raises:
        ConfigError: an AsyncEngine, or *table* is not a plain name.
    """

    _is_async = False

    def create(self) -> None:
        """Create the tables if they are missing; idempotent, safe when several processes do it at once.

        Raises:
            UsageError: the tables were made by a newer txcore.
            BackendUnavailableError: the database cannot be reached or refused.
        """
        at_once(self._create())

    def receive(self, connection: DatabaseConnection, message: Any, *, old_is_first: bool = False) -> Delivery:
        """Record a message within the caller's open transaction; yields True for its first delivery.

            with engine.begin() as connection, inbox.receive(connection, message) as first:
                if first:
                    connection.execute(...)
            # committed: now acknowledge the message to the broker

        Acknowledge after the transaction's commit, first delivery or not: a crash between the two brings the message
        again, and it is then a repeated one. An exception that ends the block must also end the transaction: if it is
        caught between the two, the inbox row would be committed without the effect.

        A second consumer of the same message waits until the first one's transaction has ended; then it sees False
        if that committed, True if it rolled back. On PostgreSQL at REPEATABLE READ and above it gets the database's
        serialization error instead.

        Args:
            connection: A SQLAlchemy Connection or Session, a sqlite3.Connection or a psycopg.Connection; the
                transaction begins with this call if it has not begun.
            message: The message of the broker's client, or its headers; see `headers_of`.
            old_is_first: Whether an unknown message older than the horizon of `prune` counts as a first delivery.

        Raises:
            UsageError: a header is missing or malformed, the connection commits each statement by itself, or the table
                is missing.
            InboxHorizonError: older than the horizon and not remembered, nor is it now, should you commit: what you
                write in this transaction is then yours alone, such as a note for a person.
            What else the database or its driver raises is raised as it is: the caller's transaction is the caller's.
        """
        take = self._taking(message, old_is_first=old_is_first)
        return Delivery(lambda: take(border_of(connection, self.engine)))

    def prune(self, keep_s: float) -> PruneResult:
        """Forget messages of transactions that began more than *keep_s* seconds ago.

        First the horizon is raised and committed, then rows below it are deleted, some at a time. A message below
        the horizon that is not remembered is refused from then on (`InboxHorizonError`), never processed twice and
        never dropped. So *keep_s* affects no guarantee: choose it longer than the topic keeps messages and than a half
        may stay parked. Can be interrupted, run by several processes at once, and run again.

        Raises:
            ConfigError: *keep_s* is not more than 0.
            BackendUnavailableError: the database failed, or kept a lock for too long.
        """
        return at_once(self._prune(keep_s))


class AsyncInbox(InboxCore["AsyncEngine"]):
    """`Inbox` for asyncio: on an AsyncEngine, with AsyncConnections and AsyncSessions.

    Both kinds read and write the same tables.
    """

    _is_async = True

    async def create(self) -> None:
        """See `Inbox.create`."""
        await self._create()

    def receive(
        self, connection: AsyncDatabaseConnection, message: Any, *, old_is_first: bool = False
    ) -> AsyncDelivery:
        """See `Inbox.receive`, with `async with` instead of `with`."""
        take = self._taking(message, old_is_first=old_is_first)
        return AsyncDelivery(lambda: on_border(connection, take, self.engine))

    async def prune(self, keep_s: float) -> PruneResult:
        """See `Inbox.prune`."""
        return await self._prune(keep_s)
