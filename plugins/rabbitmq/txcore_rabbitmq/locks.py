"""Exclusive queues as locks, one per partition: declared, deleted, one request at a time, in order.

Whoever declares first holds it until it deletes the queue or its connection ends. Everything runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from txcore_rabbitmq.codec import is_locked
from txcore_rabbitmq.connection import LoopThread
from txcore_rabbitmq.names import claim_name

_log = logging.getLogger("txcore.rabbitmq")

REOPEN_DELAY_S: Final = 0.5
LOCK_ARGUMENTS: Final = {"x-queue-type": "classic"}


class _Step(NamedTuple):
    partition: int
    is_taking: bool


class Locks:
    """One member's locks, on a channel of its own, as a "no" closes the channel.

    *answered* is told of each `take` whether it succeeded; *freed* of each `free`, and may be told twice.
    """

    def __init__(
        self, loop: LoopThread, group: str, answered: Callable[[int, bool], None], freed: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._group = group
        self._answered = answered
        self._freed = freed
        self._connection: Any = None
        self._channel: Any = None
        self._steps: deque[_Step] = deque()
        self._is_waiting = False

    def open(self, connection: Any) -> None:
        """Begin to work on a connection that is open."""
        self._connection = connection
        self._next()

    def down(self) -> None:
        """The connection is gone, and every lock with it."""
        self._connection = self._channel = None
        self._is_waiting = False
        self._steps.clear()

    def take(self, partition: int) -> None:
        """Try to get a partition's lock."""
        self._steps.append(_Step(partition, is_taking=True))
        self._next()

    def free(self, partition: int) -> None:
        """Give a lock back."""
        self._steps.append(_Step(partition, is_taking=False))
        self._next()

    def _next(self) -> None:
        connection = self._connection
        if self._is_waiting or not self._steps or connection is None or not connection.is_open:
            return
        self._is_waiting = True
        if self._channel is None:
            self._channel = connection.channel(on_open_callback=lambda _channel: self._do())
            self._channel.add_on_close_callback(self._closed)
        else:
            self._do()

    def _do(self) -> None:
        step, channel = self._steps[0], self._channel
        name = claim_name(self._group, step.partition)
        if step.is_taking:
            channel.queue_declare(name, exclusive=True, arguments=LOCK_ARGUMENTS, callback=self._granted)
        else:
            channel.queue_delete(name, callback=self._granted)

    def _granted(self, _frame: Any) -> None:
        self._done(is_granted=True)

    def _done(self, *, is_granted: bool) -> None:
        self._is_waiting = False
        step = self._steps.popleft()
        if step.is_taking:
            self._answered(step.partition, is_granted)
        else:
            self._freed(step.partition)
        self._next()

    def _closed(self, channel: Any, error: BaseException) -> None:
        if channel is not self._channel:
            return
        self._channel = None
        connection = self._connection
        if connection is None or not connection.is_open or not self._is_waiting:
            return
        if is_locked(error):
            self._done(is_granted=False)
        else:
            _log.warning("rabbitmq.lock_refused", extra={"group": self._group, "reason": repr(error)})
            self._loop.later(REOPEN_DELAY_S, lambda: self._again(connection))

    def _again(self, connection: Any) -> None:
        """After an unexpected "no": a lock is not taken then, but it must be given back."""
        if connection is self._connection and self._is_waiting:
            if self._steps[0].is_taking:
                self._done(is_granted=False)
            else:
                self._is_waiting = False
                self._next()
