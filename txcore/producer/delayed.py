"""The delays of a transaction's messages, which only a producer with a fence can hold until they are due (R16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txcore.delay import delay_of
from txcore.message import Message, refuse_delay, require_valid_delay
from txcore.producer.order_key import DELAYED

if TYPE_CHECKING:  # a transaction holds them
    from txcore.producer.transaction import LocalTransaction


def require_delay(transaction: LocalTransaction, message: Message) -> None:
    """Require that a message of *transaction* may be delayed.

    Raises:
        MessageRejectedError: the producer has no fence; the message is due in more than 400 days; or the transaction
            has an order key.
    """
    context = transaction.context
    if context.fence is None:
        refuse_delay(message, "needs the message table: make the producer with fence=SqlFence(…) or AsyncSqlFence(…)")
    require_valid_delay(message, context.clock.wall_ms())
    if transaction.order_key:
        refuse_delay(message, f"is not for a transaction with an order key: none can be {DELAYED}")


def note_delay(transaction: LocalTransaction, message: Message) -> None:
    """Note the delay of the message that was added last."""
    delays = transaction.delays = transaction.delays or {}
    delays[len(transaction.messages) - 1] = delay_of(message.deliver_at, message.delay_s)
