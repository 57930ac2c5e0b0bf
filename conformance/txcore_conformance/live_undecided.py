"""The halves of a group that are still open, as its logs show while processes write them."""

from __future__ import annotations

import contextlib
from collections.abc import Set as AbstractSet
from typing import Final

from txcore import wire
from txcore.errors import TxcoreError
from txcore.port import Backend, Reader
from txcore.records import FINAL_KINDS, LogKind, OpKind

CALL_TIMEOUT_S: Final = 30.0
READ_COUNT_MAX: Final = 1_000


class Undecided:
    """Follows a group's logs and finds the halves that are still open.

    A read without records does not prove the end of a log: each log reports it.
    """

    def __init__(self, backend: Backend, group: str) -> None:
        count = backend.ensure_group(group).result(CALL_TIMEOUT_S)
        self._readers: list[tuple[LogKind, Reader]] = [
            (kind, backend.read(group, kind, partition))
            for partition in range(count)
            for kind in (LogKind.HALF, LogKind.OP)
        ]
        self._ends = [reader.end().result(CALL_TIMEOUT_S) for _, reader in self._readers]
        self._generations: dict[bytes, int] = {}
        self._closed: dict[bytes, float] = {}

    def look(self, expected: AbstractSet[bytes]) -> set[bytes]:
        """Read new records and return the open ids, including those of *expected* that are in no log yet.

        Before the end of the logs is reached, at least the id of all zeros is open.
        """
        with contextlib.suppress(TxcoreError):
            for kind, reader in self._readers:
                while records := reader.read(READ_COUNT_MAX):
                    for record in records:
                        self._take(kind, record.body)
        found = {
            identity
            for identity, generation in self._generations.items()
            if self._closed.get(identity, -1) < generation
        }
        found |= expected - self._closed.keys()
        is_read = all(reader.passed >= end for (_, reader), end in zip(self._readers, self._ends, strict=True))
        return found if is_read or found else {bytes(16)}

    def close(self) -> None:
        """Close the readers."""
        for _, reader in self._readers:
            reader.close()

    def _take(self, kind: LogKind, body: bytes) -> None:
        if kind is LogKind.HALF:
            half = wire.decode_half(body)
            known = self._generations.get(half.transaction_id, 0)
            self._generations[half.transaction_id] = max(known, half.generation)
            return
        for op in wire.decode_ops(body):
            if op.kind in FINAL_KINDS:
                self._closed[op.transaction_id] = float("inf")
            elif op.kind == OpKind.DISCARD:
                known_closed = self._closed.get(op.transaction_id, -1)
                self._closed[op.transaction_id] = max(known_closed, op.generation)
