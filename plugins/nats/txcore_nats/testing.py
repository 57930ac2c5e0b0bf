"""The conformance harness: one stream for each target topic, read and changed with nats-py alone."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, StreamConfig
from nats.js.errors import NoKeysError, NotFoundError
from nats.js.kv import KeyValue
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.harness import Delivered, Gap
from txcore_conformance.machine import base_folder, machine_lock

from txcore.errors import MessageRejectedError
from txcore.records import LogKind

CALL_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.02
READ_COUNT: Final = 500
READ_TIMEOUT_S: Final = 5.0
HALF_BYTES_MAX: Final = 33_554_432
SHARED_STREAM: Final = "txcore"
LOG_TOKENS: Final = {LogKind.HALF: "h", LogKind.PARKED: "p"}
T = TypeVar("T")


class NatsHarness(BrokerHarness):
    """A NATS server; each topic is a subject in a stream of its own."""

    broker_name = "nats"
    # Hundreds of groups are created in one run, and JetStream reserves the bytes that a stream may need.
    url_options: ClassVar[str] = f"?half_bytes_max={HALF_BYTES_MAX}&lease_s=2"
    silent_member_max_s = 10.0

    def start(self) -> None:
        """See `BrokerHarness.start`."""
        super().start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats-harness", daemon=True)
        self._thread.start()
        self._client: Client | None = None

    def stop(self) -> None:
        """See `BrokerHarness.stop`."""
        if self._client is not None:
            self._call(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        super().stop()

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`."""

        async def create() -> None:
            await (await self._manager()).add_stream(StreamConfig(name=self.stream_of(topic), subjects=[topic]))

        self._call(create())

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        return self._call(self._read(self.stream_of(topic), topic))

    def topic(self, name: str) -> str:
        """See `Harness.topic`."""
        return f"topics.{name}"

    def missing_topic(self) -> str | None:
        """See `Harness.missing_topic`."""
        return "never.made"

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`: the topic's stream is full."""

        async def update() -> None:
            manager = await self._manager()
            info = await manager.stream_info(self.stream_of(topic))
            info.config.discard = DiscardPolicy.NEW
            info.config.max_bytes = max(info.state.bytes, 1) if refuses else -1
            await manager.update_stream(info.config)

        self._call(update())
        return True

    def limited_topic(self, name: str, *, message_size_max: int = 0, message_count_max: int = 0) -> str | None:
        """See `Harness.limited_topic`."""
        config = StreamConfig(name=self.stream_of(name), subjects=[name], discard=DiscardPolicy.NEW)
        config.max_msg_size = message_size_max or -1
        config.max_msgs = message_count_max or -1

        async def create() -> None:
            await (await self._manager()).add_stream(config)

        self._call(create())
        return name

    def small_log_url(self, size: int) -> str:
        """See `Harness.small_log_url`."""
        return self.url.replace(f"half_bytes_max={HALF_BYTES_MAX}", f"half_bytes_max={size}")

    def expire_member(self, group: str, member: str) -> bool:
        """See `Harness.expire_member`: the keys of its partitions are set to no owner."""

        async def expire() -> bool:
            client = await self._connected()
            bucket = await client.jetstream().key_value(f"txc_{group}")
            while not (leases := await _leases_of(bucket, member)):  # noqa: ASYNC110 - it joins in its own time
                await asyncio.sleep(POLL_S)
            for key in leases:
                await bucket.put(key, b'{"owner":""}')
            return True

        return self._call(expire())

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        _, subject = self._place_of(group, kind, partition)

        async def publish() -> None:
            await (await self._connected()).jetstream().publish(subject.replace(">", "stray"), body)

        self._call(publish())
        return True

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> bool:
        """See `Harness.trim`."""
        stream, subject = self._place_of(group, kind, partition)

        async def purge() -> None:
            await (await self._manager()).purge_stream(stream, subject=subject, seq=before)

        self._call(purge())
        return True

    def stream_of(self, topic: str) -> str:
        """Return the name of the stream that holds *topic*."""
        return topic.replace(".", "-")

    def _place_of(self, group: str, kind: LogKind, partition: int) -> tuple[str, str]:
        token = LOG_TOKENS.get(kind)
        subject = f"txc.{group}.op.{partition}.>" if token is None else f"txc.{group}.{token}.{partition}"
        return f"txc_{group}_{kind.value}", subject

    async def _read(self, stream: str, topic: str) -> list[Delivered]:
        context = (await self._connected()).jetstream()
        try:
            state = (await context.stream_info(stream)).state
        except NotFoundError:
            return []
        subscription = await context.pull_subscribe(
            topic, stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=READ_TIMEOUT_S)
        )
        delivered: list[Delivered] = []
        try:
            left = (await subscription.consumer_info()).num_pending or 0
            while left and state.messages:
                for message in await subscription.fetch(min(left, READ_COUNT), timeout=READ_TIMEOUT_S):
                    delivered.append(_delivered(message))
                    left -= 1
        finally:
            await subscription.unsubscribe()
        return delivered

    async def _connected(self) -> Client:
        if self._client is None or self._client.is_closed:
            self._client = await nats.connect(self.broker.url, max_reconnect_attempts=-1, reconnect_time_wait=1)
        return self._client

    async def _manager(self) -> Any:
        return (await self._connected()).jsm()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_TIMEOUT_S)


class NatsAtomicHarness(NatsHarness):
    """The harness with `release=atomic`: all topics are subjects of one stream, which also holds the ops."""

    stream_name = SHARED_STREAM
    url_options: ClassVar[str] = f"{NatsHarness.url_options}&release=atomic"
    gaps: ClassVar[Mapping[str, Gap]] = dict.fromkeys(
        (
            "test_an_undeliverable_half_is_parked_with_its_decision_and_resumed",
            "test_what_a_full_target_refuses_is_parked_as_undeliverable",
            "test_a_message_that_its_topic_takes_not_is_refused_early_or_parked",
        ),
        Gap(
            "notyet",
            "limits are a stream's, not a subject's; a subject refuses only by leaving the stream, and that is found "
            "before the half is stored",
            MessageRejectedError,
        ),
    )

    def start(self) -> None:
        """See `NatsHarness.start`; creates the stream."""
        super().start()

        async def create() -> None:
            manager = await self._manager()
            try:
                await manager.stream_info(self.stream_name)
            except NotFoundError:
                await manager.add_stream(StreamConfig(name=self.stream_name, subjects=["topics.none"]))

        self._call(create())

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`."""
        self.refuse_topic(topic, refuses=False)

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`: the subject is removed from the stream."""

        async def update() -> None:
            manager = await self._manager()
            config = (await manager.stream_info(self.stream_name)).config
            subjects = set(config.subjects or ())
            config.subjects = sorted(subjects - {topic} if refuses else subjects | {topic})
            await manager.update_stream(config)

        # All subjects of a stream are set at once, so tests in several processes take turns.
        with machine_lock(base_folder() / f"{self.stream_name}.lock"):
            self._call(update())
        return True

    def limited_topic(self, name: str, *, message_size_max: int = 0, message_count_max: int = 0) -> str | None:  # noqa: ARG002
        """See `Harness.limited_topic`: limits hold for the whole stream."""
        return None

    def stream_of(self, topic: str) -> str:  # noqa: ARG002
        """See `NatsHarness.stream_of`."""
        return self.stream_name

    def _place_of(self, group: str, kind: LogKind, partition: int) -> tuple[str, str]:
        if kind is LogKind.HALF:
            return super()._place_of(group, kind, partition)
        token = f"op.{partition}.>" if kind is LogKind.OP else f"p.{partition}"
        return self.stream_name, f"txcs.{self.stream_name}.{group}.{token}"


def _delivered(message: Any) -> Delivered:
    headers: dict[str, str | bytes] = dict(message.headers or {})
    for name in filter(None, str(headers.pop("txcore-base64", "")).split(",")):
        headers[name] = base64.b64decode(headers[name])
    headers = {name: value for name, value in headers.items() if not name.lower().startswith("nats-")}
    key = headers.get("txcore-key")
    metadata = message.metadata
    return Delivered(
        metadata.sequence.stream,
        key.encode() if isinstance(key, str) else key,
        message.data,
        headers,
        round(metadata.timestamp.timestamp() * 1000),
    )


async def _leases_of(bucket: KeyValue, member: str) -> list[str]:
    """Return the keys of the partitions that a member has at this moment."""
    try:
        entries = {key: (await bucket.get(key)).value or b"" for key in await bucket.keys()}
    except NoKeysError:
        return []
    ids = [key.rpartition(".")[2] for key, value in entries.items() if f'"{member}"'.encode() in value]
    return [
        key
        for key, value in entries.items()
        if key.startswith("own.lease.") and any(identity.encode() in value for identity in ids)
    ]
