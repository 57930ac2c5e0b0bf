"""The listener contract (RocketMQ: TransactionListener) and its asynchronous twin."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from txcore.checking import HalfView
from txcore.message import LocalTransactionState, Message


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
