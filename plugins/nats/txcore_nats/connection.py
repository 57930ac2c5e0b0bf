"""One thread with an asyncio loop, one connection on it that is opened again when it is lost, and JetStream requests.

Each connection is a client of its own. nats-py's own reconnect would send its buffered messages later, long after they
were settled as unknown. Besides, after a flush that timed out, the late answer ends the client's reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Protocol

from nats import errors
from nats.aio.client import Client

from txcore.backends.request_thread import RequestThread
from txcore.clock import Randomness
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, ConfigError, TxcoreError
from txcore_nats.client import EncryptedClient, LinkClient
from txcore_nats.codec import ApiError, as_json, from_json, translate
from txcore_nats.login import login
from txcore_nats.options import Options

_log = logging.getLogger("txcore.nats")

RECONNECT_DELAY_FIRST_S: Final = 0.05
RECONNECT_DELAY_MAX_S: Final = 2.0
CLOSED_POLL_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 1.0
SERVERS_MAX: Final = 100
JITTER_BITS: Final = 16
PONGS_MAX: Final = 2  #: PONGs after which an answer to all that was sent before the first PING has arrived
_REPLIES_REFUSED: Final = "permissions violation for subscription"


class LoopThread(RequestThread):
    """The thread of an asyncio loop."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _log, "nats.request_error")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; it exists after the thread was started."""
        assert self._loop is not None
        return self._loop

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *coroutine* as a task; callable on the thread only. Its errors are logged."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def stop(self, timeout_s: float) -> None:
        """End the thread and wait for it; idempotent."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join(timeout_s)

    def _make_loop(self) -> None:
        self._loop = asyncio.new_event_loop()

    def _wake(self, run: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop was closed: no caller waits for an answer any more
            return

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S) if tasks else asyncio.sleep(0))
            loop.close()

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("nats.task_error", exc_info=task.exception())


class LinkOwner(Protocol):
    """The receiver of the connection's events; on the loop's thread."""

    async def link_up(self, client: LinkClient) -> None:
        """Handle a connection that has opened."""

    def link_down(self, error: TxcoreError) -> None:
        """Handle the loss of the connection."""

    def link_refused(self, text: str) -> None:
        """Handle the server's report that an action is not permitted."""


class Link:
    """One connection, opened anew with growing delays until closed. All methods on the loop's thread."""

    def __init__(self, loop: LoopThread, options: Options, owner: LinkOwner, randomness: Randomness) -> None:
        self._loop = loop
        self._options = options
        self._owner = owner
        self._randomness = randomness
        self._servers = list(options.servers)
        self._places = ", ".join(server.removeprefix("nats://") for server in options.servers)
        self._client: LinkClient | None = None
        self._up = asyncio.Event()
        self._gone = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers: set[Callable[[], None]] = set()
        self._is_closed = False
        self.last_error: TxcoreError = BackendUnavailableError("NATS has not been reached yet")

    @property
    def client(self) -> LinkClient | None:
        """The open connection, if there is one."""
        return self._client

    def open(self) -> None:
        """Start to connect."""
        if self._task is None and not self._is_closed:
            self._task = self._loop.spawn(self._run())

    async def connected(self, timeout_s: float) -> LinkClient:
        """Return the connection as soon as there is one.

        Raises:
            BackendUnavailableError, ConfigError: there is none in time; the error is that of the last attempt.
            ClosedError: the link was closed meanwhile.
        """
        if self._client is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._up.wait(), timeout_s)
        if self._is_closed:
            raise ClosedError("this backend is closed")
        if self._client is None:
            raise self.last_error
        return self._client

    @contextlib.contextmanager
    def watched(self, look: Callable[[], None]) -> Iterator[None]:
        """Call *look* every `CLOSED_POLL_S` while connected, and when the connection is lost: one timer serves all."""
        self._watchers.add(look)
        try:
            yield
        finally:
            self._watchers.discard(look)

    async def close(self) -> None:
        """Close the connection, and open no other one."""
        self._is_closed = True
        self._closing.set()
        self._up.set()
        self._gone.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=2 * CLOSE_TIMEOUT_S)
            self._task.cancel()

    async def _run(self) -> None:
        delay_s = RECONNECT_DELAY_FIRST_S
        while not self._is_closed:
            client = EncryptedClient() if self._options.is_encrypted else LinkClient()
            self._gone.clear()
            try:
                await self._connect(client)
                delay_s = RECONNECT_DELAY_FIRST_S
                await self._serve(client)
            except Exception as error:  # noqa: BLE001 - after any error it is tried again
                reason = translate(error, f"connecting to {self._places}")
                unreached = BackendUnavailableError(str(reason)) if isinstance(reason, BackendTimeoutError) else reason
                self.last_error = unreached
                _log.debug("nats.link_down", extra={"txcore": {"reason": str(self.last_error)}})
            finally:
                await close_client(client)
            if not self._is_closed:
                jitter = self._randomness.getrandbits(JITTER_BITS) / (1 << JITTER_BITS)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), delay_s * (0.5 + jitter / 2))
                delay_s = min(2 * delay_s, RECONNECT_DELAY_MAX_S)

    async def _connect(self, client: LinkClient) -> None:
        options = self._options
        reason: Exception | None = None

        async def failed(error: Exception) -> None:
            nonlocal reason
            reason = error
            if "permissions violation" in str(error):
                self._owner.link_refused(str(error))

        async def closed() -> None:
            self._gone.set()

        attempt = client.connect(
            servers=list(self._servers),
            name="txcore",
            error_cb=failed,
            closed_cb=closed,
            disconnected_cb=closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=options.connect_timeout_s,  # type: ignore[arg-type] # passed on to wait_for
            ping_interval=options.ping_interval_s,  # type: ignore[arg-type] # passed on to sleep
            max_outstanding_pings=2,
            skip_subject_validation=True,
            **login(options),
        )
        try:
            await asyncio.wait_for(attempt, 3 * options.connect_timeout_s * len(self._servers))
        except Exception as error:
            # The last server's own error says more than "No servers available".
            raise (reason if isinstance(error, errors.NoServersError) and reason else error) from error
        require_connected(client)
        await asyncio.wait_for(_ask_for_replies(client), options.connect_timeout_s)
        if reason is not None and _REPLIES_REFUSED in str(reason):
            text = f"NATS does not permit this user to subscribe to {options.inbox}.>, where the replies to it arrive"
            raise ConfigError(text, key="inbox_prefix")
        self._learn_servers(client)

    async def _serve(self, client: LinkClient) -> None:
        await self._owner.link_up(client)
        self._client = client
        self._up.set()
        _log.debug("nats.link_up", extra={"txcore": {"server": client.connected_server_version}})
        try:
            while not client.is_closed and not self._gone.is_set():
                # A client that hangs in its own closing shows this in its state only.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), CLOSED_POLL_S)
                self._look()
        finally:
            self._client = None
            self._look()
            if not self._is_closed:
                self._up.clear()
            self.last_error = BackendUnavailableError(f"the connection to NATS was lost: {client.last_error!r}")
            _log.debug("nats.link_down", extra={"txcore": {"reason": str(self.last_error)}})
            self._owner.link_down(self.last_error)

    def _look(self) -> None:
        for look in list(self._watchers):
            look()

    def _learn_servers(self, client: Client) -> None:
        for server in client.discovered_servers:
            address = f"nats://{server.netloc.rpartition('@')[2]}"
            if address not in self._servers and len(self._servers) < SERVERS_MAX:
                self._servers.append(address)


