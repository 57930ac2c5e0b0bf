"""`memory://name`: a broker inside the process, for users' tests and for the simulator.

A `MemoryBroker` holds the logs; a `MemoryBackend` is one client's connection to it. Every request may have a fate
(lost, acknowledged too late, refused, late) and a delay, so that one seed replays one history; without them each
request runs at once in the calling thread. A `Profile` describes the real broker to imitate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from txcore.backends.options import choice, given_options, parse_options, split_url, switch, whole
from txcore.errors import ConfigError
from txcore.guarantees import Guarantees
from txcore.hookspecs import hookimpl
from txcore.memory.backend import MemoryBackend
from txcore.memory.broker import MemoryBroker, Target
from txcore.memory.profile import (
    KAFKA_LIKE,
    NATS_LIKE,
    PARTITION_COUNT_DEFAULT,
    PROFILES,
    RABBITMQ_LIKE,
    STRONG,
    TRANSACTION_LIKE,
    Fate,
    Faults,
    Profile,
)
from txcore.memory.reading import MemoryClaim
from txcore.plugin import BackendPlugin

PARTITION_COUNT_MAX: Final = 256
GUARANTEES: Final = (
    Guarantees(
        url="memory://name",
        capabilities=STRONG.capabilities,
        duplicates=(),
        zombies="the broker itself: a release under an outdated claim is refused",
        order="per topic, in the order of the releases",
        message_size_max="1,000,000 bytes a transaction",
        retention="nothing is dropped, and nothing outlives the process",
        version_min="none needed",
        versions_tested=(),
    ),
)
_brokers: Final[dict[str, MemoryBroker]] = {}
_brokers_lock: Final = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a `memory://` URL."""

    profile: str = choice(STRONG.name, tuple(PROFILES), "the broker to imitate")
    auto_create: bool = switch(True, "unknown target topics are created; `false`: halves that name one are refused")
    partitions: int = whole(
        PARTITION_COUNT_DEFAULT, 1, PARTITION_COUNT_MAX, "of a group that is made without a number; they never change"
    )


class Address(NamedTuple):
    """The parts of a `memory://` URL; *options* is None if it has none."""

    name: str
    options: Options | None


def parse_url(url: str) -> Address:
    """Return the broker's name and its options.

    Raises:
        ConfigError: an option is unknown, of the wrong kind or out of range; `key` names it.
    """
    parts = split_url(url)
    return Address(parts.netloc, parse_options(Options, url) if given_options(url) else None)


def open_backend(address: Address) -> MemoryBackend:
    """Open a connection to a broker; those to one name in one process share one broker.

    Raises:
        ConfigError: the broker is open already, with other options.
    """
    options = address.options or Options()
    profile = replace(PROFILES[options.profile], auto_create=options.auto_create, partitions=options.partitions)
    with _brokers_lock:
        broker = _brokers.get(address.name)
        if broker is None:
            broker = MemoryBroker(profile)
            if address.name:
                _brokers[address.name] = broker
        elif address.options and broker.profile != profile:
            raise ConfigError(f"memory://{address.name} is open already, with other options", key="url")
    return MemoryBackend(broker)


PLUGIN: Final = BackendPlugin(
    scheme="memory", parse_url=parse_url, backend=open_backend, options=Options, guarantees=GUARANTEES
)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN


@contextmanager
def reachable(broker: MemoryBroker, name: str) -> Iterator[str]:
    """Let `txcore.connect` reach *broker* inside the block, by the URL that is yielded.

    Raises:
        ConfigError: another broker has this name.
    """
    with _brokers_lock:
        if name in _brokers:
            raise ConfigError(f"memory://{name} is open already", key="name")
        _brokers[name] = broker
    try:
        yield f"memory://{name}"
    finally:
        with _brokers_lock:
            del _brokers[name]


__all__ = [
    "KAFKA_LIKE",
    "NATS_LIKE",
    "PLUGIN",
    "PROFILES",
    "RABBITMQ_LIKE",
    "STRONG",
    "TRANSACTION_LIKE",
    "Fate",
    "Faults",
    "MemoryBackend",
    "MemoryBroker",
    "MemoryClaim",
    "Profile",
    "Target",
    "reachable",
    "txcore_backend",
]
