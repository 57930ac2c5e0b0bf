"""Making the driver's clients, and outliving a fork: a client must never be destroyed in a child that inherited it."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient


class _WeakProducer(Producer):
    """A producer that can be referred to weakly, as only Python's own classes can."""


class _WeakConsumer(Consumer):
    """A consumer that can be referred to weakly."""


_alive: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def make_producer(config: Mapping[str, Any]) -> Any:
    """Return a producer; connects in its own threads.

    Raises:
        KafkaException: the driver does not take the settings.
    """
    return _kept(_WeakProducer(dict(config)))


def make_consumer(config: Mapping[str, Any]) -> Any:
    """Return a consumer; connects in its own threads.

    Raises:
        KafkaException: the driver does not take the settings.
    """
    return _kept(_WeakConsumer(dict(config)))


def make_admin(config: Mapping[str, Any]) -> Any:
    """Return an admin client; connects in its own threads.

    Raises:
        KafkaException: the driver does not take the settings.
    """
    return _kept(AdminClient(dict(config)))


def _kept(client: Any) -> Any:
    _alive.add(client)
    return client


def _leak() -> None:
    """In a forked child: keep the parent's clients for ever. Destroying one waits for threads that are not here."""
    for client in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_leak)
