"""The endpoint's connections: bounded in number and in time, so that health and metrics are always answered.

A client that opens connections and sends nothing needs no token. At the limit a new connection therefore replaces the
oldest one without a complete request head, else without a complete body. Requests that are being answered are kept.
A connection that was just made is not replaced, so that a client of a busy machine has the time to send its request.
Until it is older, and while all are being answered, others wait in the socket's backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 100
FILES_PART: Final = 4
"""The connections take at most this part of the files that the process may open; the checker needs the others."""
ACCEPTED_PART: Final = 16
"""Part of the connections that one turn of the loop accepts, so that each is read before newer ones replace it."""
BACKLOG: Final = 128
GRACE_S: Final = 0.2
"""Least age, in seconds, at which a connection without a request is replaced."""
READ_TURNS: Final = 3
"""Turns of the loop from accepting a connection until its first bytes are read: asyncio makes its transport, registers
the socket, and reads. A turn of a busy loop may take longer than `GRACE_S`."""
HEAD_S: Final = 5.0
BODY_S: Final = 10.0
ANSWER_S: Final = 60.0
PAUSE_S: Final = 0.5
ANSWERING_PAUSE_S: Final = 0.02
"""Pause, in seconds, between two looks for a free place while every connection is being answered."""
REPORT_S: Final = 60.0
LOG: Final = logging.getLogger("txcore.sidecar.web")


class Stage(enum.Enum):
    """The progress of a connection's request; the value is the longest time in seconds that it may take."""

    HEAD = HEAD_S
    BODY = BODY_S
    ANSWER = ANSWER_S


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for each stage of a request. Belongs to the event loop.

    Args:
        accepted: The connection's socket.
        lost: Called with the protocol when the connection has ended.
        given: The arguments of uvicorn's protocol.
    """

    def __init__(self, accepted: socket.socket, lost: Callable[[BoundedProtocol], None], **given: Any) -> None:
        super().__init__(**given)
        self._accepted = accepted
        self._lost = lost
        self._timed: Stage | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.since_s = self.loop.time()

    @property
    def stage(self) -> Stage:
        """The progress of the request; an idle connection, also one in its TLS handshake, waits for a head."""
        if self.conn.their_state is h11.IDLE:
            return Stage.HEAD
        return Stage.BODY if self.conn.their_state is h11.SEND_BODY else Stage.ANSWER

    def drop(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):  # the client may have left already
            self._accepted.shutdown(socket.SHUT_RDWR)  # the handshake fails by it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._lost(self)

    def handle_events(self) -> None:
        """See `H11Protocol`; more bytes of the same stage do not prolong its time."""
        super().handle_events()
        if self.stage is not self._timed:
            self._time()

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        self._timed = None  # the next request has its own time, also at the same stage
        super().on_response_complete()
        if self._timed is None:
            self._time()

    def _time(self) -> None:
        self._timed = self.stage
        if self._timer is not None:
            self._timer.cancel()
        is_unread = bool(self.transport.get_write_buffer_size())
        limit_s = ANSWER_S if is_unread else self._timed.value
        self._timer = self.loop.call_later(limit_s, self.drop)


class Connections:
    """Accepts connections on a listening socket. Belongs to the event loop that makes it.

    Args:
        protocol: Makes the protocol of a connection, from its socket and a callback for its end.
        tls: The TLS context; None to serve plain HTTP.
        count_max: Connections that are open at once.
    """

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[socket.socket, Callable[[BoundedProtocol], None]], BoundedProtocol],
        tls: ssl.SSLContext | None,
        count_max: int,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._tls = tls
        self._count_max = count_max
        self._open: dict[BoundedProtocol, asyncio.Future[Any]] = {}  # the oldest first
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.Handle | None = None
        self._reported_s = -REPORT_S
        self._dropped = 0
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listening)

    def _listen(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _resume(self, turns: int = READ_TURNS) -> None:
        """Accept after a pause, and after the turns in which a request that has arrived is read, so that it counts."""
        if turns:
            self._resuming = self._loop.call_soon(self._resume, turns - 1)
            return
        self._listen()
        self._accept(may_replace=True)

    def _accept(self, *, may_replace: bool = False) -> None:
        for _ in range(max(self._count_max // ACCEPTED_PART, 1)):
            if self._is_full() and (not may_replace or self._wait_s() > 0):
                self._pause(max(self._wait_s(), 0.0))
                return
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left in the process or the machine
                self._make_room(repr(error))
                self._pause(PAUSE_S)
                return
            self._admit(accepted)

    def _pause(self, wait_s: float) -> None:
        """Leave new connections in the socket's backlog for a time."""
        self._loop.remove_reader(self._listening)
        self._resuming = self._loop.call_later(wait_s, self._resume)

    def _is_full(self) -> bool:
        return len(self._open) >= self._count_max

    def _wait_s(self) -> float:
        """Return the time until a connection may be replaced, or until the next look where none may be."""
        oldest_s = min((each.since_s for each in self._waiting()), default=None)
        return ANSWERING_PAUSE_S if oldest_s is None else oldest_s + GRACE_S - self._loop.time()

    def _waiting(self) -> Iterator[BoundedProtocol]:
        """Yield the oldest connection without a complete head, and the oldest without a complete body."""
        for stage in (Stage.HEAD, Stage.BODY):
            yield from islice((each for each in self._open if each.stage is stage), 1)

    def _admit(self, accepted: socket.socket) -> None:
        if self._is_full():
            self._make_room(f"{self._count_max} connections are open")
        accepted.setblocking(False)
        protocol = self._protocol(accepted, self._forget)
        serving = self._loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=HEAD_S if self._tls else None
        )
        self._open[protocol] = task = self._loop.create_task(serving)
        task.add_done_callback(partial(self._begun, protocol))

    def _begun(self, protocol: BoundedProtocol, task: asyncio.Task[Any]) -> None:
        """Forget a connection whose TLS handshake failed."""
        if task.cancelled() or task.exception() is not None:
            self._forget(protocol)

    def _forget(self, protocol: BoundedProtocol) -> None:
        self._open.pop(protocol, None)

    def _make_room(self, reason: str) -> None:
        """Drop the oldest connection whose request is not complete, if there is one."""
        latest_s = self._loop.time() - GRACE_S
        waiting = list(self._waiting())
        oldest = next((each for each in waiting if each.since_s <= latest_s), waiting[0] if waiting else None)
        if oldest is not None:
            self._forget(oldest)
            oldest.drop()
            self._dropped += 1
        self._report(reason)

    def _report(self, reason: str) -> None:
        """Log the shortage, at most once per `REPORT_S`."""
        now_s = self._loop.time()
        if now_s - self._reported_s < REPORT_S:
            return
        self._reported_s = now_s
        facts = {"reason": reason, "dropped": self._dropped}
        LOG.warning("http.connections_dropped", extra={"txcore": facts})


def connections_max() -> int:
    """Return the number of connections that may be open at once, by the process's limit of open files."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(min(CONNECTIONS_MAX, files_max // FILES_PART), 1)
