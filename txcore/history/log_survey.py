"""The records of one group's logs, read without owning them and kept up to date: for operators and their tools.

A survey asks the half logs for their ends and reads up to these. Then it writes a TICK of its own to each op log
and reads nothing but ops until that tick is back; so a half that it shows as undecided had no end when it was read. The
parked logs come last, again up to the ends that they report, so that no DISCARD is shown without its record. Copies
without a proof are left out, as checkers do not believe them.
"""

from __future__ import annotations

import shlex
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

from txcore.clock import Clock, Randomness
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, DataLossError, UsageError
from txcore.history.copies import FETCH_COUNT_MAX, copies_in, is_proven, places_of
from txcore.history.folding import Journeys
from txcore.history.journey import Journey
from txcore.port import Backend, Reader
from txcore.records import FINAL_KINDS, Checkpoint, Half, LogKind, LogRecord, Op, OpKind, Position, Status

T = TypeVar("T")
POLL_S: Final = 0.01
READ_COUNT_MAX: Final = 1_000
ALL_KINDS: Final = frozenset(LogKind)
FINISHED_MAX: Final = 500_000
"""Most finished transactions whose ids are kept, so that a late copy of one does not pass for a new half."""

Progress = Callable[[int], None]


@dataclass(slots=True)
class OwnerSeen:
    """The checker with the newest records in a partition's op log: its name, its wall clock, our `elapsed_s`."""

    by: str
    at_ms: int
    seen_s: float


@dataclass(slots=True)
class _Log:
    kind: LogKind
    partition: int
    reader: Reader
    end: Future[Position] | None = None  #: the end of the reading; None when it is read as far as it goes
    coming: Sequence[LogRecord] = ()  #: records that were read, and wait for the proofs of the copies among them


