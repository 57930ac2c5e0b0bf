"""The SQL fence as a sidecar uses it: protected by a circuit, timed, on an engine that several groups may share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from txcore.clock import Clock
from txcore.config import DatabaseSection
from txcore.errors import BackendNotInstalledError, CheckPostponedError, ConfigError
from txcore.fence import FenceAnswer, FenceReading
from txcore.history.journey import Journey
from txcore.ids import ID_BYTES
from txcore.operator.lookup import Asked, ask_fence
from txcore.sidecar.source_circuit import SourceCircuit

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

    from txcore.sqlfence import SqlFence

POOL_TIMEOUT_S: Final = 5.0
UNUSED_ID: Final = b"\xff" * ID_BYTES
"""An id that no transaction has: a question about it shows whether the table can be read."""


def open_engine(url: str, section: DatabaseSection) -> Engine:
    """Return an engine for the checks; nothing is connected yet.

    Raises:
        BackendNotInstalledError: SQLAlchemy or the database's driver is missing.
        ConfigError: not a database URL, or one with an asynchronous driver.
    """
    try:
        from txcore.sqlfence import engines  # noqa: PLC0415 - only groups with a fence need SQLAlchemy
    except BackendNotInstalledError as error:
        raise BackendNotInstalledError("a fence", error.driver, error.extra) from error

    def options_of(parsed: URL) -> dict[str, Any]:
        arguments = engines.connect_timeout(parsed, section.connect_timeout_s)
        pool = {"pool_size": section.connections_max, "max_overflow": 0, "pool_timeout": POOL_TIMEOUT_S}
        return {**pool, "connect_args": arguments}

    mistake = partial(ConfigError, key="url")
    try:
        return engines.open_engine(url, "the checker", options_of, mistake)
    except TypeError as error:
        raise mistake("an SQLite database in memory cannot be shared by processes; name a file") from error


def open_fence(engine: Engine, table: str, section: DatabaseSection) -> SqlFence:
    """Return the fence in *table*.

    Raises:
        ConfigError: the table's name is not a plain identifier, or the database has no fence.
    """
    from txcore.sqlfence import SqlFence  # noqa: PLC0415 - SQLAlchemy again

    return SqlFence(
        engine,
        table=table,
        lock_timeout_s=section.lock_timeout_s,
        statement_timeout_s=section.statement_timeout_s,
    )


class GuardedFence:
    """The fence of a checker, protected by a circuit breaker. Thread safe.

    Locked ids are no failure; the circuit opens only when the database does not even answer a plain read.
    """

    is_async = False

    def __init__(
        self, fence: SqlFence, circuit: SourceCircuit, clock: Clock, observe: Callable[[float], None], deadline_s: float
    ) -> None:
        self.fence = fence
        self.circuit = circuit
        self._clock = clock
        self._observe = observe
        self._deadline_s = deadline_s

    def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading]:
        """See `Fence.check`; an open circuit raises, with the time of the next try."""
        try:
            with self.circuit.question(self._deadline_s) as question:
                began_s = self._clock.elapsed_s()
                readings = self.fence.check(transaction_ids, group, databases)
                if all(reading.answer is FenceAnswer.NO_ANSWER for reading in readings.values()):
                    question.failure = self._failure(transaction_ids)
                else:
                    self._observe(self._clock.elapsed_s() - began_s)
        except CheckPostponedError as error:
            reading = FenceReading(FenceAnswer.NO_ANSWER, str(error), error.retry_after_s)
            return dict.fromkeys(transaction_ids, reading)
        retry_after_s = self.circuit.retry_after_s
        if not retry_after_s:
            return readings
        return {item: replace(each, retry_after_s=retry_after_s) for item, each in readings.items()}

    def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """See `Fence.peek`."""
        return self.fence.peek(transaction_ids)

    def look(self, journey: Journey) -> Asked:
        """Return the fence's answer for operators, see `ask_fence`; a database whose circuit is open is not asked."""
        half = journey.any_half
        if self.circuit.reason and half is not None and half.asks_fence:
            return Asked(FenceReading(FenceAnswer.NO_ANSWER, self.circuit.reason))
        return ask_fence(self.fence, journey)

    def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> None:
        """See `Fence.force`; an operator's decision passes an open circuit."""
        self.fence.force(transaction_id, group, database)

    def _failure(self, transaction_ids: Sequence[bytes]) -> str:
        """Return the reason why the database answers no query; "" when only these ids have no answer."""
        if not transaction_ids:
            return ""
        reading = self.peek(transaction_ids[:1])[transaction_ids[0]]
        return reading.reason if reading.answer is FenceAnswer.NO_ANSWER else ""
