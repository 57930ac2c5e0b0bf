"""The fence's own connections, blocking and asynchronous: the only place where the two differ.

Both run the same blocking actions on a border.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import Connection, Engine

from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError
from txcore.fence import FenceAnswer
from txcore.sqlfence.border import Border
from txcore.sqlfence.checks import Readings, no_answers
from txcore.sqlfence.connections import border_of
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.kinds import async_sessions, has_asyncio, is_async_engine, sessions
from txcore.sqlfence.prune import LOCK_TIMEOUT_S, Contended, PruneResult, PruneSteps, Wait, transact

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from txcore.sqlfence.dialects import Dialect

T = TypeVar("T")
Answering = Callable[[Border, Sequence[bytes]], Readings]
_CONNECTIONS_MAX: Final = 2  # a pooled connection may be stale; after its failure the pool makes fresh ones


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine of a Runner with a blocking engine: it waits for nothing but the database."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("a blocking engine made a coroutine wait")


def require_engine(user: type[Any], engine: object, *, is_async: bool) -> None:
    """Refuse an engine of the other kind.

    Args:
        user: The class that takes it; the other kind's class has the same name with or without "Async" before it.

    Raises:
        ConfigError: *engine* is not an AsyncEngine, or not an Engine.
    """
    name, has_greenlet = user.__name__, not is_async or has_asyncio()
    if (is_async_engine(engine) if is_async else isinstance(engine, Engine)) and has_greenlet:
        return
    wanted, other = ("AsyncEngine", name.removeprefix("Async")) if is_async else ("Engine", f"Async{name}")
    text = f"{name} takes a SQLAlchemy {wanted}, not a {type(engine).__module__}.{type(engine).__qualname__}"
    if not has_greenlet and not isinstance(engine, Engine):
        text = f"{name} needs greenlet, without which SQLAlchemy has no asyncio: pip install 'txcore[asyncio]'"
    elif is_async_engine(engine) or isinstance(engine, Engine):
        text = f"{name} takes a SQLAlchemy {wanted}, and this is an {type(engine).__name__}: use {other}"
    elif isinstance(engine, sessions() + async_sessions()):
        publisher = "async_session.AsyncSessionPublisher" if is_async else "session.SessionPublisher"
        text += f"; publish in a Session by txcore.integrations.{publisher}"
    raise ConfigError(text, key="engine")


class Runner:
    """Runs actions on connections of an Engine or an AsyncEngine. Thread safe.

    With an Engine its coroutines never wait: run them by `at_once`.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        dialect: Dialect,
        secret: str | None,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        self.is_async = is_async_engine(engine)
        self._engine: Any = engine
        self._dialect = dialect
        self._secret = secret
        self._sleep = sleep or (asyncio.sleep if self.is_async else time.sleep)

    def begin(self, action: Callable[[Border], None]) -> Connection:
        """Return a fresh connection on which *action* has run; the connection is closed if *action* raises."""
        try:
            connection: Connection = self._engine.connect()
        except Exception as error:
            raise self._unavailable(error) from error
        try:
            action(border_of(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    async def begin_async(self, action: Callable[[Border], None]) -> AsyncConnection:
        """See `begin`, of an AsyncEngine."""
        connection: AsyncConnection = await self._open()
        try:
            await connection.run_sync(lambda inner: action(border_of(inner)))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def answer(self, ids: Sequence[bytes], action: Answering) -> Readings:
        """Return the answers of *action*; NO_ANSWER for ids on which the connection failed."""
        readings: Readings = {}
        for _ in range(_CONNECTIONS_MAX):
            try:
                async with self._closing(await self._ended(self._engine.connect())) as connection:
                    readings = await self._run(connection, lambda inner: action(own_border(inner, self._dialect), ids))
            except Exception as error:  # noqa: BLE001 - any error of the driver or a hook is no answer
                readings = no_answers(ids, reason_of(error, self._secret))
            if not _all_lost(readings):
                break
        return readings

    async def transact(self, action: Callable[[Border], T], lock_timeout_s: float) -> T:
        """Return the result of *action*, run in a transaction of its own; raises BackendUnavailableError."""
        outcome = await self._contend(action, lock_timeout_s)
        if isinstance(outcome, Contended):
            raise BackendUnavailableError(f"the fence's database: {outcome.text}")
        return cast("T", outcome)

    async def look(self, action: Callable[[Border], T]) -> T:
        """Return the result of *action*, which reads without a lock; raises BackendUnavailableError."""
        async with self._closing(await self._open()) as connection:
            try:
                return await self._run(connection, lambda inner: action(own_border(inner, self._dialect)))
            except TxcoreError:
                raise
            except Exception as error:
                raise self._unavailable(error) from error

    async def drive(self, steps: PruneSteps) -> PruneResult:
        """Run a prune."""
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                return cast("PruneResult", stop.value)
            if isinstance(step, Wait):
                outcome = await self._ended(self._sleep(step.seconds))
            else:
                outcome = await self._contend(step, LOCK_TIMEOUT_S)

    async def _contend(self, action: Callable[[Border], Any], lock_timeout_s: float) -> Any:
        def work(inner: Connection) -> Any:
            return transact(self._dialect, own_border(inner, self._dialect), action, self._secret, lock_timeout_s)

        async with self._closing(await self._open()) as connection:
            return await self._run(connection, work)

    async def _open(self) -> Any:
        try:
            return await self._ended(self._engine.connect())
        except Exception as error:
            raise self._unavailable(error) from error

    @asynccontextmanager
    async def _closing(self, connection: Any) -> AsyncIterator[Any]:
        try:
            yield connection
        finally:
            if self.is_async:
                await asyncio.shield(connection.close())  # like SQLAlchemy's own `async with`
            else:
                connection.close()

    async def _run(self, connection: Any, work: Callable[[Connection], T]) -> T:
        return cast("T", await connection.run_sync(work)) if self.is_async else work(connection)

    async def _ended(self, call: Any) -> Any:
        """Return the result of a call of SQLAlchemy or `sleep`, which is an awaitable if the engine is asynchronous."""
        return await call if self.is_async else call

    def _unavailable(self, error: Exception) -> BackendUnavailableError:
        return BackendUnavailableError(f"the fence's database: {failure_of(error, self._secret)}")


def own_border(connection: Connection, dialect: Dialect) -> Border:
    """Return the border over a connection of the fence's own, at the isolation level that the dialect asks for."""
    if dialect.own_isolation is not None:
        connection = connection.execution_options(isolation_level=dialect.own_isolation)
    return border_of(connection)


def reason_of(error: Exception, secret: str | None) -> str:
    """Return the reason of a reading without an answer."""
    return str(error) if isinstance(error, TxcoreError) else str(failure_of(error, secret))


def _all_lost(readings: Readings) -> bool:
    lost = Cause.LOST.value
    return bool(readings) and all(
        reading.answer is FenceAnswer.NO_ANSWER and reading.reason.startswith(lost) for reading in readings.values()
    )
