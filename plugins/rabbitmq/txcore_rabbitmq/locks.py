"""Exclusive queues as locks, one per partition: declared, deleted, one request at a time, in order.

The member that declares a queue first holds it until it deletes the queue or its connection ends. A cluster keeps the
queues of connections to a node that is down until that node is back. So a lock counts as lost if no member announces
it and it stays refused for longer than a live connection may be silent. Then a queue of another name, a substitute,
replaces it. Two members may then hold one partition for a moment, under two names; the CLAIM in the op log decides
between them. All of it runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from txcore.clock import Clock
from txcore_rabbitmq.codec import is_locked
from txcore_rabbitmq.connection import LoopThread
from txcore_rabbitmq.names import claim_name

_log = logging.getLogger("txcore.rabbitmq")

REOPEN_DELAY_S: Final = 0.5
LOCK_ARGUMENTS: Final = {"x-queue-type": "classic"}


REFUSALS_APART_MAX_S: Final = 5.0
"""Longest time, in seconds, between two refusals by one holder; after a longer one the partition had another owner."""


class _Step(NamedTuple):
    partition: int
    is_taking: bool


@dataclass(slots=True)
class _Refused:
    """A refused lock: the times of its first and last refusal, and the number of its substitute."""

    since_s: float
    last_s: float
    substitute: int = 0


class Locks:
    """One member's locks, on a channel of its own, as a refusal closes the channel.

    *answered* is called for each `take`, with its success; *freed* for each `free`, perhaps twice. A lock that
    is refused for *lost_after_s* is lost; the next `take` tries its substitute.
    """

    def __init__(
        self,
        loop: LoopThread,
        clock: Clock,
        group: str,
        lost_after_s: float,
        answered: Callable[[int, bool], None],
        freed: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._lost_after_s = lost_after_s
        self._refused: dict[int, _Refused] = {}
        self._held: dict[int, str] = {}
        self._asked = ""  #: the queue of the step that waits for its answer
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
        """Forget all locks and steps after the connection was lost."""
        self._connection = self._channel = None
        self._is_waiting = False
        self._steps.clear()
        self._refused.clear()
        self._held.clear()

    def take(self, partition: int) -> None:
        """Try to get a partition's lock."""
        self._steps.append(_Step(partition, is_taking=True))
        self._next()

    def free(self, partition: int) -> None:
        """Give a lock back."""
        self._steps.append(_Step(partition, is_taking=False))
        self._next()

    def held_by_other(self, partitions: Iterable[int]) -> None:
        """Forget refusals of *partitions*, which a live member announces: that member holds their locks."""
        for partition in partitions:
            self._refused.pop(partition, None)

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
        name = self._asked = self._held.get(step.partition) or self._name(step.partition)
        if step.is_taking:
            channel.queue_declare(name, exclusive=True, arguments=LOCK_ARGUMENTS, callback=self._granted)
        else:
            channel.queue_delete(name, callback=self._granted)

    def _granted(self, _frame: Any) -> None:
        self._done(is_granted=True)

    def _done(self, *, is_granted: bool) -> None:
        self._is_waiting = False
        step = self._steps.popleft()
        self._note(step, is_granted=is_granted)
        if step.is_taking:
            self._answered(step.partition, is_granted)
        else:
            self._freed(step.partition)
        self._next()

    def _name(self, partition: int) -> str:
        refused = self._refused_of_now(partition)
        return claim_name(self._group, partition, refused.substitute if refused is not None else 0)

    def _refused_of_now(self, partition: int) -> _Refused | None:
        """Return the refusals of the lock by its current holder, or None."""
        refused = self._refused.get(partition)
        is_old = refused is not None and self._clock.elapsed_s() - refused.last_s > REFUSALS_APART_MAX_S
        return None if is_old else refused

    def _note(self, step: _Step, *, is_granted: bool) -> None:
        partition = step.partition
        if not step.is_taking:
            self._held.pop(partition, None)
        elif is_granted:
            self._held[partition] = self._asked
            self._refused.pop(partition, None)
        else:
            self._note_refusal(partition)

    def _note_refusal(self, partition: int) -> None:
        now_s = self._clock.elapsed_s()
        refused = self._refused_of_now(partition)
        if refused is None:
            refused = self._refused[partition] = _Refused(now_s, now_s)
        refused.last_s = now_s
        if now_s - refused.since_s >= self._lost_after_s:
            _log.warning("rabbitmq.lock_lost", extra={"txcore": {"group": self._group, "queue": self._name(partition)}})
            refused.since_s = now_s
            refused.substitute += 1

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
            _log.warning("rabbitmq.lock_refused", extra={"txcore": {"group": self._group, "reason": repr(error)}})
            self._loop.later(REOPEN_DELAY_S, lambda: self._again(connection))

    def _again(self, connection: Any) -> None:
        """Continue after an unexpected refusal: a `take` has failed, but a `free` is tried again."""
        if connection is self._connection and self._is_waiting:
            if self._steps[0].is_taking:
                self._done(is_granted=False)
            else:
                self._is_waiting = False
                self._next()
