"""Consuming a target for demos and tests: a subject read by any number of groups, each from its first message on.

Streams' own consumers are not used. The position of each group is in a key-value bucket and changes by compare-and-set:
the consumer of a group that was opened last is the active one. Delivery is at least once.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from txcore.clock import SystemClock, system_randomness
from txcore.errors import BackendTimeoutError, ClosedError, TxcoreError
from txcore.records import Status
from txcore.wire import HEADER_KEY
from txcore_nats.client import LinkClient
from txcore_nats.codec import (
    Ack,
    ApiError,
    as_json,
    decode_headers,
    expecting,
    from_json,
    is_conflict,
    translate,
)
from txcore_nats.connection import Api, Link, LoopThread
from txcore_nats.making import make_stream, stream_of
from txcore_nats.options import NAME_PREFIX, GroupNames, Options
from txcore_nats.publishing import Publisher, Sending
from txcore_nats.tailing import Tail

BUCKET: Final = f"{NAME_PREFIX}_consumers"
NATS_HEADERS: Final = "nats-"
"""Prefix of the server's own headers; no user's header may have it."""
ROOM_COUNT: Final = 2_000
ACK_ATTEMPTS_MAX: Final = 3
IDENTITY_BITS: Final = 64
CLOSE_TIMEOUT_S: Final = 2.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received:
    """A message as its consumers get it; `headers` has the user's headers, `txcore-id`, `-group` and `-by`."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]


class NatsConsumer:
    """The reader of one subject for a consumer group. One thread may use it at a time.

    The consumer of a group that was opened last is active; acknowledgements of earlier ones are refused from then on.

    Raises:
        BackendUnavailableError: the broker cannot be reached, or refuses the login.
        ConfigError: JetStream is missing.
    """

    def __init__(self, options: Options, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self._options = options
        self._clock = SystemClock()
        randomness = system_randomness()
        self._identity = f"{randomness.getrandbits(IDENTITY_BITS):016x}"
        self._key = f"$KV.{BUCKET}.{GroupNames(group, Options()).token}.{GroupNames(topic, Options()).token}"
        self._loop = LoopThread("txcore-nats-consumer")
        self._publisher = Publisher(self._loop, self._clock)
        self._link = Link(self._loop, options, self, randomness)
        self._api = Api(self._link, options)
        self._records: deque[Received] = deque()
        self._tail: Tail | None = None
        self._stream = ""
        self._done = 0
        self._revision = 0
        self._is_outdone = False
        self._is_closed = False
        self._loop.call(self._link.open)
        try:
            self._call(self._open())
        except BaseException:
            self.close()
            raise

    def poll(self, count_max: int = 100) -> Sequence[Received]:
        """Return at once the messages that have arrived; none after a refused `ack` showed another active consumer."""
        if self._is_closed:
            raise ClosedError("this consumer is closed")
        taken: list[Received] = []
        while self._records and len(taken) < count_max and not self._is_outdone:
            taken.append(self._records.popleft())
        if self._tail is not None and self.has_room():
            self._loop.call(self._tail.refill)
        return taken

    def ack(self, position: int) -> bool:
        """Store that all messages up to *position* are done; return False if another consumer took over.

        Raises:
            BackendTimeoutError, BackendUnavailableError: the position may be stored; messages may come again.
        """
        if self._is_closed:
            raise ClosedError("this consumer is closed")
        is_stored = self._call(self._store(position))
        self._is_outdone = not is_stored
        return is_stored

    def close(self) -> None:
        """Stop reading; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            closing = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop.loop)
            wait([closing], CLOSE_TIMEOUT_S)
            self._loop.stop(CLOSE_TIMEOUT_S)

    # -- for the tail and the link, on the loop's thread --------------------------------------------------------------

    def received(self, message: Any, sequence: int, appended_ms: int) -> None:  # noqa: ARG002
        """See `Receiver`."""
        if sequence > self._done:
            headers = {
                name: value
                for name, value in decode_headers(message.headers).items()
                if not name.lower().startswith(NATS_HEADERS)
            }
            key = headers.get(HEADER_KEY)
            key_bytes = key.encode() if isinstance(key, str) else key
            self._records.append(Received(sequence, key_bytes, message.data, headers))

    def lost(self, asked: int, first: int | None) -> None:  # noqa: ARG002
        """See `Receiver`; continue with the first message that retention has left."""
        self._follow(first)

    def failed(self, error: TxcoreError) -> None:
        """See `Receiver`; the error is ignored, as the tail tries again."""

    def has_room(self) -> bool:
        """See `Receiver`."""
        return len(self._records) < ROOM_COUNT

    async def link_up(self, client: LinkClient) -> None:
        """See `LinkOwner`."""
        await self._publisher.up(client)

    def link_down(self, error: TxcoreError) -> None:
        """See `LinkOwner`."""
        self._publisher.down(error)

    def link_refused(self, text: str) -> None:
        """See `LinkOwner`."""
        self._publisher.refused(text)

    async def _open(self) -> None:
        self._stream = await stream_of(self._api.call, self._options, self.topic)
        bucket = {
            "name": f"KV_{BUCKET}",
            "subjects": [f"$KV.{BUCKET}.>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        }
        await make_stream(self._api.call, bucket)
        await self._load()
        if not await self._put(self._done):
            raise BackendTimeoutError(f"several consumers of group {self.group!r} are opened at once; open it again")
        self._follow(self._done or None)

    def _follow(self, start: int | None) -> None:
        self._tail = Tail(self._loop, self._link, self._api, self._options, self._stream, self.topic, self, start=start)
        self._tail.open()

    async def _load(self) -> str:
        """Load the group's position; return the identity of the consumer that wrote it."""
        try:
            answer = await self._api.call(f"STREAM.MSG.GET.KV_{BUCKET}", {"last_by_subj": self._key})
        except ApiError as error:
            if error.code != 404:
                raise
            return ""
        value = from_json(base64.b64decode(answer["message"]["data"]))
        self._revision = int(answer["message"]["seq"])
        self._done = max(self._done, int(value.get("position", 0)))
        return str(value.get("owner", ""))

    async def _store(self, position: int) -> bool:
        for _ in range(ACK_ATTEMPTS_MAX):
            if await self._put(position):
                return True
            # A write of this consumer whose answer was lost may have changed the revision.
            if await self._load() != self._identity:
                return False
        return False

    async def _put(self, position: int) -> bool:
        """Write the position; return False if the key has changed since it was loaded.

        Raises:
            TxcoreError: the position may be written.
        """
        future: asyncio.Future[int] = self._loop.loop.create_future()

        def ended(status: Status, error: TxcoreError | None, ack: Ack | None) -> None:
            if status is Status.DURABLE and ack is not None:
                future.set_result(ack.seq)
            elif is_conflict(ack):
                future.set_result(0)
            else:
                future.set_exception(error or BackendTimeoutError("no answer to an acknowledgement"))

        value = as_json({"owner": self._identity, "position": position})
        headers = expecting(self._revision)
        deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
        self._publisher.send(Sending(self._key, value, headers, deadline_s, ended))
        self._revision = await future or self._revision
        return bool(future.result())

    async def _shut_down(self) -> None:
        if self._tail is not None:
            self._tail.close()
        self._publisher.fail_all(ClosedError("the consumer was closed"))
        await self._link.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            try:
                return await coroutine
            except Exception as error:
                raise translate(error, f"consuming {self.topic!r}") from error

        future: Future[T] = asyncio.run_coroutine_threadsafe(run(), self._loop.loop)
        return future.result()
