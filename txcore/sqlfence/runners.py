"""The fence's own connections, synchronous and asynchronous: the only place where the two differ.

Both run the same synchronous actions on a border.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine

from txcore.errors import BackendUnavailableError, FenceMisuseError, TxcoreError
from txcore.fence import FenceAnswer
from txcore.sqlfence.asynchronous import AsyncEngine
from txcore.sqlfence.border import Border
from txcore.sqlfence.checks import Readings, no_answers
from txcore.sqlfence.connections import border_of
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.prune import LOCK_TIMEOUT_S, Contended, PruneResult, PruneSteps, Wait, transact

if TYPE_CHECKING:
    from txcore.sqlfence.dialects import Dialect

T = TypeVar("T")
Answering = Callable[[Border, Sequence[bytes]], Readings]
_CONNECTIONS_MAX: Final = 2  # a pooled connection may be stale; after its failure the pool makes fresh ones


def _for_both(flow: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T | Awaitable[T]]:
    """Return the method of a Runner that returns the coroutine of *flow*, or its result if the engine is synchronous.

    With a synchronous engine the coroutine awaits nothing that waits, and ends in its first step.
    """

    @functools.wraps(flow)
    def method(runner: Runner, *arguments: Any) -> T | Awaitable[T]:
        coroutine = flow(runner, *arguments)
        if runner.is_async:
            return coroutine
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        raise AssertionError("a synchronous engine made a coroutine wait")

    return method


class Runner:
    """Runs actions on connections of an Engine, or of an AsyncEngine: then its methods return awaitables. Thread safe.

    Raises:
        FenceMisuseError: it is not an engine of SQLAlchemy.
    """

    def __init__(
        self, engine: Any, dialect: Dialect, secret: str | None, sleep: Callable[[float], Any] | None = None
    ) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise FenceMisuseError(f"the fence takes a SQLAlchemy Engine or AsyncEngine, not {type(engine).__name__}")
        self.is_async = isinstance(engine, AsyncEngine)
        self._engine: Any = engine
        self._dialect = dialect
        self._secret = secret
        self._sleep = sleep or (asyncio.sleep if self.is_async else time.sleep)

    def begin(self, action: Callable[[Border], None]) -> Any:
        """Return a fresh connection on which *action* has run; the connection is closed if *action* raises."""
        if self.is_async:
            return self._begin(action)
        try:
            connection = self._engine.connect()
        except Exception as error:
            raise self._unavailable(error) from error
        try:
            action(border_of(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _begin(self, action: Callable[[Border], None]) -> Any:
        connection = await self._open()
        try:
            await connection.run_sync(lambda inner: action(border_of(inner)))
        except BaseException:
            await connection.close()
            raise
        return connection

    @_for_both
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

    @_for_both
    async def transact(self, action: Callable[[Border], Any], lock_timeout_s: float) -> Any:
        """Return the result of *action*, run in a transaction of its own; raises BackendUnavailableError."""
        outcome = await self._contend(action, lock_timeout_s)
        if isinstance(outcome, Contended):
            raise BackendUnavailableError(f"the fence's database: {outcome.text}")
        return outcome

    @_for_both
    async def look(self, action: Callable[[Border], Any]) -> Any:
        """Return the result of *action*, which reads without a lock; raises BackendUnavailableError."""
        async with self._closing(await self._open()) as connection:
            try:
                return await self._run(connection, lambda inner: action(own_border(inner, self._dialect)))
            except TxcoreError:
                raise
            except Exception as error:
                raise self._unavailable(error) from error

    @_for_both
    async def drive(self, steps: PruneSteps) -> PruneResult:
        """Run a prune."""
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: PruneResult = stop.value
                return result
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
            await self._close(connection)

    async def _close(self, connection: Any) -> None:
        if self.is_async:
            await asyncio.shield(connection.close())  # like SQLAlchemy's own `async with`
        else:
            connection.close()

    async def _run(self, connection: Any, work: Callable[[Connection], Any]) -> Any:
        return await connection.run_sync(work) if self.is_async else work(connection)

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
