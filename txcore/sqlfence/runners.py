"""The fence's own connections, synchronous and asynchronous: the only place where the two differ.

Both run the same synchronous actions on a border.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine

from txcore.errors import BackendUnavailableError, FenceMisuseError, TxcoreError
from txcore.fence import FenceAnswer
from txcore.sqlfence.asynchronous import AsyncConnection, AsyncEngine
from txcore.sqlfence.border import Border
from txcore.sqlfence.checks import Readings, no_answers
from txcore.sqlfence.connections import border_of
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.prune import LOCK_TIMEOUT_S, Contended, PruneResult, PruneSteps, Wait, transact

if TYPE_CHECKING:
    from txcore.sqlfence.dialects import Dialect

Answering = Callable[[Border, Sequence[bytes]], Readings]
_CONNECTIONS_MAX: Final = 2  # a pooled connection may be stale; after its failure the pool makes fresh ones


class SyncRunner:
    """Runs actions on connections of an Engine. Thread safe."""

    def __init__(
        self, engine: Engine, dialect: Dialect, secret: str | None, sleep: Callable[[float], Any] | None
    ) -> None:
        self._engine = engine
        self._dialect = dialect
        self._secret = secret
        self._sleep = sleep or time.sleep

    def begin(self, action: Callable[[Border], None]) -> Connection:
        """Return a fresh connection on which *action* has run; the connection is closed if *action* raises."""
        connection = self._open()
        try:
            action(border_of(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    def answer(self, ids: Sequence[bytes], action: Answering) -> Readings:
        """Return the answers of *action*; NO_ANSWER for ids on which the connection failed."""
        readings: Readings = {}
        for _ in range(_CONNECTIONS_MAX):
            try:
                with self._engine.connect() as connection:
                    readings = action(own_border(connection, self._dialect), ids)
            except Exception as error:  # noqa: BLE001 - any error of the driver or a hook is no answer
                readings = no_answers(ids, reason_of(error, self._secret))
            if not _all_lost(readings):
                break
        return readings

    def transact(self, action: Callable[[Border], Any], lock_timeout_s: float) -> Any:
        """Return the result of *action*, run in a transaction of its own; raises BackendUnavailableError."""
        return _uncontended(self._contend(action, lock_timeout_s))

    def look(self, action: Callable[[Border], Any]) -> Any:
        """Return the result of *action*, which reads without a lock; raises BackendUnavailableError."""
        with self._open() as connection, _reading(self._secret):
            return action(own_border(connection, self._dialect))

    def drive(self, steps: PruneSteps) -> PruneResult:
        """Run a prune."""
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: PruneResult = stop.value
                return result
            if isinstance(step, Wait):
                outcome = self._sleep(step.seconds)
            else:
                outcome = self._contend(step.action, LOCK_TIMEOUT_S)

    def _contend(self, action: Callable[[Border], Any], lock_timeout_s: float) -> Any:
        with self._open() as connection:
            return transact(self._dialect, own_border(connection, self._dialect), action, self._secret, lock_timeout_s)

    def _open(self) -> Connection:
        try:
            return self._engine.connect()
        except Exception as error:
            raise _unavailable(error, self._secret) from error


class AsyncRunner:
    """Runs the same actions on connections of an AsyncEngine; see `SyncRunner` for each method."""

    def __init__(
        self, engine: AsyncEngine, dialect: Dialect, secret: str | None, sleep: Callable[[float], Any] | None
    ) -> None:
        self._engine = engine
        self._dialect = dialect
        self._secret = secret
        self._sleep = sleep or asyncio.sleep

    async def begin(self, action: Callable[[Border], None]) -> AsyncConnection:
        """See `SyncRunner`."""
        connection = await self._open()
        try:
            await connection.run_sync(lambda inner: action(border_of(inner)))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def answer(self, ids: Sequence[bytes], action: Answering) -> Readings:
        """See `SyncRunner`."""
        readings: Readings = {}
        for _ in range(_CONNECTIONS_MAX):
            try:
                async with self._engine.connect() as connection:
                    readings = await connection.run_sync(lambda inner: action(own_border(inner, self._dialect), ids))
            except Exception as error:  # noqa: BLE001 - any error of the driver or a hook is no answer
                readings = no_answers(ids, reason_of(error, self._secret))
            if not _all_lost(readings):
                break
        return readings

    async def transact(self, action: Callable[[Border], Any], lock_timeout_s: float) -> Any:
        """See `SyncRunner`."""
        return _uncontended(await self._contend(action, lock_timeout_s))

    async def look(self, action: Callable[[Border], Any]) -> Any:
        """See `SyncRunner`."""
        connection = await self._open()
        try:
            with _reading(self._secret):
                return await connection.run_sync(lambda inner: action(own_border(inner, self._dialect)))
        finally:
            await connection.close()

    async def drive(self, steps: PruneSteps) -> PruneResult:
        """See `SyncRunner`."""
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: PruneResult = stop.value
                return result
            if isinstance(step, Wait):
                outcome = await self._sleep(step.seconds)
            else:
                outcome = await self._contend(step.action, LOCK_TIMEOUT_S)

    async def _contend(self, action: Callable[[Border], Any], lock_timeout_s: float) -> Any:
        connection = await self._open()
        try:
            return await connection.run_sync(
                lambda inner: transact(
                    self._dialect, own_border(inner, self._dialect), action, self._secret, lock_timeout_s
                )
            )
        finally:
            await connection.close()

    async def _open(self) -> AsyncConnection:
        try:
            return await self._engine.connect()
        except Exception as error:
            raise _unavailable(error, self._secret) from error


def runner_of(
    engine: Any, dialect: Dialect, secret: str | None, sleep: Callable[[float], Any] | None = None
) -> SyncRunner | AsyncRunner:
    """Return the runner for *engine*.

    Raises:
        FenceMisuseError: it is not an engine of SQLAlchemy.
    """
    if isinstance(engine, AsyncEngine):
        return AsyncRunner(engine, dialect, secret, sleep)
    if isinstance(engine, Engine):
        return SyncRunner(engine, dialect, secret, sleep)
    raise FenceMisuseError(f"the fence takes a SQLAlchemy Engine or AsyncEngine, not {type(engine).__name__}")


def own_border(connection: Connection, dialect: Dialect) -> Border:
    """Return the border over a connection of the fence's own, at the isolation level that the dialect asks for."""
    if dialect.own_isolation is not None:
        connection = connection.execution_options(isolation_level=dialect.own_isolation)
    return border_of(connection)


@contextmanager
def _reading(secret: str | None) -> Iterator[None]:
    try:
        yield
    except TxcoreError:
        raise
    except Exception as error:
        raise _unavailable(error, secret) from error


def reason_of(error: Exception, secret: str | None) -> str:
    """Return the reason of a reading without an answer."""
    return str(error) if isinstance(error, TxcoreError) else str(failure_of(error, secret))


def _unavailable(error: Exception, secret: str | None) -> BackendUnavailableError:
    return BackendUnavailableError(f"the fence's database: {failure_of(error, secret)}")


def _all_lost(readings: Readings) -> bool:
    lost = Cause.LOST.value
    return bool(readings) and all(
        reading.answer is FenceAnswer.NO_ANSWER and reading.reason.startswith(lost) for reading in readings.values()
    )


def _uncontended(outcome: Any) -> Any:
    if isinstance(outcome, Contended):
        raise BackendUnavailableError(f"the fence's database: {outcome.text}")
    return outcome
