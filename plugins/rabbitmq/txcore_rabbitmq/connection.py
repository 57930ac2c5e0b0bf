"""One thread with pika's loop, and connections on it that are opened again when they are lost.

This module does not depend on the published or read messages.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import pika  # type: ignore[import-untyped]
from pika import exceptions
from pika.adapters.select_connection import IOLoop  # type: ignore[import-untyped]
from pika.adapters.utils.connection_workflow import AMQPConnectorException  # type: ignore[import-untyped]

from txcore.backends.request_thread import RequestThread
from txcore.errors import TxcoreError
from txcore_rabbitmq.coalescing import CoalescingConnection
from txcore_rabbitmq.codec import translate
from txcore_rabbitmq.options import EXTERNAL, Options

_log = logging.getLogger("txcore.rabbitmq")

RECONNECT_DELAY_FIRST_S: Final = 0.1
RECONNECT_DELAY_MAX_S: Final = 2.0
STABLE_S: Final = 5.0
"""Age, in seconds, after which a connection is stable: after its next loss the delays begin with the shortest again."""
CLOSE_GRACE_S: Final = 1.0
"""Longest wait, in seconds, for a broker to agree to a close."""
CONNECT_ERRORS: Final = (exceptions.AMQPError, AMQPConnectorException, OSError)
"""What pika raises when it cannot connect: its steps' own errors and those of TLS are no `AMQPError`."""


class LoopThread(RequestThread):
    """The thread of pika's loop."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _log, "rabbitmq.request_error")
        self._ioloop: Any = None
        self._is_stopped = False

    @property
    def ioloop(self) -> Any:
        """The loop of the connections."""
        return self._ioloop

    def call(self, request: Callable[[], None]) -> None:
        """See `RequestThread.call`. After `stop` the request runs on the calling thread, and finds all closed."""
        if self._is_stopped:
            self._run_one(request)
        else:
            super().call(request)

    def later(self, delay_s: float, request: Callable[[], None]) -> None:
        """Run *request* after *delay_s* seconds; callable on the thread only. After `stop` it does nothing."""
        if not self._is_stopped:
            self._ioloop.call_later(delay_s, functools.partial(self._run_one, request))

    def stop(self, timeout_s: float) -> None:
        """End the thread and wait for it; requests that still wait run on the calling thread; idempotent."""
        thread = self._thread
        if thread is None or self._is_stopped:
            return
        self._is_stopped = True
        self._ioloop.add_callback_threadsafe(self._ioloop.stop)
        thread.join(timeout_s)
        if not thread.is_alive():
            self._run_waiting()
            self._ioloop.close()

    def _make_loop(self) -> None:
        self._ioloop = IOLoop()

    def _wake(self, run: Callable[[], None]) -> None:
        self._ioloop.add_callback_threadsafe(run)

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self._ioloop.start()
            except Exception:  # noqa: BLE001 - an error inside pika must not end the thread that settles all items
                _log.exception("rabbitmq.loop_error", extra={"txcore": {"loop": self._name}})


class _Answers(logging.Filter):
    """Drops pika's warnings about channels of txcore that the broker closed.

    That is how a broker answers a question for a missing queue, also at each start; the caller gets txcore's error.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is not such a warning."""
        channel = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        is_ours = isinstance(getattr(channel, "connection", None), CoalescingConnection)
        return not is_ours or record.levelno > logging.WARNING


logging.getLogger("pika.channel").addFilter(_Answers())


class LinkOwner(Protocol):
    """The receiver of a connection's events; on the loop's thread."""

    def link_up(self, connection: Any) -> None:
        """Handle a connection that has opened."""

    def link_down(self, error: TxcoreError) -> None:
        """Handle a connection that was lost or could not be opened; the link tries again unless closed."""

    def link_blocked(self, reason: str) -> None:
        """Handle an alarm: the broker accepts no publishes for this *reason*; "" when it accepts them again."""


