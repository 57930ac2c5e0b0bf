"""The end of a log in a replicated stream: txcore appends a marker, and the end is after it.

A leader that was replaced while it was frozen reports an old end until it learns of the new leader. A marker is
acknowledged only after a majority has stored it. Readers recognize it by a header, and txcore's readers never return
it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, MessageRejectedError, TxcoreError
from txcore.records import LogKind, Status
from txcore_nats.markers import HEADER_END, marker
from txcore_nats.options import GroupNames
from txcore_nats.publishing import Sending

if TYPE_CHECKING:
    from txcore_nats.shared import Shared


async def append_marker(shared: Shared, names: GroupNames, kind: LogKind, partition: int) -> int:
    """Append a marker to a log and return its sequence.

    Raises:
        ConfigError: this user may not publish to the log.
        BackendTimeoutError, BackendUnavailableError: the marker was not acknowledged.
    """
    subject, body = marker(names, kind, partition)
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
