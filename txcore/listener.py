"""The listener contract (RocketMQ: TransactionListener) and its asynchronous twin."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from txcore.message import LocalTransactionState, Message


@dataclass(frozen=True, slots=True)
class HalfView:
    """What a listener is asked about.

    Attributes:
        check_times: Answered checks so far.
        born_ms: The producer's wall clock when the half was made.
    """

    transaction_id: bytes
    group: str
    messages: tuple[Message, ...]
    check_times: int
    born_ms: int


class TransactionListener:
    """What a service implements: run the local transaction, and say afterwards what became of it.

    Attributes:
        topics: The topics this listener can be asked about, or None for all. A half with another topic is not asked
            here: nothing is counted, nothing decided, and an alert names group and topic.

    Thread safety: `check_local_transaction` may be called from several threads at once.
    """

    topics: ClassVar[Collection[str] | None] = None

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Run the local transaction after the half is durable.

        Return COMMIT or ROLLBACK only when that is certain; UNKNOWN leaves it to the check. An exception counts as
        UNKNOWN: it may have committed.
        """
        raise NotImplementedError

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Say what became of the local transaction.

        Without a fence, ROLLBACK means "can never commit any more"; not finding it is UNKNOWN. An exception, None or
        silence past the deadline is no answer: nothing is counted and it is asked again.
        """
        raise NotImplementedError


class AsyncTransactionListener:
    """`TransactionListener` for `AsyncTransactionProducer`, and for a `Checker` that was given its `event_loop`."""

    topics: ClassVar[Collection[str] | None] = None

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """See `TransactionListener.execute_local_transaction`."""
        raise NotImplementedError

    async def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """See `TransactionListener.check_local_transaction`."""
        raise NotImplementedError


class CheckListener(Protocol):
    """What the checker asks of a listener. `topics`, where declared, are the only ones it is asked about."""

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Return what became of the local transaction."""