class Link:
    """One connection on a loop, reopened with growing delays until closed; each try goes to the next node.

    All methods on the loop's thread.
    """

    def __init__(self, loop: LoopThread, options: Options, heartbeat_s: int, name: str, owner: LinkOwner) -> None:
        self._loop = loop
        self._owner = owner
        self._name = name
        self._delay_s = RECONNECT_DELAY_FIRST_S
        self._connection: CoalescingConnection | None = None
        self._is_open = False
        self._is_closed = False
        self._on_closed: Callable[[], None] | None = None
        self._nodes = deque(connection_parameters(options, heartbeat_s, name))

    @property
    def unsent_bytes(self) -> int:
        """The number of published bytes that the network has not taken yet."""
        return 0 if self._connection is None else self._connection.unsent_bytes

    def open(self) -> None:
        """Start to connect."""
        if self._is_closed:
            return
        parameters = self._nodes[0]
        self._nodes.rotate(-1)
        self._connection = CoalescingConnection(
            parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
            custom_ioloop=self._loop.ioloop,
        )

    def close(self, on_closed: Callable[[], None], grace_s: float = CLOSE_GRACE_S) -> None:
        """Close, and do not connect again; *on_closed* runs after it, at the latest after about *grace_s*.

        An open connection is closed with the broker's agreement; any other one is aborted.
        """
        self._is_closed = True
        if self._connection is None:
            on_closed()
            return
        self._on_closed = on_closed
        if self._connection.is_open:
            self._connection.close()
            self._loop.later(grace_s, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        """Close without asking the broker, which only sees a closed socket; do not connect again."""
        self._is_closed = True
        connection = self._connection
        if connection is not None and not connection.is_closed:
            # pika itself does this when heartbeats fail; there is no public way. Then pika calls `_lost`.
            connection._terminate_stream(ConnectionAbortedError("closed by txcore"))  # noqa: SLF001
        else:
            self._finish()

    def _opened(self, connection: Any) -> None:
        if self._is_closed:
            connection.close()
            return
        self._is_open = True
        self._loop.later(STABLE_S, functools.partial(self._proved, connection))
        connection.add_on_connection_blocked_callback(self._blocked)
        connection.add_on_connection_unblocked_callback(self._unblocked)
        _log.debug("rabbitmq.link_up", extra={"txcore": {"link": self._name}})
        self._owner.link_up(connection)

    def _proved(self, connection: Any) -> None:
        if connection is self._connection:
            self._delay_s = RECONNECT_DELAY_FIRST_S

    def _blocked(self, _connection: Any, frame: Any) -> None:
        reason = str(frame.method.reason) or "alarm"
        _log.warning("rabbitmq.blocked", extra={"txcore": {"link": self._name, "reason": reason}})
        self._owner.link_blocked(reason)

    def _unblocked(self, _connection: Any, _frame: Any) -> None:
        _log.warning("rabbitmq.unblocked", extra={"txcore": {"link": self._name}})
        self._owner.link_blocked("")

    def _lost(self, _connection: Any, error: BaseException) -> None:
        self._connection = None
        is_news, self._is_open = self._is_open, False
        translated = translate(error, f"connecting to {self._nodes[-1].host}:{self._nodes[-1].port}")
        _log.log(
            logging.WARNING if is_news and not self._is_closed else logging.DEBUG,
            "rabbitmq.link_down",
            extra={"txcore": {"link": self._name, "reason": str(translated)}},
        )
        try:
            self._owner.link_down(translated)
        finally:
            if not self._is_closed:
                self._loop.later(self._delay_s, self.open)
                self._delay_s = min(2 * self._delay_s, RECONNECT_DELAY_MAX_S)
            self._finish()

    def _finish(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed()


def connection_parameters(options: Options, heartbeat_s: int, name: str) -> list[Any]:
    """Return pika's parameters for each node.

    Raises:
        ConfigError: a file of certificates or keys cannot be used.
    """
    context = options.tls_context()
    return [
        pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=options.vhost,
            credentials=credentials_of(options),
            heartbeat=heartbeat_s,
            socket_timeout=options.connect_timeout_s,
            stack_timeout=options.connect_timeout_s,
            connection_attempts=1,
            ssl_options=None if context is None else pika.SSLOptions(context, options.tls_server_name or host),
            client_properties={"connection_name": name},
        )
        for host, port in options.hosts
    ]


def open_blocking(parameters: list[Any], doing: str) -> Any:
    """Return pika's blocking connection to the first node that lets it log in.

    Args:
        parameters: Result of `connection_parameters`.
        doing: What the connection is for; an error's text begins with it.

    Raises:
        BackendUnavailableError: no node answers within `connect_timeout_s`, or the last one refuses the login.
    """
    try:
        return pika.BlockingConnection(parameters)
    except CONNECT_ERRORS as error:
        raise translate(error, doing) from error


def credentials_of(options: Options) -> Any:
    """Return pika's form of a login."""
    if options.sasl == EXTERNAL:
        return pika.credentials.ExternalCredentials()
    return pika.PlainCredentials(options.user, options.password, erase_on_connect=False)
