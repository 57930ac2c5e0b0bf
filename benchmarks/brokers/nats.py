"""NATS through nats-py: publishes with `Nats-Msg-Id` to a file stream, answered to one inbox, on a loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from txcore_conformance import brokers

from benchmarks.brokers import TIMEOUT_S, WINDOW_COUNT, Arrived

MESSAGE_ID: Final = "Nats-Msg-Id"
T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, called from other threads, which may run event loops of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class NatsServer:
    """One NATS server with JetStream, with its default settings."""

    def __init__(self) -> None:
        self._broker = brokers.managed("nats")
        self._broker.start()
        self.url, self.version, self.pid = self._broker.url, self._broker.version, self._broker.pid
        self._loop = LoopThread()

    def create_topic(self, topic: str) -> None:
        """See `Server.create_topic`."""

        async def create(client: Client) -> None:
            await client.jetstream().add_stream(StreamConfig(name=topic, subjects=[topic]))

        self._with_client(create)

    def raw_publisher(self, topic: str, body: bytes, key: bytes) -> NatsPublisher:  # noqa: ARG002 - NATS has no keys
        """See `Server.raw_publisher`."""
        return NatsPublisher(self.url, topic, body)

    def clear(self) -> None:
        """See `Server.clear`."""

        async def clear(client: Client) -> None:
            manager = client.jetstream()
            for info in await manager.streams_info():
                await manager.delete_stream(info.config.name or "")

        self._with_client(clear)

    def close(self) -> None:
        """See `Server.close`."""
        self._loop.close()
        self._broker.remove()

    def _with_client(self, use: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            client = await nats.connect(self.url)
            await use(client)
            await client.close()

        self._loop.call(run())


class NatsPublisher:
    """Publishes without a future per message: one subscription receives all answers."""

    def __init__(self, url: str, subject: str, body: bytes) -> None:
        self._subject, self.body = subject, body
        self._count = 0
        self._unanswered = 0
        self._failed = b""
        self._room = asyncio.Event()
        self._loop = LoopThread()
        self._loop.call(self._connect(url))

    def publish(self) -> None:
        """See `RawPublisher.publish`."""
        self._loop.call(self._publish(1, 0))

    def hand_over(self, count: int) -> None:
        """See `RawPublisher.hand_over`."""
        self._loop.call(self._publish(count, WINDOW_COUNT))

    def drain(self) -> None:
        """See `RawPublisher.drain`."""
        self._loop.call(self._publish(0, 0))

    def close(self) -> None:
        """See `RawPublisher.close`."""
        self._loop.call(self._client.close())
        self._loop.close()

    async def _connect(self, url: str) -> None:
        self._client = await nats.connect(url)
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(self._inbox, cb=self._answered, pending_msgs_limit=-1, pending_bytes_limit=-1)

    async def _publish(self, count: int, unanswered_max: int) -> None:
        publish = self._client.publish
        for _ in range(count):
            self._count += 1
            self._unanswered += 1
            await publish(self._subject, self.body, self._inbox, {MESSAGE_ID: f"{id(self)}:{self._count}"})
        while self._unanswered > unanswered_max:
            self._room.clear()
            await self._room.wait()
        if self._failed:
            raise RuntimeError(f"a yardstick's message was not stored: {self._failed!r}")

    async def _answered(self, message: Any) -> None:
        self._unanswered -= 1
        if b'"error"' in message.data or not message.data:
            self._failed = message.data or b"no stream"
        self._room.set()


def start() -> NatsServer:
    """Start the broker."""
    return NatsServer()


def consume(url: str, topic: str, arrived: Arrived, ready: Callable[[], None]) -> None:
    """See `benchmarks.brokers.Consume`: pushed, without acknowledgements."""

    async def run() -> None:
        client = await nats.connect(url)

        async def take(message: Any) -> None:
            arrived(message.data)

        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        await client.jetstream().subscribe(topic, stream=topic, cb=take, config=config, manual_ack=True)
        await client.flush()
        ready()
        await asyncio.Event().wait()

    asyncio.run(run())
