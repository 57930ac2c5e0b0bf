"""The entries of the writer's queue: halves, releases, marks and calls, each with all its possible outcomes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from txcore.errors import TxcoreError
from txcore.port import Batch
from txcore.records import HalfRecord, Op, Outcome, Resolution, Status
from txcore_sqlite.ledger import Ledger


class Work(Protocol):
    """One entry of the queue. After `apply`, or without it, exactly one of `done` and `fail` is called."""

    deadline_s: float  #: time of the clock after which the entry no longer waits for the lock

    @property
    def size(self) -> int:
        """Return the number of items in this entry; at least 1."""

    def apply(self, ledger: Ledger) -> None:
        """Add its rows to the open transaction; may be called again after a rollback."""

    def done(self) -> None:
        """Report the outcomes of the last `apply`; its transaction is committed."""

    def fail(self, status: Status, error: TxcoreError) -> None:
        """Report that nothing is stored (REFUSED) or that it is not known (UNKNOWN)."""


class _BatchWork:
    """A batch; an item that was refused for its own reason keeps that reason when the whole transaction fails."""

    __slots__ = ("_batch", "_outcomes", "deadline_s", "size")

    def __init__(self, batch: Batch[Any], size: int, deadline_s: float) -> None:
        self._batch = batch
        self._outcomes: Sequence[Outcome] = ()
        self.size = size
        self.deadline_s = deadline_s

    def done(self) -> None:
        """See `Work`."""
        settle = self._batch.settle
        for index, outcome in enumerate(self._outcomes):
            settle(index, outcome)

    def fail(self, status: Status, error: TxcoreError) -> None:
        """See `Work`."""
        failure = Outcome(status, error)
        own = self._outcomes
        for index in range(self.size):
            refused = index < len(own) and own[index].status is Status.REFUSED
            self._batch.settle(index, own[index] if refused else failure)


class HalfWork(_BatchWork):
    """Halves to append."""

    __slots__ = ("_halves",)

    def __init__(self, batch: Batch[HalfRecord], deadline_s: float) -> None:
        self._halves = [*batch.items]
        super().__init__(batch, len(self._halves), deadline_s)

    def apply(self, ledger: Ledger) -> None:
        """See `Work`."""
        self._outcomes = ledger.append_halves(self._halves)


class ReleaseWork(_BatchWork):
    """Targets, parked records and ops to release; *fenced* when a checker sent them."""

    __slots__ = ("_fenced", "_resolutions")

    def __init__(self, batch: Batch[Resolution], deadline_s: float, *, fenced: bool) -> None:
        self._resolutions = [*batch.items]
        self._fenced = fenced
        super().__init__(batch, len(self._resolutions), deadline_s)

    def apply(self, ledger: Ledger) -> None:
        """See `Work`."""
        self._outcomes = ledger.release(self._resolutions, fenced=self._fenced)

    def fail(self, status: Status, error: TxcoreError) -> None:
        """See `Work`. All targets of an unknown release are reported missing; none of one that was not stored."""
        own = self._outcomes
        is_unknown = status is Status.UNKNOWN
        for index, resolution in enumerate(self._resolutions):
            if index < len(own) and own[index].status is Status.REFUSED:
                self._batch.settle(index, own[index])
            else:
                missing = tuple(resolution.targets) if is_unknown else ()
                self._batch.settle(index, Outcome(status, error, missing=missing))


@dataclass(slots=True)
class MarkWork:
    """A CLAIM or TICK."""

    group: str
    partition: int
    op: Op
    fenced: bool
    deadline_s: float
    future: Future[Outcome]
    outcome: Outcome | None = None

    @property
    def size(self) -> int:
        """See `Work`."""
        return 1

    def apply(self, ledger: Ledger) -> None:
        """See `Work`."""
        self.outcome = ledger.mark(self.group, self.partition, self.op, fenced=self.fenced)

    def done(self) -> None:
        """See `Work`."""
        assert self.outcome is not None
        self.future.set_result(self.outcome)

    def fail(self, status: Status, error: TxcoreError) -> None:
        """See `Work`."""
        self.future.set_result(Outcome(status, error))


@dataclass(slots=True)
class CallWork:
    """A function that reads and writes tables in the transaction; its result or error goes to the Future.

    `call` receives the connection and the transaction's wall clock in milliseconds. If it raises an error of txcore,
    its changes are undone; the transaction's other entries are not affected.
    """

    call: Callable[[sqlite3.Connection, int], Any]
    deadline_s: float
    future: Future[Any]
    result: Any = None
    error: TxcoreError | None = field(default=None)

    @property
    def size(self) -> int:
        """See `Work`."""
        return 1

    def apply(self, ledger: Ledger) -> None:
        """See `Work`."""
        ledger.flush()
        connection = ledger.connection
        self.error = None
        connection.execute("SAVEPOINT call")
        try:
            self.result = self.call(connection, ledger.now_ms)
        except TxcoreError as error:
            self.error = error
            connection.execute("ROLLBACK TO call")
        connection.execute("RELEASE call")
        ledger.catalog.read(connection)

    def done(self) -> None:
        """See `Work`."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)

    def fail(self, status: Status, error: TxcoreError) -> None:  # noqa: ARG002 - the error says it
        """See `Work`."""
        self.future.set_exception(error)