@dataclass(eq=False)
class Survey:
    """One group, seen from outside. One thread at a time; close it.

    Args:
        from_checkpoint: Read only the records after the checkpoints: all undecided ones, and few others.
        wanted: Selects the transactions to keep; None for all. Called again for each record, so it may learn.
        forget_finished: Drop finished transactions, so that memory follows the undecided ones.
        by: The reader's name, written in the ticks.
        timeout_s: Longest time without any progress.
        on_progress: Called now and then with the number of records read so far.
        on_op: Called with each op but marks, wanted or not.
        on_half: Called with each half and, where the broker reports it, its append time, wanted or not.

    Raises:
        UsageError: the broker has no such group; nothing is created.
        BackendUnavailableError: the broker cannot be reached.
    """

    backend: Backend
    group: str
    _: KW_ONLY
    clock: Clock
    randomness: Randomness
    by: str = "operator"
    from_checkpoint: bool = False
    wanted: Callable[[bytes], bool] | None = None
    forget_finished: bool = False
    timeout_s: float = 30.0
    on_progress: Progress | None = None
    on_op: Callable[[Op], None] | None = None
    on_half: Callable[[Half, int | None], None] | None = None
    count: int = field(default=0, init=False)  #: records read
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OpKind, 0), init=False)  #: ops read, by kind
    halves_read: int = field(default=0, init=False)
    owners: dict[int, OwnerSeen] = field(default_factory=dict, init=False)
    _finished: OrderedDict[bytes, None] = field(default_factory=OrderedDict, init=False)
    _awaited: dict[int, bytes] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        backend, group, timeout_s = self.backend, self.group, self.timeout_s
        self.partition_count = existing_partitions(backend, group, timeout_s)
        #: the checkpoints that reading began at, by partition; None where there was none, or it was not asked for
        self.checkpoints: dict[int, Checkpoint | None] = dict.fromkeys(range(self.partition_count))
        if self.from_checkpoint:
            for p in self.checkpoints:
                self.checkpoints[p] = wait_for(backend, backend.load_checkpoint(group, p), timeout_s)
        self._folds = {
            p: Journeys(p, checkpoint.token if checkpoint else b"", self._wanted(), group)
            for p, checkpoint in self.checkpoints.items()
        }
        self._logs = [
            _Log(kind, p, backend.read(group, kind, p, _start(kind, checkpoint)))
            for kind in LogKind
            for p, checkpoint in self.checkpoints.items()
        ]

    # -- the result ------------------------------------------------------------------------------------------------

    def journeys(self) -> Iterator[Journey]:
        """Yield the known journey of each transaction."""
        for fold in self._folds.values():
            yield from list(fold.found.values())

    def find(self, transaction_id: bytes) -> Journey | None:
        """Return the known journey of one transaction."""
        return next((f.found[transaction_id] for f in self._folds.values() if transaction_id in f.found), None)

    def open_entries(self) -> set[bytes]:
        """Return the transactions with a parked record that no CLOSED has closed; they may be resumed or finished."""
        return {journey.transaction_id for journey in self.journeys() if journey.entry is not None}

    # -- reading -----------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Read everything that was stored before this call.

        Raises:
            BackendTimeoutError: no record arrived for `timeout_s` although one was due.
            BackendUnavailableError: the broker has been out of reach for as long.
        """
        self._read_to_ends(LogKind.HALF)
        self._tick()
        # No halves meanwhile: the end of a later half may come after the tick.
        self._read_until(lambda: not self._awaited, {LogKind.OP})
        self._read_to_ends(LogKind.PARKED)

    def poll(self, kinds: Container[LogKind] = ALL_KINDS) -> int:
        """Read the records that exist now, without a tick and without waiting; returns their number.

        Raises:
            BackendUnavailableError: the broker cannot be reached; calling again is allowed.
        """
        if self.backend.capabilities.polled:
            self.backend.poll(0)
        count = sum(self._read(log) for log in self._logs if log.kind in kinds)
        self.count += count
        if count and self.on_progress is not None:
            self.on_progress(self.count)
        return count

    def close(self) -> None:
        """Close all readers."""
        for log in self._logs:
            log.reader.close()

    def _read_to_ends(self, kind: LogKind) -> None:
        logs = [log for log in self._logs if log.kind is kind]
        for log in logs:
            log.end = log.reader.end()
        self._read_until(lambda: all(map(_is_read, logs)), {kind, LogKind.OP})

    def _read_until(self, is_done: Callable[[], bool], kinds: Container[LogKind]) -> None:
        deadline_s = self.clock.elapsed_s() + self.timeout_s
        while True:
            count, trouble = 0, None
            try:
                if is_done():
                    return
                count = self.poll(kinds)
            except (BackendUnavailableError, BackendTimeoutError) as error:
                trouble = error
            if count:
                deadline_s = self.clock.elapsed_s() + self.timeout_s
            elif self.clock.elapsed_s() > deadline_s:
                raise trouble or BackendTimeoutError(f"the logs of group {self.group!r} could not be read to their end")
            else:
                time.sleep(POLL_S)

    def _read(self, log: _Log) -> int:
        try:
            log.coming = log.coming or log.reader.read(READ_COUNT_MAX)
        except DataLossError as loss:
            log.reader.close()
            first = None if loss.first is None else Position(loss.first)
            log.reader = self.backend.read(self.group, log.kind, log.partition, first)
            log.end = None if log.end is None else log.reader.end()
            return 0
        fold = self._folds[log.partition]
        unproven = self._unproven(log) if log.kind is LogKind.HALF else ()
        records, log.coming = log.coming, ()
        for record in records:
            if record.position not in unproven:
                self._take(log, fold, record)
        return len(records)

    def _unproven(self, log: _Log) -> Container[Position]:
        """Return the places of the copies that the op log does not prove: no checker believes them.

        Raises:
            BackendTimeoutError, BackendUnavailableError: it could not be read; the records are kept until it can.
        """
        copies = [(record.position, copy) for record in log.coming for copy in copies_in([record])]
        if not copies:
            return ()
        ops = next(each for each in self._logs if each.kind is LogKind.OP and each.partition == log.partition)
        places, found = places_of(copy for _, copy in copies), dict[Position, LogRecord]()
        for index in range(0, len(places), FETCH_COUNT_MAX):
            few = wait_for(self.backend, ops.reader.fetch(places[index : index + FETCH_COUNT_MAX]), self.timeout_s)
            found.update(few)
        return {position for position, copy in copies if not is_proven(copy, found)}

    def _take(self, log: _Log, fold: Journeys, record: LogRecord) -> None:
        if log.kind is LogKind.OP:
            for op in fold.read_ops(record):
                self._take_op(log.partition, fold, op)
        elif log.kind is LogKind.PARKED:
            fold.read_parked(record)
        else:
            self.halves_read += 1
            half = fold.read_half(record)
            if half is not None:
                if self.on_half is not None:
                    self.on_half(half, record.appended_ms)
                self._forget(fold, half.transaction_id)

    def _take_op(self, partition: int, fold: Journeys, op: Op) -> None:
        self.ends[op.kind] = self.ends.get(op.kind, 0) + 1
        if op.token:
            self.owners[partition] = OwnerSeen(op.by, op.at_ms, self.clock.elapsed_s())
        if self.on_op is not None and op.kind not in {OpKind.TICK, OpKind.CLAIM}:
            self.on_op(op)
        if op.kind in FINAL_KINDS:
            self._forget(fold, op.transaction_id)
        elif self._awaited.get(partition) == op.transaction_id:
            del self._awaited[partition]

    def _forget(self, fold: Journeys, transaction_id: bytes) -> None:
        if not self.forget_finished:
            return
        journey = fold.found.get(transaction_id)
        if journey is not None and journey.final and journey.halves:
            del fold.found[transaction_id]
            self._finished[transaction_id] = None
            if len(self._finished) > FINISHED_MAX:
                self._finished.popitem(last=False)

    def _wanted(self) -> Callable[[bytes], bool] | None:
        wanted = self.wanted
        if not self.forget_finished:
            return wanted
        return lambda identity: identity not in self._finished and (wanted is None or wanted(identity))

    def _tick(self) -> None:
        """Write a tick of our own to each op log."""
        now_ms = self.clock.wall_ms()
        marks = []
        for partition in range(self.partition_count):
            nonce = self.randomness.getrandbits(128).to_bytes(16, "big")
            self._awaited[partition] = nonce
            marks.append(self.backend.mark(self.group, partition, Op(OpKind.TICK, nonce, 0, self.by, now_ms)))
        for mark in marks:
            outcome = wait_for(self.backend, mark, self.timeout_s)
            if outcome.status is not Status.DURABLE:
                raise outcome.error or BackendTimeoutError(f"the op logs of group {self.group!r} accept no records")


def _is_read(log: _Log) -> bool:
    """Return whether a log was read to the end that it reported; asks again where the broker did not answer.

    Raises:
        BackendTimeoutError, BackendUnavailableError: the broker did not answer the last question.
    """
    end = log.end
    if end is None or not end.done():
        return end is None
    if end.exception() is not None:
        log.end = log.reader.end()
    return log.reader.passed >= end.result() and not log.coming


def existing_partitions(backend: Backend, group: str, timeout_s: float = 30.0) -> int:
    """Return the number of partitions of a group that exists.

    Raises:
        UsageError: it does not exist; nothing is created, so that a misspelt name creates no group.
        ConfigError: it exists with other settings, or this user may not use it.
    """
    try:
        wait_for(backend, backend.load_checkpoint(group, 0), timeout_s)
    except ConfigError as error:
        if error.key != "group":
            raise
        creating = f"txcore topics create --group {shlex.quote(group)}"
        raise UsageError(f"this broker has no group {group!r}; `{creating}` creates it") from error
    return wait_for(backend, backend.ensure_group(group), timeout_s)


def wait_for(backend: Backend, future: Future[T], timeout_s: float) -> T:
    """Return the result of a control call, and poll a backend that makes progress only then.

    Raises:
        BackendTimeoutError: it did not come in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while backend.capabilities.polled and not future.done() and time.monotonic() < deadline_s:
        backend.poll(POLL_S)
    try:
        return future.result(max(0.0, deadline_s - time.monotonic()))
    except TimeoutError as error:
        raise BackendTimeoutError(f"the broker did not answer within {timeout_s:g} s") from error


def _start(kind: LogKind, checkpoint: Checkpoint | None) -> Position | None:
    if checkpoint is None or kind is LogKind.PARKED:
        return None
    return checkpoint.half if kind is LogKind.HALF else checkpoint.op
