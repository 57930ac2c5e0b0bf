"""Rules of the fence and of its database, switched off; `mutants` lists them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from msgspec import structs

from txcore.checker import fence_check, immunity
from txcore.checker.context import CheckContext
from txcore.checker.decide import Terms
from txcore.checker.tenure import Tenure
from txcore.digest import digest_of
from txcore.fence import FenceAnswer, FenceReading
from txcore.producer import handles
from txcore.producer import listener_style as sending
from txcore.producer.transaction import LocalTransaction, ProducerContext
from txcore.records import Half, TargetMessage
from txcore.runtime.commands import Call, Flow
from txcore_conformance.sim import operators
from txcore_conformance.sim.cast import Cast
from txcore_conformance.sim.database import SimDatabase, SimFence


def absence_is_rollback(self: SimFence, identity: bytes) -> FenceReading:
    """Look for the row without writing a tombstone: the row of an open or late producer is not visible yet."""
    is_there = identity in self._database.rows
    return FenceReading(FenceAnswer.COMMIT if is_there else FenceAnswer.ROLLBACK)


def no_tombstone(transaction: LocalTransaction) -> Flow[None]:
    """Roll back without asking the fence."""
    del transaction
    return
    yield


def peek_decides(self: SimFence, transaction_ids: Sequence[bytes], connection: Any = None) -> Any:
    """Treat the rows of a dirty read as committed."""
    del connection
    return self.peek(transaction_ids)


@contextlib.contextmanager
def believe_the_listener() -> Iterator[None]:
    """Publish after the listener's COMMIT without a look at its row."""
    vouched = sending.vouched

    def believe(transaction: LocalTransaction, judged: Any) -> Flow[Any]:
        ran = yield from vouched(transaction, judged)
        transaction.must_look = False
        return ran

    with mock.patch.object(sending, "vouched", believe):
        yield


def prune_by_age(self: SimDatabase, below: bytes, *_: Any) -> None:
    """Delete all older rows and raise no horizon."""
    for identity in [row for row in self.rows if row < below]:
        del self.rows[identity]


def prune_young(cast: Cast) -> None:
    """Prune by age alone, even new rows, as RocketMQ users do with their transaction tables by cron."""
    cast.database.prune(b"\xff" * 16, lambda _: True)


@contextlib.contextmanager
def prune_without_horizon() -> Iterator[None]:
    """Prune without a horizon, even new rows."""
    with (
        mock.patch.object(SimDatabase, "prune", prune_by_age),
        mock.patch.object(operators, "prune_now", prune_young),
    ):
        yield


@contextlib.contextmanager
def asynchronous_commit() -> Iterator[None]:
    """Let a database crash lose a fenced commit."""
    original = SimDatabase.__init__

    def lax(self: SimDatabase, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.enforces_durable = False

    with mock.patch.object(SimDatabase, "__init__", lax):
        yield


_call = fence_check.call


def ask_any_database(tenure: Tenure, question: Callable[..., Any], about: object, database: object) -> Call:
    """Ask the checker's own fence, whatever database the half names (hole 4)."""
    del database
    return _call(tenure, question, about, None)


_terms_for = immunity.terms_for


def missing_row_is_rollback(context: CheckContext, half: Half) -> Terms:
    """Let the fence alone decide a half whose listener may have committed without a row (hole 5)."""
    return structs.replace(_terms_for(context, half), fenced=half.fenced)


def digest_of_the_rest(messages: Sequence[TargetMessage]) -> bytes:
    """Write a digest that leaves the first message out."""
    return digest_of(messages[1:])


_attach = handles.attach


def commit_without_a_look(context: ProducerContext, handle: str) -> LocalTransaction:
    """Let a second holder of a handle publish without a look at the row (hole 16)."""
    transaction = _attach(context, handle)
    transaction.must_look = False
    return transaction
