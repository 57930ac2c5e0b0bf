"""The identity of a message, read from the objects of the brokers' clients.

No driver is imported. A client's message is recognised by its shape, so any client with headers in its messages fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from txcore.errors import UsageError
from txcore.ids import TIME_BYTES, UUID_VERSION, TransactionId, known_id
from txcore.wire import HEADER_DUE, HEADER_GROUP, HEADER_ID

TIMELESS: Final = b"\xff" * TIME_BYTES
"""Time of the key of an id that has none."""
DUE_DIGITS_MAX: Final = 15
"""Most digits of a time in milliseconds that fits into an id."""

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class MessageId:
    """The identity of a target message: its producer group, its transaction, and its index there.

    Attributes:
        due_ms: When a delayed message was due, in milliseconds since 1970; 0 for any other one.
    """

    group: str
    transaction_id: TransactionId
    index: int
    due_ms: int = 0

    @property
    def key(self) -> TransactionId:
        """The id under which an inbox remembers the message: with the time at which it was due, not that of its birth.

        So the horizon and a prune count from then, and every copy of the message has the same key. An id that is no
        UUID of version 7, of an outbox of another library, has no time: it comes after every horizon.
        """
        identity = self.transaction_id
        if identity[TIME_BYTES] >> 4 != UUID_VERSION:
            return known_id(TIMELESS + identity[TIME_BYTES:])
        return known_id(self.due_ms.to_bytes(TIME_BYTES, "big") + identity[TIME_BYTES:]) if self.due_ms else identity


def message_id_of(message: Any) -> MessageId:
    """Return the identity of a target message, whose forms are those of `headers_of`.

    Raises:
        UsageError: `txcore-id` or `txcore-group` is missing, a header of txcore is malformed, or *message* is not a
            message.
    """
    found = headers_of(message)
    missing = [name for name in (HEADER_ID, HEADER_GROUP) if name not in found]
    if missing:
        raise UsageError(
            f"the message has no {' and no '.join(missing)} header: it was not published by txcore, or a component on "
            "its way dropped its headers"
        )
    identity, separator, index = _text(found[HEADER_ID], HEADER_ID).rpartition(":")
    if not separator or not (index.isascii() and index.isdigit()):
        raise UsageError(f"the header {HEADER_ID} must be <transaction_id>:<index>, not {found[HEADER_ID]!r}")
    due = _text(found.get(HEADER_DUE, "0"), HEADER_DUE)
    is_number = due.isascii() and due.isdigit() and len(due) <= DUE_DIGITS_MAX
    if not (is_number and int(due) < 1 << 8 * TIME_BYTES):
        raise UsageError(f"the header {HEADER_DUE} must be a number of milliseconds, not {due!r}")
    return MessageId(_text(found[HEADER_GROUP], HEADER_GROUP), TransactionId.parse(identity), int(index), int(due))


def headers_of(message: Any) -> Mapping[str, Any]:
    """Return the headers of a client's message; empty when it has none.

    Args:
        message: A message of confluent-kafka (`headers()`), nats-py or one of txcore's own consumers (`headers`);
            pika's delivery, `(method, properties, body)`, or its properties alone; or the headers themselves, a
            mapping or pairs.

    Raises:
        UsageError: *message* is none of these.
    """
    if isinstance(message, tuple):
        message = next((part for part in message if hasattr(part, "headers")), message)
    headers = message if isinstance(message, Mapping) else getattr(message, "headers", message)
    if callable(headers):
        headers = headers()
    try:
        return dict(headers or ())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a {type(message).__module__}.{type(message).__qualname__} is neither a message with headers nor headers"
        ) from error


def _text(value: Any, name: str) -> str:
    try:
        return value if isinstance(value, str) else bytes(value).decode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"the header {name} is no UTF-8 text") from error
