"""Removes decided halves and ops that are before the checkpoint and older than `keep_s`, partition by partition.

While the half log is more than half full, decided halves are removed at any age, so that they do not fill it. No other
record is ever removed, and none by age alone. A half that stays has all its ops. Either it is at or after the
checkpoint, which guarantees this, or it is younger than `keep_s`, and so are its ops. CLAIMs stay, so that a reader
from the beginning knows the token in force. A TICK stays with the halves that it may prove: those stored up to
`PROOF_AGE_S` after it.

A parked record is removed after its transaction has a final op, or after a CLOSED record follows it. The others stay
visible, and can be resumed, without half and ops. Ops are removed only after every old parked record was checked, in as
many runs as needed: else a parked record would remain after the op that ended it. Where a group signs, only records
with its signature count.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import TxcoreError, WireFormatError
from txcore.port import Opened
from txcore.records import FINAL_KINDS, Checkpoint, LogKind, OpKind, ParkCode
from txcore.wire import decode_ops, decode_parked
from txcore_nats.codec import ApiError
from txcore_nats.connection import Api, LoopThread
from txcore_nats.markers import is_stored_end_marker
from txcore_nats.options import GroupNames, Options

_log = logging.getLogger("txcore.nats")

RUNS_PER_KEEP: Final = 100
RUN_EVERY_MIN_S: Final = 10.0
LOOK_EVERY_S: Final = 5.0
FULL_SHARE: Final = 0.5
"""Share of its `max_bytes` above which a half log keeps no decided halves."""
PROOF_AGE_S: Final = 3_600.0
"""Longest time, in seconds, between the proof of a copy and the copy."""
PARKED_COUNT_MAX: Final = 1_000
"""Most parked records that one run checks; the next run continues there."""


@dataclass(slots=True)
class _Pass:
    """One check of all parked records of a partition, over several runs.

    Attributes:
        before: The ops before this position are removed after the pass.
        sequence: The sequence at which the next run continues.
        open: The checked records that stay, by transaction: their generations and sequences.
    """

    before: int
    sequence: int = 1
    open: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)


class Housekeeper:
    """The cleaner of the partitions whose checkpoints this backend writes. On the loop's thread.

    Attributes:
        opened: Opens the records that it acts upon.
    """

    def __init__(self, loop: LoopThread, api: Api, options: Options, clock: Clock) -> None:
        self._loop = loop
        self._api = api
        self._keep_s = options.keep_s
        self._clock = clock
        self.opened: Opened = _as_it_is
        self._next_s: dict[tuple[str, int], float] = {}
        self._next_look_s: dict[tuple[str, int], float] = {}
        self._passes: dict[tuple[str, int], _Pass] = {}

    def checkpointed(self, names: GroupNames, partition: int, checkpoint: Checkpoint) -> None:
        """Clean the partition of a stored checkpoint, if the last cleaning was long ago."""
        now_s = self._clock.elapsed_s()
        key = (names.group, partition)
        if now_s >= self._next_s.get(key, 0.0):
            self._next_s[key] = now_s + max(self._keep_s / RUNS_PER_KEEP, RUN_EVERY_MIN_S)
            self._loop.spawn(self._guarded(names, self.clean(names, partition, checkpoint)))
        elif now_s >= self._next_look_s.get(key, 0.0):
            self._next_look_s[key] = now_s + LOOK_EVERY_S
            self._loop.spawn(self._guarded(names, self.relieve(names, partition, checkpoint)))

    async def clean(self, names: GroupNames, partition: int, checkpoint: Checkpoint) -> None:
        """Remove decided and old records.

        Raises:
            TxcoreError: the broker was not reached, or does not permit it; records removed before it need no undo.
        """
        since = datetime.fromtimestamp(self._clock.wall_ms() / 1000 - self._keep_s, UTC)
        op_stream = names.stream(LogKind.OP)
        if checkpoint.op is not None:
            before = min(checkpoint.op, await self._first_since(op_stream, names.subject(LogKind.OP, partition), since))
            key = (names.group, partition)
            looking = self._passes.setdefault(key, _Pass(before))
            if await self._clean_parked(names, partition, since, looking):
                del self._passes[key]
                for subject in names.passing_op_subjects(partition):
                    await self._purge(op_stream, subject, looking.before)
                ticks = names.op_subject(partition, OpKind.TICK, b"")
                await self._purge(op_stream, ticks, await self._first_proof(names, partition, looking.before))
            else:
                self._next_s[key] = self._clock.elapsed_s() + RUN_EVERY_MIN_S
        if checkpoint.half is not None:
            stream, subject = names.stream(LogKind.HALF), names.subject(LogKind.HALF, partition)
            await self._purge(stream, subject, min(checkpoint.half, await self._first_since(stream, subject, since)))

    async def relieve(self, names: GroupNames, partition: int, checkpoint: Checkpoint) -> None:
        """Remove decided halves, however young, from a half log that fills up.

        Raises:
            TxcoreError: see `clean`.
        """
        stream = names.stream(LogKind.HALF)
        info = await self._api.call(f"STREAM.INFO.{stream}")
        bytes_max = info["config"].get("max_bytes", -1)
        if checkpoint.half is not None and 0 < bytes_max * FULL_SHARE <= info["state"]["bytes"]:
            await self._purge(stream, names.subject(LogKind.HALF, partition), checkpoint.half)

    async def _guarded(self, names: GroupNames, cleaning: Coroutine[Any, Any, None]) -> None:
        try:
            await cleaning
        except TxcoreError as error:
            _log.debug("nats.cleaning_failed", extra={"txcore": {"group": names.group, "reason": str(error)}})

    async def _first_since(self, stream: str, subject: str, since: datetime) -> int:
        """Return the sequence of the first message younger than *since*, as the server reports it to a new consumer."""
        config = {
            "deliver_policy": "by_start_time",
            "opt_start_time": since.isoformat().replace("+00:00", "Z"),
            "ack_policy": "none",
            "filter_subject": subject,
            "mem_storage": True,
            "num_replicas": 1,
        }
        made = await self._api.call(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        await self._api.call(f"CONSUMER.DELETE.{stream}.{made['name']}")
        return int(made["delivered"]["stream_seq"]) + 1

    async def _first_proof(self, names: GroupNames, partition: int, before: int) -> int:
        """Return the sequence, at most *before*, of the first tick that may prove a half of the log."""
        stream, subject = names.stream(LogKind.HALF), names.subject(LogKind.HALF, partition)
        oldest = await self._message(stream, {"seq": 1, "next_by_subj": subject})
        if oldest is None:
            return before
        since = _time(oldest["time"]) - timedelta(seconds=PROOF_AGE_S)
        ticks = names.op_subject(partition, OpKind.TICK, b"")
        return min(before, await self._first_since(names.stream(LogKind.OP), ticks, since))

    async def _purge(self, stream: str, subject: str, before: int) -> None:
        if before > 1:
            await self._api.call(f"STREAM.PURGE.{stream}", {"filter": subject, "seq": before})

    async def _clean_parked(self, names: GroupNames, partition: int, since: datetime, looking: _Pass) -> bool:
        """Remove parked records whose transactions have ended; return whether all old ones were checked."""
        stream, subject = names.stream(LogKind.PARKED), names.subject(LogKind.PARKED, partition)
        for _ in range(PARKED_COUNT_MAX):
            message = await self._message(stream, {"seq": looking.sequence, "next_by_subj": subject})
            if message is None or _time(message["time"]) >= since:
                return True
            await self._clean_up_to(names, partition, message, looking)
            looking.sequence = int(message["seq"]) + 1
        return False

    async def _clean_up_to(self, names: GroupNames, partition: int, message: dict[str, Any], looking: _Pass) -> None:
        """Remove the parked records that *message* shows to be ended: itself, or those that it closes.

        A CLOSED record is removed last, and the records that stay are remembered after that. So a run that fails here
        can repeat all of it.
        """
        stream, sequence = names.stream(LogKind.PARKED), int(message["seq"])
        if is_stored_end_marker(message):
            await self._delete(stream, sequence)
            return
        try:
            parked = decode_parked(self._opened(names, partition, LogKind.PARKED, message))
        except WireFormatError:
            return
        identity, generation = parked.transaction_id, parked.generation
        known = looking.open.get(identity, [])
        if parked.code == ParkCode.CLOSED:
            for place in (*(place for entry_generation, place in known if entry_generation <= generation), sequence):
                await self._delete(stream, place)
            later = [each for each in known if each[0] > generation]
            if later:
                looking.open[identity] = later
            else:
                looking.open.pop(identity, None)
        elif await self._has_final_op(names, partition, identity):
            await self._delete(stream, sequence)
        else:
            looking.open[identity] = [*known, (generation, sequence)]

    async def _has_final_op(self, names: GroupNames, partition: int, transaction_id: bytes) -> bool:
        subject = names.final_subject(partition, transaction_id)
        message = await self._message(names.stream(LogKind.OP), {"last_by_subj": subject})
        if message is None:
            return False
        try:
            ops = decode_ops(self._opened(names, partition, LogKind.OP, message))
        except WireFormatError:
            return False
        return any(op.kind in FINAL_KINDS and op.transaction_id == transaction_id for op in ops)

    def _opened(self, names: GroupNames, partition: int, kind: LogKind, message: dict[str, Any]) -> bytes:
        return self.opened(names.group, partition, kind, base64.b64decode(message["data"]))

    async def _delete(self, stream: str, sequence: int) -> None:
        try:
            await self._api.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
        except ApiError:
            if await self._message(stream, {"seq": sequence}) is not None:
                raise  # Else an earlier try, whose answer was lost, has removed the message.

    async def _message(self, stream: str, request: dict[str, Any]) -> dict[str, Any] | None:
        try:
            answer = await self._api.call(f"STREAM.MSG.GET.{stream}", request)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        message: dict[str, Any] = answer["message"]
        return message


def _as_it_is(group: str, partition: int, kind: LogKind, body: bytes) -> bytes:  # noqa: ARG001 - see `Opened`
    return body


def _time(text: str) -> datetime:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6].ljust(6, '0')}+00:00")
