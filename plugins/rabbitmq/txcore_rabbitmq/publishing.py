"""Publishing with asynchronous confirms: every message handed over ends exactly once, within its deadline.

Unconfirmed and waiting messages are bounded, by count and by bytes. The publisher handles deadlines and lanes, not
halves or ops. All of it runs on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, TxcoreError
from txcore.records import Status
from txcore_rabbitmq.codec import is_login_refused
from txcore_rabbitmq.connection import Link, LoopThread
from txcore_rabbitmq.lanes import Lane, LaneKey, Sending
from txcore_rabbitmq.options import Options

UNANSWERED_COUNT_MAX: Final = 50_000
"""Most messages of one lane without an answer, including expired ones; then it gets a new channel."""
LANE_COUNT_MAX: Final = 256
EXPIRY_TICK_S: Final = 0.05


class Publisher:
    """All lanes of one connection, with a window, a bound on waiting messages, and deadlines."""

    def __init__(self, loop: LoopThread, options: Options, clock: Clock) -> None:
        self._loop = loop
        self._options = options
        self._clock = clock
        self._link: Link | None = None
        self._connection: Any = None
        self._closed: TxcoreError | None = None
        self._refusal: TxcoreError | None = None
        self._blocked = ""
        self._reason = "no connection yet"
        self._lanes: dict[LaneKey, Lane] = {}
        self._waiting: deque[Sending] = deque()
        self._waiting_count = 0
        self._waiting_bytes = 0
        self._live_count = 0
        self._live_bytes = 0
        self._expiring: dict[int, list[Sending]] = {}
        self._is_ticking = False
        self._past = 0  #: all slots below this one had passed at the last tick

    @property
    def is_idle(self) -> bool:
        """Whether no message waits or is unconfirmed."""
        return not self._waiting_count and not self._live_count

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, so that each new message ends at once."""
        return self._closed is not None

    def send(self, sending: Sending) -> None:
        """Publish *sending* as soon as connection, lane and window allow."""
        self.watch(sending)
        self.start(sending)

    def watch(self, sending: Sending) -> None:
        """End *sending* at its deadline, although it is not handed to `start` yet."""
        if self._closed is not None:
            sending.settle(Status.REFUSED, self._closed)
            return
        slot = int(sending.deadline_s / EXPIRY_TICK_S)
        self._expiring.setdefault(slot, []).append(sending)
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.later(EXPIRY_TICK_S, self._tick)

    def start(self, sending: Sending) -> None:
        """Publish a watched message, unless its deadline has passed: a thawed process must not publish late."""
        if sending.end is None:
            return
        if self._is_late(sending):
            self._expire(sending)
        elif self._is_open() and not self._waiting_count:
            self._submit(sending)
        elif self._refusal is not None:
            sending.settle(Status.REFUSED, self._refusal)
        elif not sending.is_urgent and not self._has_room(sending.size):
            sending.settle(Status.REFUSED, BusyError("too many messages wait for RabbitMQ already; slow down"))
        else:
            self._waiting.append(sending)
            self._waiting_count += 1
            self._waiting_bytes += sending.size
            sending.freed = self._given_up

    def up(self, link: Link, connection: Any) -> None:
        """Begin to publish on a new connection."""
        self._link, self._connection = link, connection
        self._refusal = None
        self._blocked = ""
        self._resume()

    def down(self, error: TxcoreError) -> None:
        """End sent messages after the connection was lost; others wait until their deadlines, or a refused login."""
        self._connection = None
        self._reason = str(error)
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.fail(error)
        if is_login_refused(error):
            self._refusal = error
            self._drop_waiting(error)

    def blocked(self, reason: str) -> None:
        """Hold all messages during an alarm, or continue if *reason* is ""; held ones are certainly not stored."""
        self._blocked = reason
        self._resume()

    def close(self, error: TxcoreError) -> None:
        """Settle all messages now, and later ones at once."""
        self._closed = error
        for lane in self._lanes.values():
            lane.fail(error)
        self._drop_waiting(error)
        for sendings in self._expiring.values():
            for sending in sendings:
                sending.settle(Status.REFUSED, error)  # messages that wait for news of their targets
        self._expiring.clear()

    def _drop_waiting(self, error: TxcoreError) -> None:
        while self._waiting:
            self._waiting.popleft().settle(Status.REFUSED, error)

    def _has_room(self, size: int) -> bool:
        options = self._options
        return self._waiting_count < options.queue_count and self._waiting_bytes + size <= options.queue_bytes

    def _is_open(self) -> bool:
        options = self._options
        if self._connection is None or self._blocked or self._link is None:
            return False
        # Expired messages do not count: a queue that never answers must not fill the window. Bytes that the network has
        # not taken do count: a broker that does not read must not fill our memory.
        if self._live_count >= options.window_count or self._live_bytes >= options.window_bytes:
            return False
        return self._link.unsent_bytes < options.window_bytes

    def _submit(self, sending: Sending) -> None:
        lane = self._lanes.get(sending.lane)
        if lane is None or lane.is_dead:
            self._make_room()
            lane = Lane(sending.lane, self._connection, self._resume)
            self._lanes[sending.lane] = lane
        elif len(lane.unconfirmed) >= UNANSWERED_COUNT_MAX:
            lane.retire()
            lane = self._lanes[sending.lane] = Lane(sending.lane, self._connection, self._resume)
        self._live_count += 1
        self._live_bytes += sending.size
        sending.freed = self._landed
        lane.send(sending)

    def _landed(self, size: int) -> None:
        self._live_count -= 1
        self._live_bytes -= size

    def _given_up(self, size: int) -> None:
        self._waiting_count -= 1
        self._waiting_bytes -= size

    def _make_room(self) -> None:
        if len(self._lanes) >= LANE_COUNT_MAX:
            for key, lane in self._lanes.items():
                if lane.is_idle and not lane.is_dead:
                    lane.retire()
                    del self._lanes[key]
                    return

    def _resume(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0].end is None or self._is_open()):
            sending = waiting.popleft()
            if sending.end is not None and self._is_late(sending):
                self._expire(sending)
            elif sending.end is not None:
                self._given_up(sending.size)
                self._submit(sending)

    def _is_late(self, sending: Sending) -> bool:
        return self._clock.elapsed_s() >= sending.deadline_s

    def _tick(self) -> None:
        now_s = self._clock.elapsed_s()
        past = int(now_s / EXPIRY_TICK_S)
        for slot in [slot for slot in self._expiring if slot < past]:
            waiting = [sending for sending in self._expiring.pop(slot) if sending.end is not None]
            # A thread that was blocked for long must read confirms first: sent messages wait for one more tick.
            asked = [sending for sending in waiting if sending.is_sent and slot >= self._past]
            for sending in waiting:
                if not sending.is_sent or slot < self._past:
                    self._expire(sending)
            if asked:
                self._expiring[slot] = asked
        self._past = past
        self._resume()
        self._is_ticking = bool(self._expiring)
        if self._is_ticking:
            self._loop.later(EXPIRY_TICK_S, self._tick)

    def _expire(self, sending: Sending) -> None:
        if sending.is_sent:
            error: TxcoreError = BackendTimeoutError("RabbitMQ has not confirmed a message in time; it may be stored")
            sending.settle(Status.UNKNOWN, error)
        else:
            sending.settle(Status.REFUSED, BackendUnavailableError(f"the message was not sent: {self._why(sending)}"))

    def _why(self, sending: Sending) -> str:
        if self._blocked:
            return f"RabbitMQ blocks publishers ({self._blocked})"
        if self._connection is None:
            return self._reason
        if sending.freed is None:  # watched, not started
            return "RabbitMQ has not answered in time whether its targets exist"
        return "RabbitMQ or this process is too slow for what is asked"
