"""A small TCP proxy between a client and a broker that simulates the faults of a network.

One thread owns every socket, so a change of mode is complete when its method returns.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

_CHUNK_BYTES: Final = 65_536
_BUFFER_BYTES_MAX: Final = 1_048_576
_BACKLOG: Final = 128
_COMMAND_TIME_MAX_S: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class Mode(enum.Enum):
    """The proxy's treatment of bytes."""

    FORWARD = "forward"
    SWALLOW_REPLIES = "swallow replies"
    FREEZE = "freeze"


class Proxy:
    """Listens on 127.0.0.1:`port` and passes bytes to and from *target* (host and port). Thread safe.

    Attributes:
        url: host:port to which clients connect.
        port: Port of the proxy.
    """

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target = target
        self._mode = Mode.FORWARD
        self._links: set[_Link] = set()
        self._commands: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self.port = port
        self._is_closed = False
        self._listen()
        self.url = f"127.0.0.1:{self.port}"
        self._waker, wake_end = socket.socketpair()
        wake_end.setblocking(False)
        self._selector.register(wake_end, _READ, None)
        self._wake_end = wake_end
        self._thread = threading.Thread(target=self._run, name=f"txcore-proxy-{self.port}", daemon=True)
        self._thread.start()

    def forward(self) -> None:
        """Pass all bytes; connections with swallowed replies are reset, because bytes of their streams are missing."""
        self._do(self._start_forwarding)

    def swallow_replies(self) -> None:
        """Pass requests, and drop replies."""
        self._do(lambda: self._set_mode(Mode.SWALLOW_REPLIES))

    def freeze(self) -> None:
        """Keep connections open, accept new ones, and move no bytes until another mode is set."""
        self._do(lambda: self._set_mode(Mode.FREEZE))

    def cut(self) -> None:
        """Reset every connection now; the mode is unchanged, and new connections are accepted."""
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Refuse new connections until `forward`; open ones stay."""
        self._do(self._stop_listening)

    def connections(self) -> int:
        """Return the number of clients' open connections."""
        return len(self._links)

    def close(self) -> None:
        """Reset every connection and end; idempotent."""
        if not self._is_closed:
            self._do(self._end)
            self._thread.join(_COMMAND_TIME_MAX_S)
            self._waker.close()

    def _do(self, function: Callable[[], None]) -> None:
        if self._is_closed:
            raise ValueError("the proxy is closed")
        done: Future[None] = Future()
        self._commands.put((function, done))
        self._waker.send(b".")
        done.result(_COMMAND_TIME_MAX_S)

    def _run(self) -> None:
        while not self._is_closed:
            for key, events in self._selector.select():
                if key.data is None:
                    self._accept_or_obey(key.fileobj)
                elif key.data.link in self._links:
                    self._move(key.data, events)
            for link in self._links:
                self._watch(link)
        self._selector.close()
        self._wake_end.close()

    def _accept_or_obey(self, source: object) -> None:
        if source is not self._wake_end:
            self._accept()
            return
        with contextlib.suppress(BlockingIOError):
            self._wake_end.recv(_CHUNK_BYTES)
        with contextlib.suppress(queue.Empty):
            while True:
                function, done = self._commands.get_nowait()
                try:
                    function()
                except BaseException as error:  # noqa: BLE001 - raised in the caller
                    done.set_exception(error)
                else:
                    done.set_result(None)

    def _accept(self) -> None:
        if self._listener is None:
            return  # Closed by a command that waited at the same time as this client.
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        server = socket.socket()
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.connect_ex(self._target)
        link = _Link(client, server)
        self._links.add(link)
        for end in link.ends:
            self._selector.register(end.socket, _READ | _WRITE, end)
            end.events = _READ | _WRITE

    def _move(self, end: _End, events: int) -> None:
        try:
            if events & _WRITE:
                end.flush()
            if events & _READ and self._mode is not Mode.FREEZE:
                self._read(end)
        except OSError:
            self._drop(end.link, is_reset=True)
            return
        if all(each.is_finished() for each in end.link.ends):
            self._drop(end.link, is_reset=False)

    def _read(self, end: _End) -> None:
        try:
            data = end.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            end.has_ended = True
        elif end.is_server and self._mode is Mode.SWALLOW_REPLIES:
            end.link.has_hole = True
        else:
            end.other.buffer += data
            end.other.flush()
        if end.has_ended:
            end.other.flush()

    def _watch(self, link: _Link) -> None:
        """Register with the selector the events for which each end waits."""
        for end in link.ends:
            events = 0
            if self._mode is not Mode.FREEZE:
                if not end.has_ended and len(end.other.buffer) < _BUFFER_BYTES_MAX:
                    events |= _READ
                if end.buffer or not end.is_connected:
                    events |= _WRITE
            if events == end.events:
                continue
            if not events:
                self._selector.unregister(end.socket)
            elif not end.events:
                self._selector.register(end.socket, events, end)
            else:
                self._selector.modify(end.socket, events, end)
            end.events = events

    def _drop(self, link: _Link, *, is_reset: bool) -> None:
        self._links.discard(link)
        for end in link.ends:
            if end.events:
                self._selector.unregister(end.socket)
            if is_reset:
                with contextlib.suppress(OSError):
                    end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.socket.close()

    def _set_mode(self, mode: Mode) -> None:
        self._mode = mode

    def _start_forwarding(self) -> None:
        self._mode = Mode.FORWARD
        for link in [link for link in self._links if link.has_hole]:
            self._drop(link, is_reset=True)
        self._listen()

    def _reset_all(self) -> None:
        for link in list(self._links):
            self._drop(link, is_reset=True)

    def _listen(self) -> None:
        if self._listener is None:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            self.port = listener.getsockname()[1]
            self._selector.register(listener, _READ, None)
            self._listener = listener

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        self._reset_all()
        self._stop_listening()
        self._is_closed = True


class _End:
    """One socket of a link, with the bytes that wait to be written to it."""

    def __init__(self, link: _Link, end: socket.socket, *, is_server: bool) -> None:
        self.link = link
        self.socket = end
        self.is_server = is_server
        self.is_connected = not is_server
        self.has_ended = False
        self.has_shut = False
        self.buffer = bytearray()
        self.events = 0

    @property
    def other(self) -> _End:
        """End on the link's other side."""
        return self.link.ends[0] if self.is_server else self.link.ends[1]

    def flush(self) -> None:
        """Write as many bytes as possible; after the last byte, close if the other side has ended."""
        if not self.is_connected:
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise ConnectionError(error)
            try:
                self.socket.getpeername()
            except OSError:
                return  # still connecting
            self.is_connected = True
        if self.buffer:
            with contextlib.suppress(BlockingIOError):
                del self.buffer[: self.socket.send(self.buffer)]
        if self.other.has_ended and not self.buffer and not self.has_shut:
            self.has_shut = True
            self.socket.shutdown(socket.SHUT_WR)

    def is_finished(self) -> bool:
        """Whether this side has ended and all bytes of the other side are written."""
        return self.has_ended and self.has_shut


class _Link:
    """A client's connection, and its connection to the broker."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = (_End(self, client, is_server=False), _End(self, server, is_server=True))
        self.has_hole = False
