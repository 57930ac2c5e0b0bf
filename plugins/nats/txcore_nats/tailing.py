"""Following one filter of one stream: an ephemeral pull consumer that asks only for messages that have room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from nats.aio.client import Client

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, ConfigError, TxcoreError
from txcore_nats.codec import STATUS, STREAM_NOT_FOUND, ApiError, as_json, translate
from txcore_nats.connection import Api, Link, LoopThread
from txcore_nats.control import missing_group
from txcore_nats.markers import is_beginning
from txcore_nats.options import Options

_log = logging.getLogger("txcore.nats")

PULL_COUNT: Final = 500
PULL_BYTES_MIN: Final = 4 << 20
PULL_EXPIRES_S: Final = 30.0
PULL_HEARTBEAT_S: Final = 4.0
SILENCE_MAX_S: Final = 9.0
"""Time without a message or a heartbeat, in seconds, after which a pull is lost with its consumer."""
CONSUMER_KEPT_S: Final = 60
RETRY_S: Final = 0.5
RETRY_MISSING_S: Final = 2.0
NANOSECONDS: Final = 1_000_000_000
_IDLE: Final = "100"


Take = Callable[[Any, int, int, int], None]
"""A function that takes a message, its sequence, the time of its append, and the number of messages after it."""


class Receiver(Protocol):
    """The receiver of the messages that a tail reads; on the loop's thread."""

    def received(self, message: Any, sequence: int, appended_ms: int) -> None:
        """Take one of nats-py's messages, once and in log order, with its sequence and the broker's time of append."""

    def lost(self, asked: int, first: int | None) -> None:
        """Take the news that the record at the start is gone; the tail delivers no more."""

    def failed(self, error: TxcoreError) -> None:
        """Take the news that reading is interrupted; the tail tries again."""

    def has_room(self) -> bool:
        """Return whether the tail may ask for more messages."""


class Tail:
    """The reader of the messages of one filter in one stream; continues by itself. On the loop's thread.

    Args:
        start: The sequence of a message that was seen before; None for the beginning.
        is_keyed: Whether each subject keeps its last message only, so that missing older messages are no loss.
        after: Tails that first deliver the records from before their opening, if they can in time.
    """

    def __init__(
        self,
        loop: LoopThread,
        link: Link,
        api: Api,
        options: Options,
        stream: str,
        subject: str,
        receiver: Receiver,
        *,
        start: int | None = None,
        is_keyed: bool = False,
        after: Sequence[Tail] = (),
    ) -> None:
        self.is_level = asyncio.Event()  #: set when all records from before the opening are delivered
        self.left = 0  #: number of records after the last one, when the server sent it
        self._after = after
        self._loop = loop
        self._link = link
        self._api = api
        self._options = options
        self._stream = stream
        self._subject = subject
        self._receiver = receiver
        self._start = start
        self._is_keyed = is_keyed
        self._last: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._consumer: _Consumer | None = None
        self._is_over = False

    def open(self) -> None:
        """Start to read."""
        if not self._is_over:
            self._task = self._loop.spawn(self._run())

    def close(self) -> None:
        """Stop; the tail delivers no more messages."""
        self._is_over = True
        self.is_level.set()
        if self._consumer is not None:
            self._consumer.ended.set()

    def refill(self) -> None:
        """Ask for more messages, as there is room again."""
        if self._consumer is not None:
            self._consumer.pull()

    async def _run(self) -> None:
        if self._after:
            levels = [asyncio.ensure_future(tail.is_level.wait()) for tail in self._after]
            _, late = await asyncio.wait(levels, timeout=self._options.control_timeout_s)
            for level in late:
                level.cancel()
        while not self._is_over:
            delay_s = RETRY_S
            try:
                client = await self._link.connected(self._options.control_timeout_s)
                await self._follow(client)
                delay_s = 0.0
            except ClosedError:
                return
            except Exception as raised:  # noqa: BLE001 - after any error it is tried again
                error = reading_error(raised, self._stream)
                if isinstance(error, ConfigError):
                    delay_s = RETRY_MISSING_S
                if not self._is_over:
                    self._receiver.failed(error)
            if not self._is_over:
                await asyncio.sleep(delay_s)

    async def _follow(self, client: Client) -> None:
        """Read with one consumer until it ends."""
        # Starts with the last record that was read, so that a gap after it is noticed.
        asked = self._last if self._last is not None else self._start
        if self._is_keyed:
            asked = None if self._last is None else self._last + 1
        is_whole = asked is not None or self._is_keyed or await self._is_whole()
        consumer = self._consumer = _Consumer(client, self._options, self._stream, self._receiver.has_room)
        expected = asked if not self._is_keyed else None
        is_first = True

        def arrived(message: Any, sequence: int, appended_ms: int, left: int) -> None:
            nonlocal is_first
            if self._is_over:
                return
            self.left = left
            if is_first:
                is_first = False
                if (expected is not None and sequence != expected) or not (is_whole or is_beginning(message.headers)):
                    self._lose(expected or 0, sequence)
                    return
            if self._last is not None and sequence <= self._last:
                return
            self._receiver.received(message, sequence, appended_ms)
            self._last = sequence
            if not left or not self._receiver.has_room():
                self.is_level.set()

        def look() -> None:
            if self._link.client is not client or consumer.is_silent():
                consumer.ended.set()

        try:
            pending = await consumer.open(self._api, self._subject, asked, arrived)
            if expected is not None and not pending:
                self._lose(expected, None)
            elif not pending:
                self.is_level.set()
            if not self._is_over:  # closed meanwhile, perhaps
                with self._link.watched(look):
                    await consumer.ended.wait()
        finally:
            self._consumer = None
            await consumer.close()

    async def _is_whole(self) -> bool:
        """Return whether no message was ever removed from the stream."""
        state = (await self._api.call(f"STREAM.INFO.{self._stream}"))["state"]
        return bool(state["messages"] == state["last_seq"])

    def _lose(self, asked: int, first: int | None) -> None:
        self._is_over = True
        self.is_level.set()
        if self._consumer is not None:
            self._consumer.ended.set()
        self._receiver.lost(asked, first)


