"""pika's connection with one short cut: the frames of one turn of the loop go to the network together.

pika makes three frames of a message and gives each to the socket with a call of its own: so many system calls and
packets, for us and for the broker.
"""

from __future__ import annotations

from typing import Any, Final

from pika.adapters.select_connection import SelectConnection  # type: ignore[import-untyped]

WRITE_BYTES: Final = 64 << 10
"""What is given to the socket at once, without waiting for the end of the turn."""


class CoalescingConnection(SelectConnection):  # type: ignore[misc] # pika has no types
    """A connection on one loop; all methods on the loop's thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._frames: list[bytes] = []
        self._frames_size = 0
        super().__init__(*arguments, **options)

    @property
    def unsent_bytes(self) -> int:
        """What was published and not yet taken by the network."""
        waiting = 0 if self._transport is None else int(self._transport.get_write_buffer_size())
        return self._frames_size + waiting

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._frames:
            self.ioloop.call_later(0, self._emit)
        self._frames.append(data)
        self._frames_size += len(data)
        if self._frames_size >= WRITE_BYTES:
            self._emit()

    def _emit(self) -> None:
        frames, self._frames, self._frames_size = self._frames, [], 0
        if frames and self._transport is not None:  # without one the connection is lost, and so is what was to go
            super()._adapter_emit_data(b"".join(frames))
