"""The demo's consumer: a plugin offers it as `BackendPlugin.consumer`.

It is not part of the backend port: txcore publishes ordinary messages, which ordinary clients consume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from txcore.errors import UsageError
from txcore.registry import plugin_for


class Received(Protocol):
    """One message as a consumer gets it."""

    @property
    def position(self) -> int:
        """The position to acknowledge; positions ascend."""

    @property
    def key(self) -> bytes | None:
        """The record key."""

    @property
    def body(self) -> bytes:
        """The payload."""

    @property
    def headers(self) -> Mapping[str, str | bytes]:
        """The user's headers and txcore's."""


class Consumer(Protocol):
    """Reads one topic for one consumer group; a new group begins with the topic's first message."""

    @property
    def topic(self) -> str:
        """The topic to which producers publish for this consumer."""

    def poll(self, count_max: int = 100) -> Sequence[Received]:
        """Return the messages that have arrived, at once."""

    def ack(self, position: int) -> bool:
        """Acknowledge all messages up to *position*; return False if another consumer took over."""

    def close(self) -> None:
        """Leave the group."""


def open_consumer(url: str, topic: str, group: str) -> Consumer:
    """Open a consumer on the broker at *url*; the topic is made if it is missing.

    Raises:
        UsageError: other processes cannot reach this backend, or its plugin offers no consumer.
        UnknownSchemeError, BackendNotInstalledError, ConfigError: see `txcore.connect`.
    """
    plugin = plugin_for(url)
    consumer = plugin.open_consumer(url, topic, group)
    if consumer is None:
        raise UsageError(f"the {plugin.scheme} backend offers no consumer, so the demo could not read the messages")
    return cast("Consumer", consumer)
