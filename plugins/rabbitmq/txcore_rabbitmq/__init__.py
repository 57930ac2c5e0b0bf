"""RabbitMQ under txcore: the backend for `rabbitmq://` URLs, on pika and streams over AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from txcore.errors import BackendNotInstalledError
from txcore.findings import Examination, Request
from txcore.guarantees import BrokerObject
from txcore.hookspecs import hookimpl
from txcore.port import Backend
from txcore_rabbitmq.guarantees import GUARANTEES
from txcore_rabbitmq.options import SCHEME, Options, parse_url

__all__ = [
    "GUARANTEES",
    "Options",
    "check_driver",
    "describe_group",
    "open_consumer",
    "parse_url",
    "txcore_open_backend",
]


def check_driver() -> None:
    """Check that pika is installed, without importing it.

    Raises:
        BackendNotInstalledError: pika is missing.
    """
    if find_spec("pika") is None:
        raise BackendNotInstalledError(SCHEME, "pika", SCHEME)


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open the broker that a `rabbitmq://` URL names; None for another scheme. Connects with the first call.

    Raises:
        BackendNotInstalledError: pika is missing.
        ConfigError: an option is unknown or of the wrong kind.
    """
    if urlsplit(url).scheme != SCHEME:
        return None
    check_driver()
    from txcore_rabbitmq.backend import RabbitmqBackend  # noqa: PLC0415 - needs the driver

    return RabbitmqBackend(parse_url(url, options))


@hookimpl
def txcore_doctor(url: str, options: Mapping[str, str], request: Request) -> Examination[Any] | None:  # noqa: ARG001
    """Return the checks of the live broker that a `rabbitmq://` URL names; None for another scheme."""
    if urlsplit(url).scheme != SCHEME:
        return None
    check_driver()
    from txcore_rabbitmq.doctor import rabbitmq_examination  # noqa: PLC0415 - needs the driver

    return rabbitmq_examination(parse_url(url), request)


def open_consumer(url: str, topic: str, group: str) -> Any:
    """Open a consumer of *topic*, which is created as a stream if it is missing; for demos and tests.

    Raises:
        BackendNotInstalledError: pika is missing.
        ConfigError: an option is unknown, or the topic is a queue of another kind.
        BackendUnavailableError: the broker cannot be reached, or refuses the login.
    """
    check_driver()
    from txcore_rabbitmq import consumer  # noqa: PLC0415 - needs the driver

    return consumer.open_consumer(url, topic, group)


def describe_group(url: str, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the broker objects of a group; *partition_count* 0 takes the number of the URL."""
    from txcore_rabbitmq import describing  # noqa: PLC0415 - only `txcore topics` needs it

    return describing.describe_group(url, group, partition_count)
