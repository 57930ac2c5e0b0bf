"""The rules of fence, producer and local transaction, switched off one by one; see `mutants`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from txcore.errors import CommitUnknownError
from txcore.fence import FenceAnswer, FenceReading
from txcore.message import LocalTransactionState
from txcore.producer import finish as ending
from txcore.producer import listener_style as sending
from txcore.producer import prepare as preparing
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import LocalTransaction
from txcore.records import OpKind, Outcome, Status
from txcore.results import TransactionSendResult
from txcore.runtime.commands import Flow
from txcore_conformance.sim import operators
from txcore_conformance.sim.cast import Cast
from txcore_conformance.sim.database import SimDatabase, SimFence


def absence_is_rollback(self: SimFence, identity: bytes) -> FenceReading:
    """Look for the row without writing one: an open or late producer is not there yet."""
    is_there = identity in self._database.rows
    return FenceReading(FenceAnswer.COMMIT if is_there else FenceAnswer.ROLLBACK)


_appended = preparing.appended


def appended_uncertainly(transaction: LocalTransaction, outcome: Outcome, began_s: float) -> None:
    """Go on after an unknown answer as if it were an ack."""
    _appended(transaction, Outcome(Status.DURABLE) if outcome.status is Status.UNKNOWN else outcome, began_s)


_finish = flow.database_finish
_run_local = sending._run_local  # noqa: SLF001


def _exception_rolls_back(transaction: LocalTransaction) -> Flow[Any]:
    try:
        return (yield from _finish(transaction))
    except CommitUnknownError:
        yield ending.resolution_of(transaction, OpKind.ROLLBACK)
        raise


def _raising_listener_rolls_back(*args: Any) -> Flow[Any]:
    ran = yield from _run_local(*args)
    if not isinstance(ran, TransactionSendResult) or ran.error is None:
        return ran
    args[0].connection = None
    return LocalTransactionState.ROLLBACK


@contextlib.contextmanager
def exception_is_rollback() -> Iterator[None]:
    """Write ROLLBACK after an exception that may have followed a commit."""
    with (
        mock.patch.object(flow, "database_finish", _exception_rolls_back),
        mock.patch.object(sending, "_run_local", _raising_listener_rolls_back),
    ):
        yield


def no_tombstone(transaction: LocalTransaction) -> Flow[None]:
    """Write the op of a rollback without a tombstone in the database."""
    del transaction
    return
    yield


def _prune_by_age(self: SimDatabase, below: bytes, *_: Any) -> None:
    for identity in [row for row in self.rows if row < below]:
        del self.rows[identity]


def _prune_young(cast: Cast) -> None:
    """Prune by age alone, and young: what RocketMQ users do with their transaction tables by cron."""
    cast.database.prune(b"\xff" * 16, lambda _: True)


@contextlib.contextmanager
def prune_without_horizon() -> Iterator[None]:
    """Delete rows by their age alone."""
    with (
        mock.patch.object(SimDatabase, "prune", _prune_by_age),
        mock.patch.object(operators, "prune_now", _prune_young),
    ):
        yield


@contextlib.contextmanager
def asynchronous_commit() -> Iterator[None]:
    """Let commits return before they are durable."""
    original = SimDatabase.__init__

    def lax(self: SimDatabase, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.enforces_durable = False

    with mock.patch.object(SimDatabase, "__init__", lax):
        yield
