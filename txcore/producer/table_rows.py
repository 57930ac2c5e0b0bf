"""The rows of the message table for one transaction."""

from __future__ import annotations

import msgspec

from txcore import wire
from txcore.message_table import TableRow, lane_of
from txcore.producer.transaction import LocalTransaction
from txcore.records import TargetMessage


def table_rows(transaction: LocalTransaction, now_ms: int = 0) -> list[TableRow]:
    """Return the rows of the message table for *transaction*, in the order of publishing.

    Args:
        now_ms: The database's time, for delays that count from now.
    """
    identity, group = transaction.identity, transaction.context.group
    dues = {index: each.due_ms(now_ms) for index, each in (transaction.delays or {}).items()}
    return [
        TableRow(
            identity,
            index,
            lane_of(group, message.key, identity),
            wire.encode_message(_due(message, dues[index]) if index in dues else message),
            due_ms=dues.get(index, 0),
        )
        for index, message in enumerate(transaction.messages)
    ]


def _due(message: TargetMessage, due_ms: int) -> TargetMessage:
    """Return the message with the header that says when it was due."""
    return msgspec.structs.replace(message, headers={**message.headers, wire.HEADER_DUE: str(due_ms)})
