"""NATS JetStream under txcore: the backend for `nats://` URLs, on nats-py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from txcore.errors import BackendNotInstalledError
from txcore.findings import Examination, Request
from txcore.guarantees import BrokerObject
from txcore.hookspecs import hookimpl
from txcore.port import Backend
from txcore_nats.guarantees import GUARANTEES
from txcore_nats.options import Options, parse_url

__all__ = [
    "GUARANTEES",
    "Options",
    "check_driver",
    "describe_group",
    "open_consumer",
    "parse_url",
    "txcore_open_backend",
]

if TYPE_CHECKING:
    from txcore_nats.consumer import NatsConsumer

SCHEME: Final = "nats"


def check_driver() -> None:
    """Check that nats-py is installed, without importing it.

    Raises:
        BackendNotInstalledError: nats-py is missing.
    """
    if find_spec("nats") is None:
        raise BackendNotInstalledError(SCHEME, "nats-py", SCHEME)


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open the broker that a `nats://` URL names; None for another scheme. Connects with the first call.

    Raises:
        BackendNotInstalledError: nats-py is missing.
        ConfigError: an option is unknown, of the wrong type or out of range.
    """
    if urlsplit(url).scheme != SCHEME:
        return None
    check_driver()
    from txcore_nats.backend import NatsBackend  # noqa: PLC0415 - needs the driver

    return NatsBackend(parse_url(url, options))


@hookimpl
def txcore_doctor(url: str, options: Mapping[str, str], request: Request) -> Examination[Any] | None:
    """Return the checks of the live server that a `nats://` URL names; None for another scheme."""
    if urlsplit(url).scheme != SCHEME:
        return None
    check_driver()
    from txcore_nats.doctor import nats_examination  # noqa: PLC0415 - needs the driver

    return nats_examination(parse_url(url, options), request)


def open_consumer(url: str, topic: str, group: str) -> NatsConsumer:
    """Return a consumer of the subject *topic* for a consumer group; its stream is created if there is none.

    Raises:
        BackendNotInstalledError: nats-py is missing.
        ConfigError, BackendUnavailableError, BackendTimeoutError: see `NatsConsumer`.
    """
    check_driver()
    from txcore_nats import consumer  # noqa: PLC0415 - needs the driver

    return consumer.open_consumer(url, topic, group)


def describe_group(url: str, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the streams and the bucket of a group; *partition_count* 0 takes the number of the URL."""
    check_driver()
    from txcore_nats import describing  # noqa: PLC0415 - only `txcore topics` needs it

    return describing.describe_group(url, group, partition_count)
