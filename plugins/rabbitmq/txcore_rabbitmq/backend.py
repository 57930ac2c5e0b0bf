"""The backend port on RabbitMQ: two connections, each on a thread of its own, and one more per claim."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from txcore import wire
from txcore.backends import exit_flush as exiting
from txcore.backends.checkpoint_record import encode_checkpoint
from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    MessageRejectedError,
    OutcomeUnknownError,
    TxcoreError,
    UsageError,
)
from txcore.lifecycle import ClosedAtExit
from txcore.port import Batch, Claim, failed, running
from txcore.records import (
    RECORD_OVERHEAD_MAX,
    Capabilities,
    Checkpoint,
    HalfRecord,
    LogKind,
    Op,
    Outcome,
    Position,
    Resolution,
    Status,
)
from txcore_rabbitmq.coalescing import log_properties
from txcore_rabbitmq.codec import encode_marker, is_forbidden, is_too_large
from txcore_rabbitmq.connection import CLOSE_GRACE_S, Link, LoopThread
from txcore_rabbitmq.control import GroupSetup, Ping, scan_checkpoints, verify_group
from txcore_rabbitmq.ends import AUTHOR, MARKER_PREFIX, Ended, EndSearch
from txcore_rabbitmq.guarantees import capabilities_of
from txcore_rabbitmq.lanes import LaneKey, Sending, StreamAbsentError
from txcore_rabbitmq.names import NOWHERE, checkpoint_name, checks_name, log_exchange, log_name, logs_name
from txcore_rabbitmq.options import Options
from txcore_rabbitmq.ownership import ExclusiveClaim
from txcore_rabbitmq.publishing import Publisher
from txcore_rabbitmq.reading import StreamReader
from txcore_rabbitmq.releasing import Releaser
from txcore_rabbitmq.streams import ReadingLink
from txcore_rabbitmq.targets import TargetChecks

_log = logging.getLogger("txcore.rabbitmq")

BACKLOG_COUNT_MAX: Final = 10_000
"""Most batches that may wait for the publishing thread; above that, callers are faster than it can refuse items."""
DRAIN_POLL_S: Final = 0.01
NONCE_BITS: Final = 128


class RabbitmqBackend(ClosedAtExit):
    """One RabbitMQ broker as a txcore backend. Thread safe; threads and connections start with the first call.

    Raises:
        ConfigError: a file of certificates cannot be used.
    """

    def __init__(self, options: Options, *, clock: Clock | None = None, randomness: Randomness | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._capabilities = capabilities_of(self._options)
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._is_size_verified = False
        self._closing: Future[None] | None = None
        self._claims: list[ExclusiveClaim] = []
        self._publishing = LoopThread("txcore-rabbitmq-publish")
        self._reading = LoopThread("txcore-rabbitmq-read")
        self._publisher = Publisher(self._publishing, self._options, self._clock)
        self._checks = TargetChecks(self._clock)
        self._releaser = Releaser(self._options, self._publishing, self._publisher, self._checks, self._clock)
        self._reading_link = ReadingLink(self._reading, self._options.body_size_max)
        owner, heartbeat_s = _PublishingOwner(self._publisher, self._checks), self._options.heartbeat_s
        owner.link = Link(self._publishing, self._options, heartbeat_s, "txcore publish", owner)
        read = Link(self._reading, self._options, heartbeat_s, "txcore read", self._reading_link)
        self._links = ((owner.link, self._publishing), (read, self._reading))

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend.capabilities`."""
        return self._capabilities

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`; also verifies, once, that the broker takes the largest record."""
        self._enter()
        try:
            verify_group(group, partition_count)
        except ConfigError as error:
            return failed(error)
        future: Future[int] = running()
        made: Future[int] = running()

        def ended(made: Future[int]) -> None:
            error = made.exception()
            if error is not None:
                future.set_exception(error)
                return
            self._releaser.know(group, made.result())
            if self._is_size_verified:
                future.set_result(made.result())
            else:
                self._probe_size(group, made.result(), future)

        made.add_done_callback(ended)
        setup = GroupSetup(self._reading_link, self._options, group, partition_count, made)
        self._reading.call(setup.start)
        return future

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`. A half for an exchange is stored even if no queue is bound for its routing key.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._hand_over(batch, functools.partial(self._releaser.append, batch, self._deadline_s()))

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:  # noqa: ARG002 - not fenced here
        """See `Backend.release`.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._hand_over(batch, functools.partial(self._releaser.release, batch, self._deadline_s()))

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:  # noqa: ARG002
        """See `Backend.mark`."""
        self._enter()
        future: Future[Outcome] = running()
        self._publishing.call(functools.partial(self._releaser.mark, group, partition, op, future, self._deadline_s()))
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> StreamReader:
        """See `Backend.read`; the first `Reader.read` may wait for the broker, at most a second."""
        self._enter()
        # An op log is read up to a mark; of the other logs callers often take the records that have arrived for all.
        waits_once = kind is not LogKind.OP or not self._releaser.knows(group, partition)
        search = self._end_search(group, kind, partition)
        return StreamReader(self._reading_link, log_name(group, kind, partition), start, search, waits_once=waits_once)

    def claim(self, group: str, member: str) -> ExclusiveClaim:
        """See `Backend.claim`; competes on a connection of its own."""
        self._enter()
        unique = f"{member}#{self._randomness.getrandbits(64):016x}"
        store = functools.partial(self._store_checkpoint, group)
        claim = ExclusiveClaim(self._reading, self._options, group, unique, store, self._clock)
        self._claims = [each for each in self._claims if not each.is_closed] + [claim]
        self._join(claim, group)
        return claim

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`; reads up to a marker of its own, as AMQP does not report a stream's end."""
        self._enter()
        future: Future[Checkpoint | None] = running()
        nonce = self._nonce()
        scan = functools.partial(
            scan_checkpoints, self._reading_link, group, partition, nonce, future, self._options.control_timeout_s
        )

        def marked(status: Status, error: TxcoreError | None) -> None:
            if status is Status.DURABLE:
                self._reading.call(scan)
            else:
                future.set_exception(error or OutcomeUnknownError("no answer"))

        stream = checkpoint_name(group, partition)
        self._send_record(group, partition, checks_name(group), stream, encode_marker(nonce), marked)
        return future

    def ping(self, group: str) -> Future[None]:
        """See `Backend.ping`; asks for the first half stream, on the reading connection."""
        self._enter()
        future: Future[None] = running()
        self._reading.call(Ping(self._reading_link, group, future, self._options.control_timeout_s).start)
        return future

    def poll(self, *_: object, **__: object) -> bool:
        """See `Backend.poll`; its threads are not lent."""
        return False

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """See `Backend.close`; claims leave their groups. In a forked child only the object is closed."""
        is_mine = False
        with self._lock:
            if self._closing is None:
                self._closing = running()
                if self._pid is None or self._pid != os.getpid():
                    self._closing.set_result(None)  # no thread runs here; connections of a parent are not closed
                else:
                    is_mine = True
            closing = self._closing
        if is_mine:
            exiting.run_beside(functools.partial(self._close, timeout_s, closing), "txcore-rabbitmq-close")
        return closing

    # -- closing -------------------------------------------------------------------------------------------------------

    def _close(self, timeout_s: float, future: Future[None]) -> None:
        deadline_s = self._clock.elapsed_s() + timeout_s

        def left_s(share: float = 1.0) -> float:
            return max(0.05, share * (deadline_s - self._clock.elapsed_s()))

        try:
            leaving = [claim.close(left_s(0.2)) for claim in self._claims]
            self._drain(left_s(0.7))
            wait(leaving, left_s())
            self._reading.call(self._reading_link.close)
            gone = [threading.Event() for _ in self._links]
            grace_s = left_s(0.5)
            for (link, loop), event in zip(self._links, gone, strict=True):
                loop.call(functools.partial(link.close, event.set, min(CLOSE_GRACE_S, grace_s)))
            for (_, loop), event in zip(self._links, gone, strict=True):
                event.wait(left_s())
                loop.stop(left_s())
        finally:
            exiting.closed(self)
            future.set_result(None)

    def _drain(self, timeout_s: float) -> None:
        drained = threading.Event()
        deadline_s = self._clock.elapsed_s() + timeout_s

        def look() -> None:
            self._releaser.flush_all()
            if self._publisher.is_idle or self._clock.elapsed_s() >= deadline_s:
                self._publisher.close(ClosedError("the backend was closed before the broker answered"))
                drained.set()
            else:
                self._publishing.later(DRAIN_POLL_S, look)

        self._publishing.call(look)
        drained.wait(timeout_s + 1.0)

    # -- entering ------------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Refuse calls after `close` and in forked children; connect with the first one."""
        if self._closing is not None:
            raise ClosedError("this rabbitmq backend is closed")
        pid = os.getpid()
        if self._pid != pid:
            with self._lock:
                if self._pid is None:
                    self._pid = pid
                    exiting.close_at_exit(self)
                    for link, loop in self._links:
                        loop.call(link.open)
            if self._pid != pid:
                raise UsageError("this rabbitmq backend was opened before a fork; open another one in the child")

    def _hand_over(self, batch: Batch[Any], request: Callable[[], None]) -> None:
        self._enter()
        if self._publishing.backlog < BACKLOG_COUNT_MAX:
            self._publishing.call(request)
            return
        busy = Outcome(Status.REFUSED, BusyError("too many batches wait for RabbitMQ already; slow down"))
        for index in range(len(batch.items)):
            batch.settle(index, busy)

    def _nonce(self) -> bytes:
        return self._randomness.getrandbits(NONCE_BITS).to_bytes(NONCE_BITS // 8, "big")

    def _deadline_s(self) -> float:
        return self._clock.elapsed_s() + self._options.delivery_timeout_s

    # -- control -------------------------------------------------------------------------------------------------------

    def _join(self, claim: ExclusiveClaim, group: str) -> None:
        """Let *claim* compete after the group is known; while the broker cannot be reached, ask again."""
        if claim.is_closed or self._closing is not None:
            return
        counted: Future[int] = running()

        def ended(counted: Future[int]) -> None:
            error = counted.exception()
            if error is None:
                self._releaser.know(group, counted.result())
                self._reading.call(functools.partial(claim.start, counted.result()))
            elif isinstance(error, UsageError):
                claim.fail(error)
            else:
                self._reading.call(lambda: self._reading.later(DRAIN_POLL_S, lambda: self._join(claim, group)))

        counted.add_done_callback(ended)
        setup = GroupSetup(self._reading_link, self._options, group, None, counted, must_exist=True)
        self._reading.call(setup.start)

    def _probe_size(self, group: str, count: int, future: Future[int]) -> None:
        """Publish the largest record to a key without a queue: it is returned, or the broker reports a lower limit.

        AMQP does not report the limit, and a larger message later would close the channel of all messages under way. If
        the broker accepts no messages now (an alarm), the size is not verified yet. The lane is not that of the logs,
        as the broker may close it.
        """

        def ended(_status: Status, error: TxcoreError | None) -> None:
            if is_too_large(error):
                text = f"the broker takes less than body_size_max={self._options.body_size_max}: {error}"
                future.set_exception(ConfigError(text, key="body_size_max"))
                return
            if error is not None and error.__cause__ is not None and is_forbidden(error.__cause__):
                future.set_exception(error)
                return
            self._is_size_verified = isinstance(error, MessageRejectedError)
            if not self._is_size_verified:
                _log.warning("rabbitmq.size_not_verified", extra={"txcore": {"reason": str(error)}})
            future.set_result(count)

        body = bytes(self._options.body_size_max + RECORD_OVERHEAD_MAX)
        sending = Sending(LaneKey(logs_name(group)), NOWHERE, body, self._deadline_s(), ended, is_urgent=True)
        self._publishing.call(functools.partial(self._publisher.send, sending))

    def _store_checkpoint(self, group: str, partition: int, checkpoint: Checkpoint) -> Future[None]:
        future: Future[None] = running()

        def stored(status: Status, error: TxcoreError | None) -> None:
            if status is Status.DURABLE:
                future.set_result(None)
            else:
                future.set_exception(error or OutcomeUnknownError("no answer"))

        self._enter()
        stream = checkpoint_name(group, partition)
        self._send_record(group, partition, checks_name(group), stream, encode_checkpoint(checkpoint), stored)
        return future

    def _end_search(self, group: str, kind: LogKind, partition: int) -> EndSearch:
        nonce = self._nonce()
        stream = log_name(group, kind, partition)

        def append(message_id: str, body: bytes, end: Ended) -> None:
            exchange = log_exchange(group, kind)
            self._send_record(group, partition, exchange, stream, body, end, message_id=message_id)

        body = wire.encode_end_marker(group, kind, partition, nonce, AUTHOR)
        timeout_s = self._options.control_timeout_s
        return EndSearch(self._reading_link, stream, append, body, f"{MARKER_PREFIX}{nonce.hex()}", timeout_s)

    def _send_record(
        self, group: str, partition: int, exchange: str, stream: str, body: bytes, end: Ended, *, message_id: str = ""
    ) -> None:
        """Append one record to a stream of a group; a group that does not exist is a ConfigError."""

        def ended(status: Status, error: TxcoreError | None) -> None:
            if isinstance(error, StreamAbsentError) and not self._releaser.knows(group, partition):
                error = ConfigError(f"group {group!r} has no usable partition {partition} here: {error}", key="group")
            end(status, error)

        sending = Sending(
            LaneKey(exchange, is_log=True),
            stream,
            body,
            self._deadline_s(),
            ended,
            properties=log_properties(message_id) if message_id else b"",
            message_id=message_id,
            is_urgent=True,
        )
        self._publishing.call(functools.partial(self._publisher.send, sending))


class _PublishingOwner:
    """The publishing connection's owner, which passes its events on."""

    link: Link

    def __init__(self, publisher: Publisher, checks: TargetChecks) -> None:
        self._publisher = publisher
        self._checks = checks

    def link_up(self, connection: Any) -> None:
        self._publisher.up(self.link, connection)
        self._checks.up(connection)

    def link_down(self, error: TxcoreError) -> None:
        self._checks.down(error)
        self._publisher.down(error)

    def link_blocked(self, reason: str) -> None:
        self._publisher.blocked(reason)
