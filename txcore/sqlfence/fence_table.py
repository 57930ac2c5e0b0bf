"""The fence's tables as operators handle them: create, identify, adopt, read, count, prune."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, MetaData
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from txcore.clock import Clock, SystemClock
from txcore.errors import ConfigError, UsageError
from txcore.ids import TransactionId, known_id
from txcore.sqlfence import identity
from txcore.sqlfence.asynchronous import AsyncEngine
from txcore.sqlfence.border import POSTGRESQL, Border
from txcore.sqlfence.definitions import fence_ddl, fence_metadata
from txcore.sqlfence.dialects import ROWS_MAX, FenceRow
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.fence_row import RowKeeper, check_arguments
from txcore.sqlfence.identity import Adoption, Database
from txcore.sqlfence.prune import IsClosed, prune_steps, via_table
from txcore.sqlfence.runners import Runner
from txcore.sqlfence.schema import IDENTITY_BYTES, LOWEST_ID, tables_named
from txcore.sqlfence.transaction_state import watch_savepoints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

DEFAULT_TABLE: Final = "txcore_tx"
_CHUNK: Final = 500
_CREATE_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FenceStats:
    """The table's contents in numbers, for operators.

    Attributes:
        states: Rows per state (1 committed, 2 tombstone, 3 via the message table, 4 forced).
        oldest: The smallest id, whose `born_ms` gives its time.
        pruned_below: The horizon.
        groups: The same rows per producer group and state.
    """

    states: Mapping[int, int]
    oldest: TransactionId | None
    pruned_below: TransactionId
    groups: Mapping[str, Mapping[int, int]]


class FenceTable:
    """The engine of a `SqlFence`, see there for the arguments, and the methods that operators and their tools call."""

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        table: str = DEFAULT_TABLE,
        lock_timeout_s: float = 0.3,
        statement_timeout_s: float = 10.0,
        attempts_max: int = 3,
        clock: Clock | None = None,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"the fence takes a SQLAlchemy Engine or AsyncEngine, not {engine!r}", key="engine")
        for key, value in (("lock_timeout_s", lock_timeout_s), ("statement_timeout_s", statement_timeout_s)):
            if not 0 < value <= 3_600:
                raise ConfigError(f"{key}={value!r} must be more than 0 and at most 3600 seconds", key=key)
        if attempts_max < 1:
            raise ConfigError(f"attempts_max={attempts_max!r} must be at least 1", key="attempts_max")
        if isinstance(engine.pool, StaticPool | SingletonThreadPool):
            raise ConfigError(
                "the fence needs connections of its own, but this engine's pool shares one (in-memory SQLite?): "
                "use a database file",
                key="engine",
            )
        self.engine = engine
        self.table = table
        self._lock_timeout_s = lock_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self._secret = engine.url.password
        self._dialect = dialect_of(engine.dialect.name, tables_named(table), statement_timeout_s)
        self._rows = RowKeeper(self._dialect, self._secret)
        self._own = Runner(engine, self._dialect, self._secret, sleep)
        self._database: bytes | None = None
        self._must_await_create = False
        self._watch(engine)

    @staticmethod
    def ddl(dialect: str, table: str = DEFAULT_TABLE) -> list[str]:
        """Return the statements with which `create` makes all tables of a fence, without a connection.

        For a migration, or a person with the rights to make tables. Repeating them is harmless. The last one writes the
        meta row, for which the database itself draws the identity: each database in which it runs gets its own. Tables
        of an older schema version lack columns that these statements do not add; `create` does.

        Args:
            dialect: postgresql, mysql, mariadb or sqlite.
            table: Name of the table, as for the fence.

        Raises:
            FenceMisuseError: an unknown dialect.
            ConfigError: *table* is not a plain name.
        """
        own = dialect_of(dialect, tables_named(table))
        return fence_ddl(own.family, own.tables)

    @staticmethod
    def metadata(dialect: str, table: str = DEFAULT_TABLE) -> MetaData:
        """Return a fence's tables as SQLAlchemy's, for the `target_metadata` of Alembic.

        A migration that Alembic generates has the tables without the meta row: let it run the statements of `ddl` too.

        Raises: as `ddl`.
        """
        own = dialect_of(dialect, tables_named(table))
        return fence_metadata(own.family, own.tables)

    def create(self) -> Any:
        """Create the tables that are missing; idempotent, safe when several processes do it at once.

        Tables of an older schema version are upgraded in place, and keep their rows. With an AsyncEngine this must be
        awaited; before that, the fence refuses to work.

        Raises:
            UsageError: the tables were made by a newer txcore.
            BackendUnavailableError: the database cannot be reached or refused, or tables of an older version could not
                be upgraded in 3 s, because a transaction is open; they still work unchanged.
        """

        def action(border: Border) -> None:
            self._dialect.create(border, fence_ddl(self._dialect.family, self._dialect.tables))
            self._dialect.horizon(border)

        created = self._own.transact(action, _CREATE_WAIT_S)
        if not self.is_async:
            return None
        self._must_await_create = True
        return self._created(created)

    async def _created(self, creation: Awaitable[None]) -> None:
        self._must_await_create = False
        await creation

    @property
    def is_async(self) -> bool:
        """Whether the fence's own engine is an asynchronous one, so that its methods return awaitables."""
        return isinstance(self.engine, AsyncEngine)

    def identity(self) -> Any:
        """Return the `Database` of the fence's own engine: its identity, and former ones (or an awaitable).

        Raises:
            BackendUnavailableError: unreachable.
        """
        return self._own.look(lambda border: identity.look_anew(self._dialect, border))

    def adopt(self, reason: str, by: str, former: bytes = b"") -> Any:
        """Make the fence's database decide for the one that it replaces, and return its `Database` (or an awaitable).

        For a deliberate move whose former database is no longer used: dump and restore, pg_upgrade (the database
        detects by itself that it is a copy), or new tables that were filled by replication (name *former*).

        Args:
            reason: The reason; stored with the time and *by*, the name of the caller.
            former: The identity of the former database, if this one was not copied from it.

        Raises:
            UsageError: no reason, nothing to adopt, a role that cannot find out, or tables of schema version 1.
            BackendUnavailableError: unreachable.
        """
        if not reason.strip() or not by.strip():
            raise UsageError("adopting a database needs a reason and the operator's name")
        if former and len(former) != IDENTITY_BYTES:
            raise UsageError(f"an identity has {IDENTITY_BYTES} bytes, not {len(former)}")
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")
        adoption = Adoption(former.hex(), at, by, reason)

        def action(border: Border) -> Database:
            database = identity.adopt(self._dialect, border, adoption)
            self._database = database.current
            return database

        return self._own.transact(action, self._lock_timeout_s)

    def rows(self, transaction_ids: Sequence[bytes]) -> Any:
        """Return the FenceRow of each id that has one, without writing (an awaitable with an AsyncEngine).

        Raises:
            BackendUnavailableError: unreachable.
        """
        check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))

        def action(border: Border) -> dict[bytes, FenceRow]:
            found: dict[bytes, FenceRow] = {}
            for start in range(0, len(ids), ROWS_MAX):
                found |= self._dialect.read_whole(border, ids[start : start + ROWS_MAX])
            return found

        return self._own.look(action)

    def ids_below(self, below: bytes, after: bytes = LOWEST_ID, count: int = _CHUNK) -> Any:
        """Return up to *count* ids of rows between *after* and *below*, both excluded, ascending.

        Reads only (an awaitable with an AsyncEngine). Raises BackendUnavailableError when unreachable.
        """
        check_arguments([below, after], "")
        return self._own.look(lambda border: self._dialect.page(border, after, below, count))

    def sent(self, transaction_ids: Sequence[bytes]) -> Any:
        """Return the ids of state 3 whose messages are all sent, without writing (an awaitable with an AsyncEngine).

        Raises BackendUnavailableError when unreachable.
        """
        return self._own.look(lambda border: via_table(self._dialect, transaction_ids, border)[0])

    def stats(self) -> Any:
        """Return FenceStats (an awaitable with an AsyncEngine). Counts every row.

        Raises:
            BackendUnavailableError: unreachable.
        """

        def action(border: Border) -> FenceStats:
            dialect = self._dialect
            groups = dialect.count_groups(border)
            states: Counter[int] = Counter()
            for counts in groups.values():
                states.update(counts)
            oldest, below = dialect.oldest(border), known_id(dialect.horizon(border))
            return FenceStats(dict(states), None if oldest is None else known_id(oldest), below, groups)

        return self._own.transact(action, self._lock_timeout_s)

    def prune(self, below: bytes, is_closed: IsClosed, *, wait_s: float | None = None, chunk: int = _CHUNK) -> Any:
        """Raise the horizon to *below*, wait, then delete the ids below it that *is_closed* names.

        Rows of state 3 stay while the message table holds a message of them, named or not. Most of them have no half,
        and so no final op: name the ids that `sent` names, except those whose half is pending or parked. A half whose
        row is gone is parked as PRUNED, although its messages are sent.

        Returns a PruneResult (an awaitable with an AsyncEngine). Can be interrupted and run again.

        Args:
            below: First id that is not pruned; `ids.first_id_at` makes one from a time.
            is_closed: Given up to *chunk* ids, returns those whose final op is in force, or that have no half, and that
                are neither pending nor parked. Called after the wait. Its exception ends the prune.
            wait_s: Seconds, more than any producer's insert may take; default one more than `statement_timeout_s`.
            chunk: Most rows of one delete.

        Raises:
            ConfigError: *wait_s* is not longer than `statement_timeout_s`, or *chunk* is out of range.
            BackendUnavailableError: the database failed, or kept a lock for too long.
        """
        check_arguments([below], "")
        wait_s = self._statement_timeout_s + 1 if wait_s is None else wait_s
        if wait_s <= self._statement_timeout_s:
            raise ConfigError(
                f"wait_s={wait_s} must be longer than statement_timeout_s={self._statement_timeout_s}", key="wait_s"
            )
        if not 1 <= chunk <= ROWS_MAX:
            raise ConfigError(f"chunk={chunk} must be between 1 and {ROWS_MAX}", key="chunk")
        return self._own.drive(prune_steps(self._dialect, below, is_closed, wait_s=wait_s, chunk=chunk))

    def _watch(self, engine: Any) -> None:
        if self._dialect.family != POSTGRESQL:
            watch_savepoints(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)
