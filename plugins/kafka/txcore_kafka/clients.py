"""Making the driver's clients, and outliving a fork: a client must never be destroyed in a child that inherited it."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from txcore.errors import ConfigError
from txcore_kafka.codec import kafka_error


class _WeakProducer(Producer):
    """A producer that can be referred to weakly, as only Python's own classes can."""


class _WeakConsumer(Consumer):
    """A consumer that can be referred to weakly."""


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
    """In a forked child: keep the parent's clients for ever. Destroying one waits for threads that are not here."""
    for client in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_leak)
