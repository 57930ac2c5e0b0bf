"""Reading logs: the port's Reader on top of a tail, and single records by their positions."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from datetime import datetime
from functools import partial
from typing import Any, Final

from txcore.errors import BackendUnavailableError, ClosedError, ConfigError, DataLossError, TxcoreError
from txcore.port import running
from txcore.records import LogKind, LogRecord, Position
from txcore.wake import Wake
from txcore_nats.codec import (
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    translate,
)
from txcore_nats.control import missing_group
from txcore_nats.ends import append_marker
from txcore_nats.markers import is_end_marker, is_stored_end_marker
from txcore_nats.options import GroupNames
from txcore_nats.shared import Shared
from txcore_nats.tailing import RETRY_S, Tail, reading_error

ROOM_COUNT: Final = 2_000
ROOM_BYTES: Final = 16 << 20
FIRST_READ_WAIT_S: Final = 1.0
FETCH_AT_ONCE_MAX: Final = 16
LOOK_EVERY_S: Final = 0.05
"""Pause, in seconds, between two checks for records that never arrive, while others still arrive."""
AGAIN_S: Final = 2.0
"""Time, in seconds, after which a marker counts as removed, if no other record arrives."""


class LogReader:
    """The port's Reader on one log. It continues by itself after a lost connection."""

    def __init__(self, shared: Shared, group: str, kind: LogKind, partition: int, start: Position | None) -> None:
        self._shared = shared
        self._group = group
        self._kind = kind
        self._partition = partition
        self._start = start
        self._records: deque[LogRecord] = deque()
        self._bytes_in = 0  # counted by the loop's thread; the next one by the reader's thread
        self._bytes_out = 0
        self._error: TxcoreError | None = None
        self._is_lost = False
        self._is_closed = False
        self._is_thirsty = False
        self._is_known = False
        self._known = Wake()
        self._next = 0 if start is None else int(start)  # after the last record that was returned
        self._got = self._next - 1  # the last record that arrived; this and the next five belong to the loop
        self._end = 0  # the furthest end that was returned
        self._is_replicated = False  # only as last reported: a leader may be deposed without knowing it
        self._is_asking = False
        self._late: list[Future[Position]] = []  # asked since the current question was sent
        self._ends: set[Future[Position]] = set()  # questions without an answer yet
        self._is_looking = False
        self._clear = 0  # every record before it has arrived; written by the loop
        self._tail: Tail | None = None
        shared.readers.add(self)
        shared.loop.call(self._open)

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """Return the records that have arrived."""
        if self._is_closed:
            raise ClosedError("this reader is closed")
        if not self._is_known:
            # Only if the group is not known yet: so a missing group is reported by the first read.
            self._known.wait(FIRST_READ_WAIT_S)
        records = self._records
        if not records and self._error is not None:
            error = self._error
            if not self._is_lost:
                self._error = None
            raise error
        taken: list[LogRecord] = []
        while records and len(taken) < count_max:
            record = records.popleft()
            self._bytes_out += len(record.body)
            self._next = record.position + 1
            taken.append(record)
        if self._is_thirsty and self.has_room():
            self._is_thirsty = False
            self._shared.loop.call(self._refill)
        return taken

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """Read single records again."""
        future: Future[Mapping[Position, LogRecord]] = running()
        shared = self._shared

        async def fetch() -> None:
            try:
                names = shared.groups.names(self._group)
                future.set_result(await self._fetch(names, self._kind, self._partition, sorted(set(positions))))
            except Exception as error:  # noqa: BLE001 - reported through the Future
                future.set_exception(translate(error, "fetching records"))

        def spawn() -> None:
            shared.loop.spawn(fetch())

        shared.loop.call(spawn)
        return future

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        clear, records = self._clear, self._records  # In this order: `_clear` is set after the arrival.
        return records[0].position if records else Position(max(clear, self._next))

    def end(self) -> Future[Position]:
        """See `Reader.end`: after the stream's last message, or after a marker in the log if it is replicated."""
        if self._is_closed:
            raise ClosedError("this reader is closed")
        asked: Future[Position] = running()
        self._ends.add(asked)
        if self._is_closed:  # by the backend, since the call began
            self._fail_ends()
        self._shared.loop.call(lambda: self._ask_end(asked))
        return asked

    def close(self) -> None:
        """Stop reading."""
        if not self._is_closed:
            self._is_closed = True
            self._shared.readers.discard(self)
            self._fail_ends()
            self._shared.loop.call(self._close)

    # -- on the loop's thread ------------------------------------------------------------------------------------------

    def received(self, message: Any, sequence: int, appended_ms: int) -> None:
        """See `Receiver`."""
        if self._error is not None:
            self._error = None  # the trouble is over, and no caller has read meanwhile
        self._got = sequence
        if is_end_marker(message.headers):
            self._clear = max(self._clear, sequence + 1)
            return
        self._bytes_in += len(message.data)
        self._records.append(LogRecord(Position(sequence), message.data, appended_ms))

    def lost(self, asked: int, first: int | None) -> None:
        """See `Receiver`."""
        self._is_lost = True
        self._error = DataLossError(asked, first)

    def failed(self, error: TxcoreError) -> None:
        """See `Receiver`."""
        self._error = error

    def has_room(self) -> bool:
        """See `Receiver`."""
        has_room = len(self._records) < ROOM_COUNT and self._bytes_in - self._bytes_out < ROOM_BYTES
        if not has_room:
            self._is_thirsty = True
        return has_room

    def _ask_end(self, asked: Future[Position]) -> None:
        self._late.append(asked)
        if not self._is_asking:
            self._is_asking = True
            self._shared.loop.spawn(self._answer_ends())

    async def _answer_ends(self) -> None:
        """Answer all waiting questions together, and then those asked meanwhile."""
        while self._late:
            asking, self._late = self._late, []
            try:
                end = await self._find_end()
            except Exception as raised:  # noqa: BLE001 - reported through the Futures
                error = _end_error(raised, self._group)
                for asked in asking:
                    self._answer(asked, partial(asked.set_exception, error))
                continue
            self._end = max(self._end, end)
            for asked in asking:
                self._answer(asked, partial(asked.set_result, Position(end)))
            if not self._is_looking:
                self._is_looking = True
                self._shared.loop.spawn(self._clear_up_to_end())
        self._is_asking = False

    async def _find_end(self) -> int:
        """Return the log's end, as reported by a node that certainly knows it."""
        names = self._shared.groups.names(self._group)
        info = await self._shared.api.call(f"STREAM.INFO.{names.stream(self._kind)}")
        self._is_replicated = info["config"].get("num_replicas", 1) > 1
        if self._is_replicated:
            return 1 + await append_marker(self._shared, names, self._kind, self._partition)
        return 1 + int(info["state"]["last_seq"])

    def _fail_ends(self) -> None:
        closed = BackendUnavailableError("the reader was closed before the log's end was known")
        while self._ends:
            with contextlib.suppress(InvalidStateError, KeyError):  # it was answered meanwhile
                self._ends.pop().set_exception(closed)

    def _answer(self, asked: Future[Position], settle: Callable[[], None]) -> None:
        with contextlib.suppress(InvalidStateError):  # closed meanwhile
            settle()
        self._ends.discard(asked)

    async def _clear_up_to_end(self) -> None:
        """Find out which records before the end never arrive, as they are removed or belong to other logs."""
        seen = -1
        try:
            while self._clear < self._end and not self._is_closed and not self._is_lost:
                if self._got >= self._end - 1:
                    self._clear = self._end
                elif self._records or self._tail is None or not self._tail.is_level.is_set():
                    await asyncio.sleep(LOOK_EVERY_S)
                elif self._tail.left and seen != self._got:
                    seen = self._got
                    await asyncio.sleep(LOOK_EVERY_S)
                elif self._is_replicated:
                    await self._mark_again()
                else:
                    await self._look_beyond()
        finally:
            self._is_looking = False

    async def _mark_again(self) -> None:
        """Append one more marker if the last one does not arrive: all records before a marker arrive before it.

        The leader is not asked for records: a deposed leader may report that there is none.
        """
        got = self._got
        await asyncio.sleep(AGAIN_S)
        if got == self._got and not self._is_closed:
            with contextlib.suppress(TxcoreError):
                names = self._shared.groups.names(self._group)
                await append_marker(self._shared, names, self._kind, self._partition)

    async def _look_beyond(self) -> None:
        """Ask for the log's next record; the server answers at once if there is none."""
        shared, end, seen = self._shared, self._end, -1
        names = shared.groups.names(self._group)
        request = {"seq": max(self._got + 1, 1), "next_by_subj": names.subject(self._kind, self._partition)}
        try:
            answer = await shared.api.call(f"STREAM.MSG.GET.{names.stream(self._kind)}", request)
        except ApiError as error:
            if error.err_code == MESSAGE_NOT_FOUND:
                self._clear = end
            else:
                await asyncio.sleep(RETRY_S)
        except TxcoreError:
            await asyncio.sleep(RETRY_S)
        else:
            seen = int(answer["message"]["seq"])
            self._clear = max(self._clear, min(seen, end))
        if self._clear < end and self._got < seen:
            await asyncio.sleep(LOOK_EVERY_S)

    def _open(self) -> None:
        if self._shared.groups.count(self._group):
            self._found(None)
        else:
            self._shared.groups.when_found(self._group, self._found)

    def _found(self, error: TxcoreError | None) -> None:
        if isinstance(error, ConfigError):
            self._error = error
        elif error is not None:
            self._error = reading_error(error, self._group)
        if error is None and not self._is_closed:
            self._error = None
            shared = self._shared
            names = shared.groups.names(self._group)
            self._tail = Tail(
                shared.loop,
                shared.link,
                shared.api,
                shared.options,
                names.stream(self._kind),
                names.subject(self._kind, self._partition),
                self,
                start=self._start,
                after=self._earlier(),
            )
            if self._kind is LogKind.HALF:
                shared.half_tails.setdefault((self._group, self._partition), []).append(self._tail)
            self._tail.open()
        elif not self._is_closed:
            self._shared.loop.loop.call_later(RETRY_S, self._open)
        self._is_known = True
        self._known.set()

    def _earlier(self) -> Sequence[Tail]:
        """Return the tails that must deliver before this one: those of halves, before the ops that close them.

        An owner opens its reader of halves before its reader of ops, and reads it first. Without this order, a slow
        start of the reader of halves could let its owner believe that there are no halves.
        """
        key = (self._group, self._partition)
        tails = [tail for tail in self._shared.half_tails.pop(key, []) if not tail.is_level.is_set()]
        if self._kind is LogKind.OP:
            return tails
        if tails:
            self._shared.half_tails[key] = tails
        return ()

    def _refill(self) -> None:
        if self._tail is not None:
            self._tail.refill()

    def _close(self) -> None:
        if self._tail is not None:
            self._tail.close()

    async def _fetch(
        self, names: GroupNames, kind: LogKind, partition: int, positions: Sequence[Position]
    ) -> dict[Position, LogRecord]:
        """Return the records at *positions* that exist and belong to the log."""
        prefix = names.subject(kind, partition).removesuffix(">")
        limit = asyncio.Semaphore(FETCH_AT_ONCE_MAX)

        async def get(position: Position) -> LogRecord | None:
            async with limit:
                try:
                    answer = await self._shared.api.call(f"STREAM.MSG.GET.{names.stream(kind)}", {"seq": position})
                except ApiError as error:
                    if error.err_code == MESSAGE_NOT_FOUND or error.code == 404:
                        return None
                    raise
            message = answer["message"]
            if not message["subject"].startswith(prefix) or is_stored_end_marker(message):
                return None
            body = base64.b64decode(message.get("data") or "")
            return LogRecord(position, body, _wall_ms(message["time"]))

        found = await asyncio.gather(*map(get, positions))
        return {record.position: record for record in found if record is not None}


def _end_error(error: BaseException, group: str) -> TxcoreError:
    if isinstance(error, ApiError) and error.err_code == STREAM_NOT_FOUND:
        return missing_group(group)
    if isinstance(error, ClosedError):
        return BackendUnavailableError("the backend was closed before the log's end was known")
    return translate(error, "asking for a log's end")


def _wall_ms(time: str) -> int:
    whole, _, fraction = time.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return round(seconds) * 1000 + int(fraction[:3].ljust(3, "0") or 0)
