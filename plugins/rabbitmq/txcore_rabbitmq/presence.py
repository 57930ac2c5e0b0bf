"""Announcements of a group's members: each announces its partitions every second, through a fanout exchange.

Announcements are neither stored nor confirmed; a member without announcements for a while counts as gone. All of it
runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import WireFormatError
from txcore_rabbitmq.codec import Announcement, decode_announcement, encode_announcement, transient_properties
from txcore_rabbitmq.connection import LoopThread
from txcore_rabbitmq.names import member_name, members_name

_log = logging.getLogger("txcore.rabbitmq")

UNREAD_COUNT_MAX: Final = 1_000
"""Most announcements kept for a member that does not read; the oldest are dropped."""
DEAF_S: Final = 3.0
"""Time, in seconds, after which a member that does not get its own announcements opens its channel and queue again."""
REOPEN_DELAY_S: Final = 1.0


class Presence:
    """One member's sending and receiving of announcements, on its own channel. *heard* gets those of the others."""

    def __init__(
        self,
        loop: LoopThread,
        clock: Clock,
        group: str,
        member: str,
        heard: Callable[[Announcement], None],
        up: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._exchange = members_name(group)
        self._group = group
        self._opened_count = 0
        self._member = member
        self._heard = heard
        self._up = up
        self._connection: Any = None
        self._channel: Any = None
        self._queue = ""
        self._unheard_since_s: float | None = None

    def open(self, connection: Any) -> None:
        """Begin to listen; *up* is called when announcements can arrive."""
        self._connection = connection
        if connection.is_open:
            self._channel = connection.channel(on_open_callback=self._opened)
            self._channel.add_on_close_callback(self._closed)

    def down(self) -> None:
        """Forget the channel after the connection was lost."""
        self._connection = self._channel = None
        self._queue = ""

    def say(self, announcement: Announcement) -> None:
        """Send *announcement* to the other members; it is dropped while there is no channel."""
        if not self._queue or self._channel is None or not self._channel.is_open:
            return
        now_s = self._clock.elapsed_s()
        if self._unheard_since_s is None:
            self._unheard_since_s = now_s
        elif now_s - self._unheard_since_s > DEAF_S:
            self._channel.close()
            return
        self._channel.basic_publish(self._exchange, "", encode_announcement(announcement), transient_properties())

    def _opened(self, channel: Any) -> None:
        channel.exchange_declare(self._exchange, "fanout", durable=True, callback=self._declare)

    def _declare(self, _frame: Any) -> None:
        arguments = {"x-queue-type": "classic", "x-max-length": UNREAD_COUNT_MAX}
        self._opened_count += 1
        name = member_name(self._group, self._member, self._opened_count)
        self._channel.queue_declare(name, exclusive=True, arguments=arguments, callback=self._bind)

    def _bind(self, frame: Any) -> None:
        self._queue = frame.method.queue
        self._unheard_since_s = None
        self._channel.queue_bind(self._queue, self._exchange, callback=self._consume)

    def _consume(self, _frame: Any) -> None:
        self._channel.basic_consume(self._queue, self._arrived, auto_ack=True, callback=lambda _frame: self._up())

    def _arrived(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        try:
            announcement = decode_announcement(body)
        except WireFormatError as error:
            _log.warning(
                "rabbitmq.announcement_unread", extra={"txcore": {"exchange": self._exchange, "reason": str(error)}}
            )
            return
        if announcement.member == self._member:
            self._unheard_since_s = None
        else:
            self._heard(announcement)

    def _closed(self, _channel: Any, error: BaseException) -> None:
        self._channel, self._queue = None, ""
        connection = self._connection
        if connection is not None and connection.is_open:
            _log.warning(
                "rabbitmq.presence_lost", extra={"txcore": {"exchange": self._exchange, "reason": repr(error)}}
            )
            self._loop.later(REOPEN_DELAY_S, lambda: self._reopen(connection))

    def _reopen(self, connection: Any) -> None:
        if self._connection is connection and self._channel is None:
            self.open(connection)
