"""The end of a log in a replicated stream: txcore appends a marker, and the end is after it.

A leader that was replaced while it was frozen reports an old end until it learns of the new leader. A marker is
acknowledged only after a majority has stored it. Readers recognize it by a header, and txcore's readers never return
it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, MessageRejectedError, TxcoreError
from txcore.ids import ID_BYTES
from txcore.records import LogKind, OpKind, Status
from txcore.wire import encode_end_marker
from txcore_nats.codec import HEADER_END
from txcore_nats.options import GroupNames
from txcore_nats.publishing import Sending

if TYPE_CHECKING:
    from txcore_nats.shared import Shared

AUTHOR: Final = "txcore_nats"
NONCE: Final = AUTHOR.encode().ljust(ID_BYTES, b"\0")
"""A constant in the place of a transaction id, for readers that do not know markers; no record is looked up by it."""


async def append_marker(shared: Shared, names: GroupNames, kind: LogKind, partition: int) -> int:
    """Append a marker to a log and return its sequence.

    Raises:
        ConfigError: this user may not publish to the log.
        BackendTimeoutError, BackendUnavailableError: the marker was not acknowledged.
    """
    subject = names.subject(kind, partition)
    if kind is LogKind.OP:
        subject = names.op_subject(partition, OpKind.TICK, NONCE)
    body = encode_end_marker(names.group, kind, partition, NONCE, AUTHOR)
    place: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def ended(status: Status, error: TxcoreError | None, ack: Any) -> None:
        if place.done():
            return
        if status is Status.DURABLE:
            place.set_result(ack.seq)
        else:
            place.set_exception(_failure(error, names.stream(kind)))

    deadline_s = shared.clock.elapsed_s() + shared.options.control_timeout_s
    shared.publisher.send(Sending(subject, body, f"{HEADER_END}: 1\r\n", deadline_s, ended))
    return await place


def _failure(error: TxcoreError | None, stream: str) -> TxcoreError:
    text = f"where {stream!r} ends is not known: {error}"
    if isinstance(error, MessageRejectedError):
        return ConfigError(text, key="url")
    return error if isinstance(error, BackendTimeoutError) else BackendUnavailableError(text)
