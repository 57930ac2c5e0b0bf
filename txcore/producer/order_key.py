"""The order key of a transaction: from its messages, one for all of them (R18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txcore.errors import MessageRejectedError
from txcore.message import Message, require_valid_order_key
from txcore.message_table import Mode
from txcore.records import ReleaseBy

if TYPE_CHECKING:  # a transaction takes its key
    from txcore.producer.transaction import LocalTransaction, ProducerContext

DELAYED: Final = "in a transaction with a delayed message, which is sent when it is due, in no order"


def require_order_key(transaction: LocalTransaction, message: Message) -> bytes:
    """Require that *transaction* may take the order key of a message; returns the record key of the message.

    Raises:
        MessageRejectedError: the order key is invalid; the producer keeps no order; the transaction has another order
            key; or one of its messages is delayed. Nothing was sent.
    """
    order_key, context = message.order_key, transaction.context
    assert order_key is not None
    require_valid_order_key(message)
    refusal = _refusal(context)
    if transaction.delays or message.deliver_at is not None or message.delay_s is not None:
        refusal = f"cannot be {DELAYED}"
    elif transaction.order_key not in {b"", order_key}:
        refusal = f"is {order_key!r}, but the transaction has {transaction.order_key!r}: it has one order key"
    if refusal:
        text = f"Message.order_key for {message.topic!r} {refusal}; nothing was sent"
        raise MessageRejectedError(text, topic=message.topic, reason="order_key")
    return order_key if message.key is None else message.key


def _refusal(context: ProducerContext) -> str:
    """Return why a producer keeps no order; "" where it does."""
    if context.mode is not Mode.HALF:
        return f'needs mode="half": in mode="{context.mode.value}" messages may go by the message table'
    if context.release is not ReleaseBy.OWNER:
        return 'needs a producer with release="owner": one that publishes by itself keeps no order'
    return ""