class Api:
    """Requests to JetStream's API. All methods on the loop's thread."""

    def __init__(self, link: Link, options: Options) -> None:
        self._link = link
        self._options = options

    async def call(self, name: str, request: Any = None) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            ApiError: JetStream answered with an error.
            BackendUnavailableError, BackendTimeoutError, ConfigError: no server answered.
        """
        payload = b"" if request is None else as_json(request)
        what = f"asking JetStream ({name.partition('.txc')[0]})"
        return await self._ask(f"{self._options.api_prefix}.{name}", payload, None, what)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        """Store one message, and wait until its stream has it.

        Raises: see `call`.
        """
        await self._ask(subject, body, headers, f"publishing to {subject!r}")

    async def _ask(self, subject: str, payload: bytes, headers: dict[str, str] | None, what: str) -> dict[str, Any]:
        timeout_s = self._options.control_timeout_s
        client = await self._link.connected(timeout_s)
        try:
            message = await client.request(subject, payload, timeout=timeout_s, headers=headers)
        except Exception as error:
            raise translate(error, what) from error
        answer = from_json(message.data)
        refusal = answer.get("error")
        if refusal:
            raise ApiError(refusal.get("code", 0), refusal.get("err_code", 0), refusal.get("description", ""))
        return answer


async def _ask_for_replies(client: Client) -> None:
    """Subscribe where replies will arrive, and wait until the server has refused it or not.

    nats-py may take a server's second INFO for the PONG that ends its connecting; that PONG then ends the first wait.
    """
    subscription = await client.subscribe(client.new_inbox())
    for _ in range(PONGS_MAX):
        await client.flush()
    await subscription.unsubscribe()


async def close_client(client: Client) -> None:
    """Close *client* in order; its sockets end at once after `CLOSE_TIMEOUT_S` or when this task is cancelled.

    A server that hangs never answers the end of TLS, and asyncio waits 30 s for it, which is longer than the loop runs.
    """
    try:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), CLOSE_TIMEOUT_S)
    finally:
        for name in ("_io_writer", "_bare_io_writer"):
            if (writer := getattr(client._transport, name, None)) is not None:  # noqa: SLF001 - it closes only in order
                writer.transport.abort()


def require_connected(client: Client) -> None:
    """Raise ConnectionResetError if the server ended the connection, which nats-py may take for the first PONG.

    This happens to a refused login whose reason was lost: the server sends the reason and closes, perhaps before it
    received our PING.
    """
    if not client.is_connected:
        raise ConnectionResetError(errno.ECONNRESET, "the server ended the connection without a word")
