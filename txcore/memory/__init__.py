"""`memory://name`: a broker inside the process, for users' tests and for the simulator.

A `MemoryBroker` holds the logs; a `MemoryBackend` is one client's connection to it. Every request may have a fate
(lost, acknowledged too late, refused, late) and a delay, so that one seed replays one history; without them each
request runs at once in the calling thread. A `Profile` describes the real broker to imitate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from txcore import ranges
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
    Fate,
    Faults,
    Profile,
)
from txcore.memory.reading import MemoryClaim
from txcore.port import Backend

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


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open `memory://name`; connections to one name in one process share one broker."""
    parts = urlsplit(url)
    if parts.scheme != "memory":
        return None
    profile = _profile(options)
    with _brokers_lock:
        broker = _brokers.get(parts.netloc)
        if broker is None:
            broker = MemoryBroker(profile)
            if parts.netloc:
                _brokers[parts.netloc] = broker
        elif options and broker.profile != profile:
            raise ConfigError(f"memory://{parts.netloc} is open already, with other options", key=next(iter(options)))
    return MemoryBackend(broker)


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


def _profile(options: Mapping[str, str]) -> Profile:
    known = {"profile", "auto_create", "partitions"}
    for key in options:
        if key not in known:
            raise ConfigError(f"memory:// does not know option {key!r}; it knows {', '.join(sorted(known))}", key=key)
    name = options.get("profile", "strong")
    if name not in PROFILES:
        raise ConfigError(f"profile is one of {', '.join(PROFILES)}, not {name!r}", key="profile")
    create = options.get("auto_create", "true")
    if create not in {"true", "false"}:
        raise ConfigError(f"auto_create is true or false, not {create!r}", key="auto_create")
    given = options.get("partitions", str(PARTITION_COUNT_DEFAULT))
    partitions = int(ranges.parse("partitions", given, int, 1, PARTITION_COUNT_MAX))
    return replace(PROFILES[name], auto_create=create == "true", partitions=partitions)


__all__ = [
    "GUARANTEES",
    "KAFKA_LIKE",
    "NATS_LIKE",
    "PROFILES",
    "RABBITMQ_LIKE",
    "STRONG",
    "Fate",
    "Faults",
    "MemoryBackend",
    "MemoryBroker",
    "MemoryClaim",
    "Profile",
    "Target",
    "reachable",
    "txcore_open_backend",
]
