"""Target topics with a limit, and small half logs, on the three brokers, made with their plain clients.

`Harness.limited_topic` and `Harness.small_log_url` have priority; this module is for Kafka, RabbitMQ and NATS.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from txcore_conformance.harness import Harness

CALL_TIMEOUT_S: Final = 20.0


def limited_topic(harness: Harness, name: str, *, message_size_max: int = 0, message_count_max: int = 0) -> str | None:
    """Create a topic that refuses larger messages, or all messages when it is full; None if that is impossible."""
    own = harness.limited_topic(name, message_size_max=message_size_max, message_count_max=message_count_max)
    if own is not None:
        return own
    make = {"kafka": _on_kafka, "rabbitmq": _on_rabbitmq, "nats": _on_nats}.get(getattr(harness, "broker_name", ""))
    topic = harness.topic(name)
    return topic if make is not None and make(harness, topic, message_size_max, message_count_max) else None


def small_log_url(harness: Harness, size: int) -> str:
    """Return the URL with which a new group's half log is full after *size* bytes; "" if there is none."""
    return harness.small_log_url(size) or (
        re.sub(r"\bhalf_bytes_max=\d+", f"half_bytes_max={size}", harness.url)
        if "half_bytes_max=" in harness.url
        else ""
    )


def _on_kafka(harness: Any, topic: str, size: int, count: int) -> bool:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

    if count:
        return False  # A topic is never full.
    admin = AdminClient({"bootstrap.servers": harness.broker.url.partition("://")[2]})
    made = admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": str(size)})])
    made[topic].result(CALL_TIMEOUT_S)
    return True


def _on_rabbitmq(harness: Any, topic: str, size: int, count: int) -> bool:
    import pika  # type: ignore[import-untyped]  # noqa: PLC0415

    if size:
        return False  # Only the broker has a limit of sizes, not the queue.
    parameters = pika.URLParameters(harness.broker.url.replace("rabbitmq://", "amqp://", 1))
    connection = pika.BlockingConnection(parameters)
    limits = {"x-queue-type": "classic", "x-max-length": count, "x-overflow": "reject-publish"}
    connection.channel().queue_declare(topic, durable=True, arguments=limits)
    connection.close()
    return True


def _on_nats(harness: Any, topic: str, size: int, count: int) -> bool:
    import nats  # noqa: PLC0415
    from nats.js.api import DiscardPolicy, StreamConfig  # noqa: PLC0415

    async def make() -> None:
        client = await nats.connect(harness.broker.url)
        limits = {"max_msgs": count, "discard": DiscardPolicy.NEW} if count else {"max_msg_size": size}
        name = topic.replace(".", "-")
        await client.jetstream().add_stream(StreamConfig(name=name, subjects=[topic], **limits))
        await client.close()

    asyncio.run(asyncio.wait_for(make(), CALL_TIMEOUT_S))
    return True
