"""Creates the driver's clients, and ends them where that blocks no other work.

To end a client, the driver joins its own threads. If a connection was cut at the wrong moment, one of them never ends
(librdkafka 2.16, about once in 1,000 consumers whose connections are cut all the time). So each client ends on a thread
of its own, which is lost in that case. In a forked child no inherited client may end at all.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from txcore.backends import exit_flush as exiting
from txcore.errors import ConfigError
from txcore_kafka.codec import is_refused_connection, kafka_error
from txcore_kafka.options import BATCH_BYTES, REQUEST_BYTES_MAX, Options

_log = logging.getLogger("txcore.kafka")

QUEUE_KBYTES_MAX: Final = 512 * 1024


class _WeakProducer(Producer):
    """A producer that weak references can refer to, which the driver's own class does not allow."""


class _WeakConsumer(Consumer):
    """A consumer that weak references can refer to."""


_alive: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def producer_config(options: Options) -> dict[str, Any]:
    """Return the settings of an idempotent producer."""
    own: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "partitioner": "murmur2_random",
        "message.timeout.ms": round(options.delivery_timeout_s * 1000),
        "topic.metadata.propagation.max.ms": 1_000,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 500,
        "batch.size": BATCH_BYTES,
        "message.max.bytes": REQUEST_BYTES_MAX,
        "queue.buffering.max.messages": options.queue_max,
        "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
        "compression.type": options.compression,
    }
    return options.connection() | own


def make_producer(config: Mapping[str, Any]) -> Any:
    """Return a producer; connects in its own threads.

    Raises:
        ConfigError: the driver does not take the settings, such as a file that is not there.
    """
    return _made(_WeakProducer, config)


def make_consumer(config: Mapping[str, Any]) -> Any:
    """Return a consumer; connects in its own threads.

    Raises:
        ConfigError: the driver does not take the settings, such as a file that is not there.
    """
    return _made(_WeakConsumer, config)


def make_admin(config: Mapping[str, Any]) -> Any:
    """Return an admin client; connects in its own threads.

    Raises:
        ConfigError: the driver does not take the settings, such as a file that is not there.
    """
    return _made(AdminClient, config)


def _made(kind: Callable[[dict[str, Any]], Any], config: Mapping[str, Any]) -> Any:
    try:
        client = kind(dict(config))
    except KafkaException as error:
        cause = kafka_error(error)
        text = str(error) if cause is None else cause.str()
        raise ConfigError(f"the driver refuses the URL's settings: {text}", key="url") from error
    _alive.add(client)
    return client


def _leak() -> None:
    """Keep the parent's clients for ever in a forked child: destroying one waits for threads that the child lacks."""
    for client in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_leak)


def close(consumer: Any, wait_s: float = 0.0) -> None:
    """Close *consumer*, which no thread uses any more; returns when it is closed, or after *wait_s*."""
    closed = threading.Event()

    def end() -> None:
        try:
            consumer.close()
        finally:
            closed.set()

    exiting.run_beside(end, "txcore-kafka-end")
    closed.wait(wait_s)


def discard(producers: list[Any]) -> None:
    """Drop the records of *producers* and empty the list; each of them ends after its last call in another thread."""
    # By index: a loop's variable would hold the last producer, which then ended here and not in the other thread.
    for index in range(len(producers)):
        _drop_records(producers[index])
    exiting.run_beside(producers.clear, "txcore-kafka-end")


def _drop_records(producer: Any) -> None:
    """Empty the queues of a producer, which would otherwise wait for the broker when it ends."""
    for step in (producer.purge, functools.partial(producer.poll, 0)):
        try:
            step()
        except KafkaException as error:
            _log.debug("kafka.discarded", extra={"txcore": {"reason": str(error)}})


class ConnectionNews:
    """The driver's news about connections; for information only, as the driver always reconnects by itself.

    Attributes:
        refusal: Why the last connection was refused, if certificates or credentials were the reason.
    """

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """Remember and log an error that the producer's client reports."""
        if is_refused_connection(error):
            self.refusal = error
        _log.debug("kafka.connection", extra={"txcore": {"reason": error.str(), "code": error.name()}})
