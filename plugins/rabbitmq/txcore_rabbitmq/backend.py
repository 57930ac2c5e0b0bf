"""The backend port on RabbitMQ: two connections, each on a thread of its own, and one more per claim."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import ClosedError, ConfigError, MessageRejectedError, OutcomeUnknownError, TxcoreError
from txcore.port import Batch, Claim
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
from txcore_rabbitmq.codec import encode_checkpoint, encode_marker, is_too_large
from txcore_rabbitmq.connection import Link, LoopThread
from txcore_rabbitmq.control import GroupSetup, new_future, scan_checkpoints
from txcore_rabbitmq.options import NAME_PREFIX, Options, checkpoint_name, log_name, parse_url
from txcore_rabbitmq.ownership import ExclusiveClaim
from txcore_rabbitmq.publishing import EXPIRY_TICK_S, LOG_LANE, PROBE_LANE, Publisher, Sending
from txcore_rabbitmq.reading import ReadingLink, StreamReader
from txcore_rabbitmq.releasing import Releaser
from txcore_rabbitmq.targets import TargetChecks

_log = logging.getLogger("txcore.rabbitmq")

BATCH_COUNT_MAX: Final = 10_000
NOTE_SIZE_MAX: Final = 32_000
DRAIN_POLL_S: Final = 0.01
NONCE_BITS: Final = 128
NOWHERE: Final = f"{NAME_PREFIX}.nowhere"
"""A routing key that leads nowhere; nobody may declare a queue of this name."""


class RabbitmqBackend:
    """One RabbitMQ broker as a txcore backend. Thread safe; threads and connections start with the first call."""

    def __init__(self, url: str | Options, *, clock: Clock | None = None, randomness: Randomness | None = None) -> None:
        self._options = url if isinstance(url, Options) else parse_url(url)
        self._clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._lock = threading.Lock()
        self._is_started = False
        self._is_size_verified = False
        self._closing: Future[None] | None = None
        self._claims: list[ExclusiveClaim] = []
        self._publishing = LoopThread("txcore-rabbitmq-publish")
        self._reading = LoopThread("txcore-rabbitmq-read")
        self._publisher = Publisher(self._publishing, self._clock)
        self._checks = TargetChecks(self._clock)
        self._releaser = Releaser(self._options, self._publishing, self._publisher, self._checks, self._clock)
        self._reading_link = ReadingLink(self._reading)
        owner, heartbeat_s = _PublishingOwner(self._publisher, self._checks), self._options.heartbeat_s
        self._links = (
            Link(self._publishing, self._options, heartbeat_s, "txcore publish", owner),
            Link(self._reading, self._options, heartbeat_s, "txcore read", self._reading_link),
        )

    @property
    def capabilities(self) -> Capabilities:
        """What RabbitMQ promises, whatever its version; depends on the URL's options only."""
        options = self._options
        return Capabilities(
            atomic_release=False,
            resolution_is_unique=False,
            fences_checkers=False,
            server_time=False,
            rejects_when_full=False,
            fsync_before_ack="no",
            body_size_max=options.body_size_max,
            batch_count_max=BATCH_COUNT_MAX,
            note_size_max=NOTE_SIZE_MAX,
            release_time_max_s=2 * options.delivery_timeout_s + options.merge_delay_s + EXPIRY_TICK_S,
            half_retention_s=float(options.half_retention_s),
            notes={"fsync_before_ack": "streams and classic queues never sync; quorum queues as targets do"},
        )

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """Make or verify the group's streams, and verify that the broker takes the largest record."""
        future: Future[int] = new_future()
        made: Future[int] = new_future()

        def ended(made: Future[int]) -> None:
            error = made.exception()
            if error is not None:
                future.set_exception(error)
            elif self._is_size_verified:
                future.set_result(made.result())
            else:
                self._probe_size(made.result(), future)

        made.add_done_callback(ended)
        setup = GroupSetup(self._reading_link, self._options, group, partition_count, made)
        self._call(self._reading, setup.start)
        return future

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """Append halves to the half streams."""
        self._call(self._publishing, functools.partial(self._releaser.append, batch, self._deadline_s()))

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:  # noqa: ARG002 - not fenced here
        """Publish targets, then ops."""
        self._call(self._publishing, functools.partial(self._releaser.release, batch, self._deadline_s()))

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:  # noqa: ARG002
        """Append a CLAIM or TICK behind the ops queued so far."""
        future: Future[Outcome] = new_future()
        request = functools.partial(self._releaser.mark, group, partition, op, future, self._deadline_s())
        self._call(self._publishing, request)
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> StreamReader:
        """Open a reader on a stream."""
        self._start()
        return StreamReader(self._reading_link, log_name(group, kind, partition), start)

    def claim(self, group: str, member: str) -> ExclusiveClaim:
        """Compete for the group's partitions on a connection of its own."""
        store = functools.partial(self._store_checkpoint, group)
        claim = ExclusiveClaim(self._reading, self._options, group, member, store)
        self._claims.append(claim)

        def counted(future: Future[int]) -> None:
            error = future.exception()
            if isinstance(error, TxcoreError):
                claim.fail(error)
            else:
                self._reading.call(functools.partial(claim.start, future.result()))

        self.ensure_group(group).add_done_callback(counted)
        return claim

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """Read the checkpoint stream up to a marker of our own, as no end of a stream can be asked for."""
        future: Future[Checkpoint | None] = new_future()
        nonce = self._randomness.getrandbits(NONCE_BITS).to_bytes(NONCE_BITS // 8, "big")

        def marked(status: Status, error: TxcoreError | None) -> None:
            if status is Status.DURABLE:
                self._reading.call(
                    functools.partial(scan_checkpoints, self._reading_link, group, partition, nonce, future)
                )
            else:
                future.set_exception(error or OutcomeUnknownError("no answer"))

        self._send_log(checkpoint_name(group, partition), encode_marker(nonce), marked)
        return future

    def poll(self, timeout_s: float) -> None:
        """Return at once: the threads make progress."""

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """Send what is queued, settle everything, close connections, end threads."""
        with self._lock:
            if self._closing is None:
                self._closing = new_future()
                closer = threading.Thread(
                    target=self._close, args=(timeout_s, self._closing), name="txcore-rabbitmq-close", daemon=True
                )
                closer.start()
            return self._closing

    def _close(self, timeout_s: float, future: Future[None]) -> None:
        deadline_s = self._clock.elapsed_s() + timeout_s
        try:
            if self._is_started:
                self._drain(deadline_s)
                for claim in self._claims:
                    claim.close(timeout_s)
                for link, loop in zip(self._links, (self._publishing, self._reading), strict=True):
                    closed = threading.Event()
                    loop.call(functools.partial(link.close, closed.set))
                    closed.wait(max(0.1, min(1.0, deadline_s - self._clock.elapsed_s())))
                    loop.stop(max(0.1, deadline_s - self._clock.elapsed_s()))
        finally:
            future.set_result(None)

    def _drain(self, deadline_s: float) -> None:
        drained = threading.Event()

        def look() -> None:
            self._releaser.flush_all()
            if self._publisher.is_idle or self._clock.elapsed_s() >= deadline_s:
                self._publisher.fail_all(ClosedError("the backend was closed before the broker answered"))
                drained.set()
            else:
                self._publishing.later(DRAIN_POLL_S, look)

        self._publishing.call(look)
        drained.wait(max(0.0, deadline_s - self._clock.elapsed_s()) + 1.0)

    def _start(self) -> None:
        if self._closing is not None:
            raise ClosedError("this backend is closed")
        if not self._is_started:
            with self._lock:
                if not self._is_started:
                    for link, loop in zip(self._links, (self._publishing, self._reading), strict=True):
                        loop.call(link.open)
                    self._is_started = True

    def _call(self, loop: LoopThread, request: Callable[[], None]) -> None:
        self._start()
        loop.call(request)

    def _deadline_s(self) -> float:
        return self._clock.elapsed_s() + self._options.delivery_timeout_s

    def _probe_size(self, count: int, future: Future[int]) -> None:
        """Send the largest record to nowhere: it comes back, or the broker says that its limit is lower.

        AMQP cannot be asked for the limit, and meeting it later would close the channel of all that is under way. A
        broker that takes nothing now (an alarm) leaves the question open.
        """

        def ended(_status: Status, error: TxcoreError | None) -> None:
            if is_too_large(error):
                text = f"the broker takes less than body_size_max={self._options.body_size_max}: {error}"
                future.set_exception(ConfigError(text, key="body_size_max"))
                return
            self._is_size_verified = isinstance(error, MessageRejectedError)
            if not self._is_size_verified:
                _log.warning("rabbitmq.size_not_verified", extra={"reason": repr(error)})
            future.set_result(count)

        body = bytes(self._options.body_size_max + RECORD_OVERHEAD_MAX)
        sending = Sending(PROBE_LANE, NOWHERE, body, self._deadline_s(), ended)
        self._publishing.call(functools.partial(self._publisher.send, sending))

    def _store_checkpoint(self, group: str, partition: int, checkpoint: Checkpoint) -> Future[None]:
        future: Future[None] = new_future()

        def stored(status: Status, error: TxcoreError | None) -> None:
            if status is Status.DURABLE:
                future.set_result(None)
            else:
                future.set_exception(error or OutcomeUnknownError("no answer"))

        self._send_log(checkpoint_name(group, partition), encode_checkpoint(checkpoint), stored)
        return future

    def _send_log(self, stream: str, body: bytes, end: Callable[[Status, TxcoreError | None], None]) -> None:
        sending = Sending(LOG_LANE, stream, body, self._deadline_s(), end)
        self._call(self._publishing, functools.partial(self._publisher.send, sending))


class _PublishingOwner:
    """Passes the publishing connection's news on."""

    def __init__(self, publisher: Publisher, checks: TargetChecks) -> None:
        self._publisher = publisher
        self._checks = checks

    def link_up(self, connection: Any) -> None:
        self._publisher.up(connection)
        self._checks.up(connection)

    def link_down(self, error: BaseException) -> None:
        self._checks.down()
        self._publisher.down(error)

    def link_blocked(self, *, is_blocked: bool) -> None:
        self._publisher.blocked(is_blocked=is_blocked)
