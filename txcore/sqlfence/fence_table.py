"""The fence's tables as operators handle them, on either kind of engine: create, adopt, read, count, prune."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from sqlalchemy import MetaData
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from txcore.clock import Clock, SystemClock
from txcore.errors import ConfigError, UsageError
from txcore.ids import TransactionId, known_id
from txcore.sqlfence import identity
from txcore.sqlfence.border import POSTGRESQL, Border
from txcore.sqlfence.definitions import fence_ddl, fence_metadata
from txcore.sqlfence.dialects import ROWS_MAX, FenceRow
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.fence_row import RowKeeper, check_arguments
from txcore.sqlfence.identity import Adoption, Database
from txcore.sqlfence.kinds import is_async_engine
from txcore.sqlfence.prune import IsClosed, PruneResult, prune_steps, via_table
from txcore.sqlfence.runners import Runner, require_engine
from txcore.sqlfence.savepoints import watch_savepoints
from txcore.sqlfence.schema import IDENTITY_BYTES, tables_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

EngineT = TypeVar("EngineT", bound="Engine | AsyncEngine")
DEFAULT_TABLE: Final = "txcore_tx"
CHUNK: Final = 500
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


class FenceTable(Generic[EngineT]):
    """The engine of a fence, see `SqlFence` for the arguments, and the work of the methods for operators.

    Its coroutines wait for nothing but the database when the engine is a blocking one; see `runners.at_once`.
    """

    is_async: ClassVar[bool]

    def __init__(
        self,
        engine: EngineT,
        *,
        table: str = DEFAULT_TABLE,
        lock_timeout_s: float = 0.3,
        statement_timeout_s: float = 10.0,
        attempts_max: int = 3,
        digest: bool = True,
        clock: Clock | None = None,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        require_engine(type(self), engine, is_async=self.is_async)
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
        self.digests = digest
        self._lock_timeout_s = lock_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self._secret = engine.url.password
        self._dialect = dialect_of(engine.dialect.name, tables_named(table), statement_timeout_s)
        self._rows = RowKeeper(self._dialect, self._secret)
        self._own = Runner(engine, self._dialect, self._secret, sleep)
        self._database: bytes | None = None
        self._watch(engine)

    @staticmethod
    def ddl(dialect: str, *, table: str = DEFAULT_TABLE) -> list[str]:
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
    def metadata(dialect: str, *, table: str = DEFAULT_TABLE) -> MetaData:
        """Return a fence's tables as SQLAlchemy's, for the `target_metadata` of Alembic.

        A migration that Alembic generates has the tables without the meta row: let it run the statements of `ddl` too.

        Raises: as `ddl`.
        """
        own = dialect_of(dialect, tables_named(table))
        return fence_metadata(own.family, own.tables)

    async def _create(self) -> None:
        def action(border: Border) -> None:
            self._dialect.create(border, fence_ddl(self._dialect.family, self._dialect.tables))
            self._dialect.horizon(border)

        await self._own.transact(action, _CREATE_WAIT_S)

    async def _identify(self) -> Database:
        return await self._own.look(lambda border: identity.look_anew(self._dialect, border))

    async def _adopt(self, reason: str, by: str, former: bytes) -> Database:
        if not reason.strip() or not by.strip():
            raise UsageError("adopting a database needs a reason and the operator's name")
        if former and len(former) != IDENTITY_BYTES:
            raise UsageError(f"an identity has {IDENTITY_BYTES} bytes, not {len(former)}")
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")

        def action(border: Border) -> Database:
            database = identity.adopt(self._dialect, border, Adoption(former.hex(), at, by, reason))
            self._database = database.current
            return database

        return await self._own.transact(action, self._lock_timeout_s)

    async def _read_rows(self, transaction_ids: Sequence[bytes]) -> dict[bytes, FenceRow]:
        check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))

        def action(border: Border) -> dict[bytes, FenceRow]:
            found: dict[bytes, FenceRow] = {}
            for start in range(0, len(ids), ROWS_MAX):
                found |= self._dialect.read_whole(border, ids[start : start + ROWS_MAX])
            return found

        return await self._own.look(action)

    async def _ids_below(self, below: bytes, after: bytes, count: int) -> list[bytes]:
        check_arguments([below, after], "")
        return await self._own.look(lambda border: self._dialect.page(border, after, below, count))

    async def _sent(self, transaction_ids: Sequence[bytes]) -> set[bytes]:
        return await self._own.look(lambda border: via_table(self._dialect, transaction_ids, border)[0])

    async def _count(self) -> FenceStats:
        def action(border: Border) -> FenceStats:
            dialect = self._dialect
            groups = dialect.count_groups(border)
            states: Counter[int] = Counter()
            for counts in groups.values():
                states.update(counts)
            oldest, below = dialect.oldest(border), known_id(dialect.horizon(border))
            return FenceStats(dict(states), None if oldest is None else known_id(oldest), below, groups)

        return await self._own.transact(action, self._lock_timeout_s)

    async def _prune(self, below: bytes, is_closed: IsClosed, wait_s: float | None, chunk: int) -> PruneResult:
        check_arguments([below], "")
        wait_s = self._statement_timeout_s + 1 if wait_s is None else wait_s
        if wait_s <= self._statement_timeout_s:
            raise ConfigError(
                f"wait_s={wait_s} must be longer than statement_timeout_s={self._statement_timeout_s}", key="wait_s"
            )
        if not 1 <= chunk <= ROWS_MAX:
            raise ConfigError(f"chunk={chunk} must be between 1 and {ROWS_MAX}", key="chunk")
        return await self._own.drive(prune_steps(self._dialect, below, is_closed, wait_s=wait_s, chunk=chunk))

    def _watch(self, engine: Any) -> None:
        if self._dialect.family != POSTGRESQL:
            watch_savepoints(engine.sync_engine if is_async_engine(engine) else engine)
