"""The listener contract (RocketMQ: TransactionListener), for blocking and for asynchronous services.

A listener runs its local transaction in `execute(transaction, message, arg)`. One that is ported from RocketMQ may
define `execute_local_transaction(message, arg)` instead, and gets the transaction from `txcore.current_transaction()`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from txcore.connections import AsyncDatabaseConnection, DatabaseConnection
from txcore.ids import TransactionId
from txcore.message import LocalTransactionState, Message

TransactionT_contra = TypeVar("TransactionT_contra", contravariant=True)
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class ListenerTransaction(Protocol):
    """The transaction whose local part a `TransactionListener` runs."""

    @property
    def transaction_id(self) -> TransactionId:
        """The id of this transaction everywhere: in headers, on the command line, in the console."""

    def fence(self, connection: DatabaseConnection) -> None:
        """Insert the fence row in the listener's own open database transaction, which makes its check decisive.

        Call it first in that transaction. From then on, refused or not, only a committed row publishes.

        Raises:
            TransactionStateError: the producer was made without a fence.
            FenceMisuseError, FencedError, WrongDatabaseError: the database transaction was rolled back.
        """


class AsyncListenerTransaction(Protocol):
    """`ListenerTransaction` for an `AsyncTransactionListener`."""

    @property
    def transaction_id(self) -> TransactionId:
        """See `ListenerTransaction.transaction_id`."""

    async def fence(self, connection: AsyncDatabaseConnection) -> None:
        """See `ListenerTransaction.fence`; a fence that is not awaited inserts nothing."""


@dataclass(frozen=True, slots=True)
class HalfView:
    """The half that a listener is asked about.

    Attributes:
        check_times: Answered checks so far.
        born_ms: The producer's wall clock when the half was made.
    """

    transaction_id: TransactionId
    group: str
    messages: tuple[Message, ...]
    check_times: int
    born_ms: int


class Listener(Generic[TransactionT_contra, AnswerT_co]):
    """The methods of both kinds of listener; an answer is a state, or an awaitable of one."""

    topics: ClassVar[Collection[str] | None] = None

    def execute(self, transaction: TransactionT_contra, message: Message, arg: Any) -> AnswerT_co:  # noqa: ARG002
        """Run the local transaction after the half is durable; *arg* is the one given to the producer.

        With a fence, first call `transaction.fence(connection)` in the database transaction. Return COMMIT or ROLLBACK
        only when that is certain; UNKNOWN leaves it to the check. An exception counts as UNKNOWN: it may have
        committed.
        """
        return self.execute_local_transaction(message, arg)

    def execute_local_transaction(self, message: Message, arg: Any) -> AnswerT_co:
        """RocketMQ's form of `execute`; called only where `execute` is not defined."""
        raise NotImplementedError(f"{type(self).__name__} has no execute(transaction, message, arg)")

    def check_local_transaction(self, half: HalfView) -> AnswerT_co:
        """Return the outcome of the local transaction.

        Without a fence, ROLLBACK means "can never commit any more"; a missing record is UNKNOWN. An exception, None or
        silence past the deadline is no answer: nothing is counted, and the checker asks again.
        """
        raise NotImplementedError


class TransactionListener(Listener[ListenerTransaction, LocalTransactionState]):
    """The interface of a service: run the local transaction, and report its outcome later.

    Attributes:
        topics: The topics this listener can be asked about, or None for all. A half with another topic is not asked
            here: nothing is counted, nothing decided, and an alert names group and topic.

    Thread safety: `check_local_transaction` may be called from several threads at once.
    """


class AsyncTransactionListener(Listener[AsyncListenerTransaction, Awaitable[LocalTransactionState]]):
    """`TransactionListener` for `AsyncTransactionProducer`, and for a `Checker` with an `event_loop`."""


class CheckListener(Protocol):
    """The part of `Listener` that the checker calls."""

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """See `Listener.check_local_transaction`."""
