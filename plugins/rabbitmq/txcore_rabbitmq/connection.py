"""One thread with pika's loop, and connections that live on it and come back when they are lost.

Nothing here knows what is published or read.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import pika  # type: ignore[import-untyped]
from pika.adapters.select_connection import IOLoop, SelectConnection  # type: ignore[import-untyped]

from txcore_rabbitmq.options import Options

_log = logging.getLogger("txcore.rabbitmq")

RECONNECT_DELAY_FIRST_S: Final = 0.1
RECONNECT_DELAY_MAX_S: Final = 2.0


class LoopThread:
    """A daemon thread that owns pika's loop; other threads enter through `call` only.

    The thread starts with the first call. Requests run in the order in which they were handed over.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ioloop = IOLoop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._is_stopped = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def ioloop(self) -> Any:
        """The loop that connections are made on."""
        return self._ioloop

    def call(self, request: Callable[[], None]) -> None:
        """Run *request* on the thread, soon; from any thread. One wake-up serves all requests that wait."""
        if self._thread is None:
            self._start()
        self._inbox.append(request)
        if not self._is_woken:
            self._is_woken = True
            self._ioloop.add_callback_threadsafe(self._drain)

    def later(self, delay_s: float, request: Callable[[], None]) -> None:
        """Run *request* after *delay_s* seconds; on the thread only."""
        self._ioloop.call_later(delay_s, functools.partial(self._guarded, request))

    def stop(self, timeout_s: float) -> None:
        """End the thread and wait for it; idempotent."""
        thread = self._thread
        if thread is None or self._is_stopped:
            return
        self._is_stopped = True
        self._ioloop.add_callback_threadsafe(self._ioloop.stop)
        thread.join(timeout_s)
        if not thread.is_alive():
            self._ioloop.close()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self._ioloop.start()
            except Exception:  # noqa: BLE001 - an error inside pika must not end the thread that settles everything
                _log.exception("rabbitmq.loop_error", extra={"thread": self._name})

    def _drain(self) -> None:
        # Cleared first: whoever appends from here on either is seen by this loop or wakes the thread again.
        self._is_woken = False
        while self._inbox:
            self._guarded(self._inbox.popleft())

    def _guarded(self, request: Callable[[], None]) -> None:
        try:
            request()
        except Exception:  # noqa: BLE001 - one failing request must not take the others along
            _log.exception("rabbitmq.request_error", extra={"thread": self._name})


class LinkOwner(Protocol):
    """Who is told about a connection; on the loop's thread."""

    def link_up(self, connection: Any) -> None:
        """The connection is open."""

    def link_down(self, error: BaseException) -> None:
        """The connection is gone, or could not be opened; it will be tried again unless closed."""

    def link_blocked(self, *, is_blocked: bool) -> None:
        """The broker has an alarm and takes no publishes, or takes them again."""


class Link:
    """One connection on a loop, reopened with growing delays until closed. All methods on the loop's thread."""

    def __init__(self, loop: LoopThread, options: Options, heartbeat_s: int, name: str, owner: LinkOwner) -> None:
        self._loop = loop
        self._owner = owner
        self._delay_s = RECONNECT_DELAY_FIRST_S
        self._connection: Any = None
        self._is_closed = False
        self._on_closed: Callable[[], None] | None = None
        self._parameters = pika.ConnectionParameters(
            host=options.host,
            port=options.port,
            virtual_host=options.vhost,
            credentials=pika.PlainCredentials(options.user, options.password),
            heartbeat=heartbeat_s,
            socket_timeout=options.connect_timeout_s,
            stack_timeout=options.connect_timeout_s,
            connection_attempts=1,
            client_properties={"connection_name": name},
        )

    def open(self) -> None:
        """Start to connect."""
        if self._is_closed:
            return
        self._connection = SelectConnection(
            self._parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
            custom_ioloop=self._loop.ioloop,
        )

    def close(self, on_closed: Callable[[], None]) -> None:
        """Close for good; *on_closed* runs once the broker has agreed or the connection was down."""
        self._is_closed = True
        if self._connection is not None and self._connection.is_open:
            self._on_closed = on_closed
            self._connection.close()
        else:
            on_closed()

    def _opened(self, connection: Any) -> None:
        self._delay_s = RECONNECT_DELAY_FIRST_S
        connection.add_on_connection_blocked_callback(lambda *_: self._owner.link_blocked(is_blocked=True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._owner.link_blocked(is_blocked=False))
        if self._is_closed:
            connection.close()
            return
        _log.info("rabbitmq.link_up", extra={"link": self._parameters.client_properties["connection_name"]})
        self._owner.link_up(connection)

    def _lost(self, _connection: Any, error: BaseException) -> None:
        self._connection = None
        _log.info("rabbitmq.link_down", extra={"reason": repr(error)})
        try:
            self._owner.link_down(error)
        finally:
            if not self._is_closed:
                self._loop.later(self._delay_s, self.open)
                self._delay_s = min(2 * self._delay_s, RECONNECT_DELAY_MAX_S)
            elif self._on_closed is not None:
                self._on_closed()
