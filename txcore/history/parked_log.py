"""The open entries of one partition's parked log, read from its beginning and then kept up to date."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

import msgspec

from txcore import wire
from txcore.errors import DataLossError, WireFormatError
from txcore.history.parked_entries import open_entry
from txcore.port import Backend, Reader
from txcore.records import LogKind, LogRecord, Parked, Position

READ_COUNT_MAX: Final = 1_000


class ParkedLog:
    """See the module. One thread at a time; close it.

    An open entry says that its transaction was parked. It may have been resumed, or may have ended, since then: only
    the other logs show that.

    Attributes:
        entries: The open entries by transaction id, without the bytes of their halves.
        is_read: Whether everything was read that the log held when it was opened.
    """

    def __init__(self, backend: Backend, group: str, partition: int) -> None:
        self.entries: dict[bytes, Parked] = {}
        self.is_read = False
        self._backend = backend
        self._group = group
        self._partition = partition
        self._begin(None)

    def poll(self) -> None:
        """Read the records that have arrived, without waiting.

        Raises:
            BackendUnavailableError: the broker cannot be reached; calling again is allowed.
        """
        if self._backend.capabilities.polled:
            self._backend.poll(0)
        try:
            while records := self._reader.read(READ_COUNT_MAX):
                for record in records:
                    self._take(record)
        except DataLossError as loss:
            self._reader.close()
            self._begin(None if loss.first is None else Position(loss.first))
        self.is_read = self.is_read or self._has_passed_end()

    def close(self) -> None:
        """Stop reading; idempotent."""
        self._reader.close()

    def _begin(self, start: Position | None) -> None:
        self._reader: Reader = self._backend.read(self._group, LogKind.PARKED, self._partition, start)
        self._end: Future[Position] = self._reader.end()

    def _has_passed_end(self) -> bool:
        if not self._end.done():
            return False
        if self._end.exception() is not None:
            self._end = self._reader.end()
            return False
        return self._reader.passed >= self._end.result()

    def _take(self, record: LogRecord) -> None:
        try:
            parked = wire.decode_parked(record.body)
        except WireFormatError:
            return
        entry = open_entry(self.entries.pop(parked.transaction_id, None), parked)
        if entry is not None:
            self.entries[parked.transaction_id] = msgspec.structs.replace(entry, half=b"")