class _Consumer:
    """One ephemeral pull consumer on one connection."""

    def __init__(self, client: Client, options: Options, stream: str, has_room: Callable[[], bool]) -> None:
        self._client = client
        self._options = options
        self._stream = stream
        self._has_room = has_room
        self._name = ""
        self._inbox = ""
        self._subscription: Any = None
        self._take: Take | None = None
        self._pulled = 0
        self._sequence = 0
        self._heard_s = 0.0
        self.ended = asyncio.Event()  #: set when the consumer delivers no more messages
        self._pulls: set[asyncio.Task[None]] = set()
        self._pull_bytes = max(PULL_BYTES_MIN, 2 * options.body_size_max)

    async def open(self, api: Api, subject: str, start: int | None, take: Take) -> int:
        """Create the consumer; return the number of messages that wait for it."""
        config: dict[str, Any] = {
            "deliver_policy": "all",
            "ack_policy": "none",
            "filter_subject": subject,
            "inactive_threshold": CONSUMER_KEPT_S * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if start is not None:
            config.update(deliver_policy="by_start_sequence", opt_start_seq=max(start, 1))
        made = await api.call(f"CONSUMER.CREATE.{self._stream}", {"stream_name": self._stream, "config": config})
        self._name = made["name"]
        self._take = take
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(
            self._inbox, cb=self._arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._heard_s = asyncio.get_running_loop().time()
        self.pull()
        return int(made.get("num_pending", 0))

    def is_silent(self) -> bool:
        """Return whether a pull got neither a message nor a heartbeat for so long that it is lost."""
        return self._pulled > 0 and asyncio.get_running_loop().time() - self._heard_s > SILENCE_MAX_S

    def pull(self) -> None:
        """Ask for more messages, if there is room and at most half of a pull is still outstanding."""
        if self._pulled <= PULL_COUNT // 2 and self._name and self._has_room() and not self.ended.is_set():
            if self._pulled <= 0:
                self._heard_s = asyncio.get_running_loop().time()
            self._pulled += PULL_COUNT
            task = asyncio.get_running_loop().create_task(self._ask())
            self._pulls.add(task)
            task.add_done_callback(self._pulls.discard)

    async def close(self) -> None:
        """Unsubscribe, and let the server forget the consumer."""
        self.ended.set()
        with contextlib.suppress(Exception):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            if self._name:
                await self._client.publish(f"{self._options.api_prefix}.CONSUMER.DELETE.{self._stream}.{self._name}")

    async def _ask(self) -> None:
        request = {
            "batch": PULL_COUNT,
            "max_bytes": self._pull_bytes,
            "expires": round(PULL_EXPIRES_S * NANOSECONDS),
            "idle_heartbeat": round(PULL_HEARTBEAT_S * NANOSECONDS),
        }
        subject = f"{self._options.api_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        try:
            await self._client.publish(subject, as_json(request), self._inbox)
        except Exception as error:  # noqa: BLE001 - the connection is lost; a new consumer is made on the next one
            _log.debug("nats.pull_failed", extra={"txcore": {"reason": repr(error)}})
            self.ended.set()

    async def _arrived(self, message: Any) -> None:
        if self.ended.is_set():
            return
        self._heard_s = asyncio.get_running_loop().time()
        if not message.reply.startswith("$JS.ACK."):
            self._reported(message.headers or {})
            return
        sequence, delivered, appended_ms, left = _metadata(message.reply)
        if delivered != self._sequence + 1:
            self.ended.set()  # a message is missing: a new consumer begins after the last record
            return
        self._sequence = delivered
        self._pulled -= 1
        assert self._take is not None
        try:
            self._take(message, sequence, appended_ms, left)
        except Exception:
            self.ended.set()  # not taken: the next consumer delivers it again
            raise
        if self._pulled <= PULL_COUNT // 2:
            self.pull()

    def _reported(self, headers: Mapping[str, str]) -> None:
        status = headers.get(STATUS)
        if status == _IDLE:
            return
        if status in {"408", "409"} and "Nats-Pending-Messages" in headers:
            # This pull has ended; its outstanding messages do not come any more.
            self._pulled = max(0, self._pulled - int(headers["Nats-Pending-Messages"]))
            self.pull()
        else:
            self.ended.set()


def reading_error(error: BaseException, what: str) -> TxcoreError:
    """Return the error that `Reader.read` may raise for *error*."""
    if isinstance(error, ApiError) and error.err_code == STREAM_NOT_FOUND:
        return missing_group(what)
    translated = translate(error, f"reading {what!r}")
    if isinstance(translated, BackendTimeoutError):
        return BackendUnavailableError(str(translated))
    return translated


def _metadata(reply: str) -> tuple[int, int, int, int]:
    """Return stream sequence, consumer sequence, time and number of later messages, from the reply subject."""
    tokens = reply.split(".")
    at = 5 if len(tokens) < 11 else 7  # newer servers put domain and account in front of the stream
    return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2]) // 1_000_000, int(tokens[at + 3])
