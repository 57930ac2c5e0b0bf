"""Marks in one op log: each is appended, read back and timed; readers skip them."""

from __future__ import annotations

import threading
from typing import Final

from txcore.clock import Clock, Randomness
from txcore.errors import BackendTimeoutError, DataLossError
from txcore.history.log_survey import wait_for
from txcore.port import Backend, Reader
from txcore.records import LogKind, Op, OpKind, Position, Status

CALL_TIMEOUT_S: Final = 15.0
READ_TIMEOUT_S: Final = 30.0
PAUSE_S: Final = 0.000_5
AUTHOR: Final = "txcore-doctor"


class OpTail:
    """A reader of one partition's op log, from its checkpoint on, that follows its own marks."""

    def __init__(self, backend: Backend, group: str, partition: int, clock: Clock, randomness: Randomness) -> None:
        self._backend = backend
        self._group = group
        self._partition = partition
        self._clock = clock
        self._randomness = randomness
        self._pause = threading.Event()
        checkpoint = wait_for(backend, backend.load_checkpoint(group, partition), CALL_TIMEOUT_S)
        self._reader = self._read_from(checkpoint.op if checkpoint else None)

    def _read_from(self, start: Position | None) -> Reader:
        return self._backend.read(self._group, LogKind.OP, self._partition, start)

    def skip(self) -> None:
        """Read all earlier records, so that later times are those of marks alone.

        Raises:
            TxcoreError: a mark is not certainly stored, or was not read back.
        """
        self._until(self._tick())

    def measure(self) -> tuple[float, tuple[float, float] | None]:
        """Append a mark and read it back.

        Returns the time of its append, in seconds; and the error and the difference of the leader's clock from ours, in
        milliseconds, None where the broker gives no time.

        Raises:
            TxcoreError: the mark is not certainly stored, or was not read back.
        """
        wall_ms, begun_s = self._clock.wall_ms(), self._clock.elapsed_s()
        nonce = self._tick()
        stored_s = self._clock.elapsed_s() - begun_s
        appended_ms = self._until(nonce)
        if appended_ms is None:
            return stored_s, None
        return stored_s, (stored_s * 500 + 1, appended_ms - wall_ms - stored_s * 500)

    def _tick(self) -> bytes:
        nonce = self._randomness.getrandbits(128).to_bytes(16, "big")
        op = Op(OpKind.TICK, nonce, 0, AUTHOR, self._clock.wall_ms())
        outcome = wait_for(self._backend, self._backend.mark(self._group, self._partition, op), CALL_TIMEOUT_S)
        if outcome.status is not Status.DURABLE:
            raise outcome.error or BackendTimeoutError(f"a TICK was settled as {outcome.status.value}")
        return nonce

    def _until(self, nonce: bytes) -> int | None:
        """Read until *nonce* and return the broker's time of its record."""
        deadline_s = self._clock.elapsed_s() + READ_TIMEOUT_S
        while self._clock.elapsed_s() < deadline_s:
            self._backend.poll(0.0)
            try:
                records = self._reader.read(1_000)
            except DataLossError as loss:
                self._reader.close()
                self._reader = self._read_from(None if loss.first is None else Position(loss.first))
                continue
            for record in records:
                if nonce in record.body:
                    return record.appended_ms
            if not records:
                self._pause.wait(PAUSE_S)
        raise BackendTimeoutError(f"a mark was not read back within {READ_TIMEOUT_S:g} s")

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
