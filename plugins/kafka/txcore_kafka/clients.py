"""Creates the driver's clients, and keeps them in a forked child, in which no inherited client may be destroyed."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from txcore.errors import ConfigError
from txcore_kafka.codec import is_refused_connection, kafka_error

_log = logging.getLogger("txcore.kafka")


class _WeakProducer(Producer):
    """A producer that weak references can refer to, which the driver's own class does not allow."""


class _WeakConsumer(Consumer):
    """A consumer that weak references can refer to."""


_alive: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


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


def discard(client: Any) -> None:
    """Empty the queues of a client, so that it can be destroyed at once."""
    for step in (client.purge, functools.partial(client.poll, 0)):
        try:
            step()
        except KafkaException as error:
            _log.debug("kafka.discarded", extra={"reason": str(error)})


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
        _log.info("kafka.connection", extra={"reason": error.str(), "code": error.name()})
