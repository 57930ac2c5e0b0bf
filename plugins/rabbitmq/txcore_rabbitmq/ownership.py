"""Membership in a group: one exclusive queue per partition, on a connection of the member's own.

A hint only. RabbitMQ has neither epochs nor compare-and-set; a frozen owner may wake up after another has taken
over. The CLAIM in the op log is the truth.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from txcore.errors import ClosedError, TxcoreError
from txcore.records import Checkpoint, ClaimEvent, ClaimEventKind
from txcore_rabbitmq.codec import is_locked
from txcore_rabbitmq.connection import Link, LoopThread
from txcore_rabbitmq.options import Options, claim_name

_log = logging.getLogger("txcore.rabbitmq")

RETRY_S: Final = 0.5
"""Between two rounds of trying the partitions that others hold."""
STAND_BACK_S: Final = 2.0
"""How long a partition that was given up is left to others."""

Store = Callable[[int, Checkpoint], Future[None]]


class ExclusiveClaim:
    """The port's Claim. It takes what it can get; sharing out evenly is not done yet."""

    def __init__(self, loop: LoopThread, options: Options, group: str, member: str, store: Store) -> None:
        self._loop = loop
        self._group = group
        self._member = member
        self._store = store
        self._events: deque[ClaimEvent] = deque()
        self._connection: Any = None
        self._channel: Any = None
        self._partition_count = 0
        self._owned: set[int] = set()
        self._standing_back: set[int] = set()
        self._told: set[int] = set()  # assignments that the core knows of; on the core's thread
        self._round: deque[int] = deque()
        self._is_resting = False
        self._error: TxcoreError | None = None
        self._closed: Future[None] | None = None
        self._link = Link(loop, options, options.claim_heartbeat_s, f"txcore {group} claim {member}", self)

    def start(self, partition_count: int) -> None:
        """Begin to compete; on the loop's thread."""
        if self._closed is None:
            self._partition_count = partition_count
            self._link.open()

    def fail(self, error: TxcoreError) -> None:
        """The group cannot be joined; `poll` will say so."""
        self._error = error

    def poll(self) -> Sequence[ClaimEvent]:
        """Return the ownership changes since the last call."""
        if self._error is not None:
            raise self._error
        events = []
        while self._events:
            event = self._events.popleft()
            events.append(event)
            if event.kind is ClaimEventKind.ASSIGNED:
                self._told.add(event.partition)
            else:
                self._told.discard(event.partition)
        return events

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """Append a checkpoint to the partition's checkpoint stream."""
        if self._closed is not None:
            raise ClosedError("this claim is closed")
        return self._store(partition, checkpoint)

    def give_up(self, partition: int) -> None:
        """Let others have the partition, and compete for it again a little later.

        Nothing happens where the assignment meant is gone already and a new one has not been polled yet.
        """
        if partition not in self._told:
            return
        self._told.discard(partition)
        self._loop.call(functools.partial(self._release, partition))

    def close(self, timeout_s: float) -> Future[None]:
        """Close the connection, and the queues with it."""
        if self._closed is None:
            self._closed = Future()
            self._closed.set_running_or_notify_cancel()
            self._loop.call(lambda: self._link.close(self._is_gone))
            self._loop.call(lambda: self._loop.later(timeout_s, self._is_gone))
        return self._closed

    def link_up(self, connection: Any) -> None:
        """The connection is open: compete."""
        self._connection = connection
        self._open_channel()

    def link_down(self, error: BaseException) -> None:
        """The connection is gone, and every queue with it."""
        self._connection = self._channel = None
        self._round.clear()
        owned, self._owned = self._owned, set()
        for partition in sorted(owned):
            self._events.append(ClaimEvent(ClaimEventKind.LOST, partition))
        _log.info("rabbitmq.claim_down", extra={"group": self._group, "reason": repr(error)})

    def link_blocked(self, *, is_blocked: bool) -> None:
        """Nothing is published here."""

    def _is_gone(self) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def _open_channel(self) -> None:
        if self._connection is not None and self._connection.is_open and self._closed is None:
            self._channel = self._connection.channel(on_open_callback=lambda _channel: self._try_next())
            self._channel.add_on_close_callback(self._refused)

    def _try_next(self) -> None:
        if self._channel is None or not self._channel.is_open or self._closed is not None:
            return
        if not self._round and not self._is_resting:
            self._fill_round()
        if self._round:
            self._declare()

    def _rest(self) -> None:
        if not self._is_resting:
            self._is_resting = True
            self._loop.later(RETRY_S, self._wake)

    def _wake(self) -> None:
        self._is_resting = False
        if self._closed is None:
            if not self._round:
                self._try_next()
            self._rest()

    def _fill_round(self) -> None:
        wanted = set(range(self._partition_count)) - self._owned - self._standing_back
        self._round.extend(sorted(wanted))
        self._rest()

    def _declare(self) -> None:
        partition = self._round[0]
        self._channel.queue_declare(
            claim_name(self._group, partition),
            exclusive=True,
            arguments={"x-queue-type": "classic"},
            callback=lambda _frame: self._got(partition),
        )

    def _got(self, partition: int) -> None:
        self._round.popleft()
        self._owned.add(partition)
        self._events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))
        self._try_next()

    def _refused(self, _channel: Any, error: BaseException) -> None:
        self._channel = None
        if self._connection is None or not self._round:
            return
        partition = self._round.popleft()
        if not is_locked(error):
            _log.warning("rabbitmq.claim_refused", extra={"partition": partition, "reason": repr(error)})
        self._open_channel()

    def _release(self, partition: int) -> None:
        if partition not in self._owned:
            return
        self._owned.discard(partition)
        self._standing_back.add(partition)
        if self._channel is not None and self._channel.is_open:
            self._channel.queue_delete(claim_name(self._group, partition))
        self._loop.later(STAND_BACK_S, lambda: self._standing_back.discard(partition))
