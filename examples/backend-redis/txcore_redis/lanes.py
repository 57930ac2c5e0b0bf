"""A lane: one thread with one connection, which sends all queued commands together and reads their answers in order.

While the answers are under way, further requests queue up and go together next. The driver's own retries are off: a
command that is sent twice may be stored twice.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BusyError, ClosedError
from txcore.port import running
from txcore.records import Status
from txcore_redis.errors import LINK_ERRORS, Failure, failure_of, lost, unreachable
from txcore_redis.options import Options
from txcore_redis.scripts import SCRIPTS

T = TypeVar("T")
Command = tuple[bytes | str | int, ...]
COMMANDS_MAX: Final = 1_000
"""Commands after which no further request joins those that are sent together."""

_LOG: Final = logging.getLogger("txcore.redis")


class Request:
    """Commands, and the function that gets an answer for each of them, exactly once: a reply or a `Failure`."""

    def __init__(self, commands: Sequence[Command], done: Callable[[list[Any]], None], begun_s: float) -> None:
        self.commands = commands
        self.begun_s = begun_s
        self._done = done
        self._once = threading.Lock()

    def end(self, answers: list[Any]) -> None:
        """Report the answers, unless the request has ended already."""
        if self._once.acquire(blocking=False):
            try:
                self._done(answers)
            except Exception:  # noqa: BLE001 - a completion that raises must not stop the others
                _LOG.exception("redis.settle_failed")

    def fail(self, failure: Failure) -> None:
        """Report *failure* as the answer to each command."""
        self.end([failure] * len(self.commands))


class Lane:
    """Queue, thread and connection; the thread starts with the first request. Thread safe.

    A request may wait for a quarter of *timeout_s* in the queue, then as long for each of: a connection, the server's
    greeting, the answers.
    """

    def __init__(self, name: str, options: Options, clock: Clock, timeout_s: float) -> None:
        self._name = name
        self._options = options
        self._clock = clock
        self._quarter_s = timeout_s / 4
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._is_abandoned = False
        self._flight: Sequence[Request] = ()
        self._connection = self._new_connection()
        self._is_ready = False

    def submit(self, commands: Sequence[Command], done: Callable[[list[Any]], None]) -> None:
        """Send *commands* with the next ones; *done* gets the answers on the lane's thread.

        Raises:
            ClosedError: `close` was called.
        """
        request = Request(commands, done, self._clock.elapsed_s())
        with self._lock:
            if self._is_closing:
                raise ClosedError("this redis backend is closed")
            is_full = self._waiting and self._waiting + len(commands) > self._options.queue_max
            if not is_full:
                self._waiting += len(commands)
                self._queue.put(request)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"txcore-redis-{self._name}", daemon=True)
                    self._thread.start()
        if is_full:
            text = f"{self._options.queue_max} items (queue_max) wait for Redis already; slow down"
            request.fail(Failure(Status.REFUSED, BusyError(text)))

    def ask(self, commands: Sequence[Command], parse: Callable[[list[Any]], T]) -> Future[T]:
        """Return the Future of what *parse* makes of the replies; it fails with the first failure of a command.

        Raises:
            ClosedError: `close` was called.
        """
        future: Future[T] = running()

        def done(answers: list[Any]) -> None:
            failures = [answer.error for answer in answers if isinstance(answer, Failure)]
            if failures:
                future.set_exception(failures[0])
                return
            try:
                future.set_result(parse(answers))
            except Exception as error:  # noqa: BLE001 - the caller's, through the Future
                future.set_exception(error)

        self.submit(commands, done)
        return future

    def close(self, timeout_s: float) -> None:
        """Send the queued requests and stop; after *timeout_s* seconds end the others. Blocks; call it once."""
        with self._lock:
            self._is_closing = True
            thread = self._thread
        self._queue.put(None)
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                self._abandon()

    def _abandon(self) -> None:
        self._is_abandoned = True
        for request in self._flight:
            request.fail(lost(RedisTimeoutError("the backend was closed")))
        while not self._queue.empty():
            request_or_end = self._queue.get()
            self._in_time([] if request_or_end is None else [request_or_end])
        self._queue.put(None)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        while not is_last:
            first = self._queue.get()
            requests: list[Request] = []
            is_last = first is None
            while first is not None:
                requests.append(first)
                if sum(len(each.commands) for each in requests) >= COMMANDS_MAX or self._queue.empty():
                    break
                first = self._queue.get()
                is_last = first is None
            self._flight = self._in_time(requests)
            if self._flight:
                self._exchange(self._flight)
            with self._lock:
                self._waiting -= sum(len(each.commands) for each in requests)
        self._connection.disconnect()

    def _in_time(self, requests: list[Request]) -> list[Request]:
        """Return the requests that may still be sent; end the others."""
        late_s = self._clock.elapsed_s() - self._quarter_s
        sent = []
        for request in requests:
            if self._is_abandoned:
                request.fail(Failure(Status.REFUSED, ClosedError("closed before this was sent; nothing was stored")))
            elif request.begun_s < late_s:
                text = "Redis kept earlier requests waiting, so this one was never sent; nothing was stored"
                request.fail(Failure(Status.REFUSED, unreachable(BackendTimeoutError(text))))
            else:
                sent.append(request)
        return sent

    def _exchange(self, requests: Sequence[Request]) -> None:
        try:
            self._connect()
        except Exception as error:  # noqa: BLE001 - nothing was sent; the next request tries again
            self._disconnect()
            for request in requests:
                request.fail(Failure(Status.REFUSED, unreachable(error)))
            return
        left = list(requests)
        answers: list[Any] = []
        try:
            commands = [command for request in requests for command in request.commands]
            self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
            until_s = self._clock.elapsed_s() + self._quarter_s
            while left:
                answers = []
                while len(answers) < len(left[0].commands):
                    answers.append(self._answer(until_s))
                left.pop(0).end(answers)
        except Exception as error:  # noqa: BLE001 - whatever it is, every request ends, and the thread continues
            self._disconnect()
            failure = lost(error)
            for request in left:
                missing = len(request.commands) - len(answers)
                request.end(answers + [failure] * missing)
                answers = []

    def _answer(self, until_s: float) -> Any:
        try:
            if not self._connection.can_read(max(0.0, until_s - self._clock.elapsed_s())):
                raise RedisTimeoutError("no answer in time")
            return self._connection.read_response()
        except ResponseError as error:
            self._is_ready &= not isinstance(error, NoScriptError)
            return failure_of(error)

    def _connect(self) -> None:
        """Use the open connection, or open one and load the scripts; nothing of a request is sent here."""
        connection = self._connection
        if self._is_ready:
            try:
                if not connection.can_read(0):
                    return
            except LINK_ERRORS:
                pass  # the server has closed it while it was idle
            self._disconnect()
        connection.connect()
        connection.send_packed_command(connection.pack_commands([("SCRIPT", "LOAD", each.text) for each in SCRIPTS]))
        for _ in SCRIPTS:
            connection.read_response()
        self._is_ready = True

    def _disconnect(self) -> None:
        self._is_ready = False
        self._connection.disconnect()

    def _new_connection(self) -> Connection:
        options = self._options
        settings: dict[str, Any] = {"host": options.server.host, "port": options.server.port, "db": options.database}
        settings |= {"username": options.user or None, "password": options.password or None, "protocol": 2}
        settings |= {"socket_timeout": self._quarter_s, "socket_connect_timeout": self._quarter_s}
        settings |= {"retry": Retry(NoBackoff(), 0), "client_name": f"txcore-{self._name}"}
        if not options.is_encrypted:
            return Connection(**settings)
        settings |= {"ssl_cert_reqs": "required" if options.tls_verify else "none"}
        settings |= {"ssl_check_hostname": options.tls_verify, "ssl_ca_certs": options.tls_ca or None}
        settings |= {"ssl_certfile": options.tls_cert or None, "ssl_keyfile": options.tls_key or None}
        return SSLConnection(**settings, ssl_password=options.tls_key_password or None)
