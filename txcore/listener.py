"""The listener contract (RocketMQ: TransactionListener), for blocking and for asynchronous services."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from txcore.message import LocalTransactionState, Message

AnswerT_co = TypeVar("AnswerT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class HalfView:
    """The half that a listener is asked about.

    Attributes:
        check_times: Answered checks so far.
        born_ms: The producer's wall clock when the half was made.
    """

    transaction_id: bytes
    group: str
    messages: tuple[Message, ...]
    check_times: int
    born_ms: int


class Listener(Generic[AnswerT_co]):
    """The methods of both kinds of listener; an answer is a state, or an awaitable of one."""

    topics: ClassVar[Collection[str] | None] = None

    def execute_local_transaction(self, message: Message, arg: Any) -> AnswerT_co:
        """Run the local transaction after the half is durable.

        Return COMMIT or ROLLBACK only when that is certain; UNKNOWN leaves it to the check. An exception counts as
        UNKNOWN: it may have committed.
        """
        raise NotImplementedError

    def check_local_transaction(self, half: HalfView) -> AnswerT_co:
        """Return the outcome of the local transaction.

        Without a fence, ROLLBACK means "can never commit any more"; a missing record is UNKNOWN. An exception, None or
        silence past the deadline is no answer: nothing is counted, and the checker asks again.
        """
        raise NotImplementedError


class TransactionListener(Listener[LocalTransactionState]):
    """The interface of a service: run the local transaction, and report its outcome later.

    Attributes:
        topics: The topics this listener can be asked about, or None for all. A half with another topic is not asked
            here: nothing is counted, nothing decided, and an alert names group and topic.

    Thread safety: `check_local_transaction` may be called from several threads at once.
    """


class AsyncTransactionListener(Listener[Awaitable[LocalTransactionState]]):
    """`TransactionListener` for `AsyncTransactionProducer`, and for a `Checker` with an `event_loop`."""


class CheckListener(Protocol):
    """The part of `Listener` that the checker calls."""

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """See `Listener.check_local_transaction`."""
