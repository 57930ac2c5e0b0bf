"""RabbitMQ under txcore: the backend for `rabbitmq://` URLs, on pika and streams over AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from txcore.errors import BackendNotInstalledError
from txcore.hookspecs import hookimpl
from txcore.port import Backend
from txcore_rabbitmq.options import Options, parse_url

__all__ = ["Options", "check_driver", "parse_url", "txcore_open_backend"]

SCHEME: Final = "rabbitmq"


def check_driver() -> None:
    """Find out whether pika is there, without importing it.

    Raises:
        BackendNotInstalledError: it is not.
    """
    if find_spec("pika") is None:
        raise BackendNotInstalledError(SCHEME, "pika", SCHEME)


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:  # noqa: ARG001 - read from the URL
    """Open the broker that a `rabbitmq://` URL names; None for another scheme. Connects with the first call.

    Raises:
        BackendNotInstalledError: pika is missing.
        ConfigError: an option is unknown or of the wrong kind.
    """
    if urlsplit(url).scheme != SCHEME:
        return None
    check_driver()
    from txcore_rabbitmq.backend import RabbitmqBackend  # noqa: PLC0415 - needs the driver

    return RabbitmqBackend(parse_url(url))
