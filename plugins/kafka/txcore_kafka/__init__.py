"""Kafka under txcore: the backend for `kafka://` URLs, on confluent-kafka."""

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
from txcore_kafka.guarantees import GUARANTEES
from txcore_kafka.options import Options, parse_url

if TYPE_CHECKING:
    from txcore_kafka.consumer import KafkaConsumer

__all__ = [
    "GUARANTEES",
    "Options",
    "check_driver",
    "describe_group",
    "open_consumer",
    "parse_url",
    "txcore_open_backend",
]

SCHEME: Final = "kafka"


def check_driver() -> None:
    """Check that confluent-kafka is installed, without importing it.

    Raises:
        BackendNotInstalledError: confluent-kafka is missing.
    """
    if find_spec("confluent_kafka") is None:
        raise BackendNotInstalledError(SCHEME, "confluent-kafka", SCHEME)


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open the broker that a `kafka://` URL names; None for another scheme. Connects with the first call.

    Raises:
        BackendNotInstalledError: confluent-kafka is missing.
        ConfigError: an option is unknown or of the wrong kind.
    """
    if urlsplit(url).scheme != SCHEME:
        return None
    parsed = parse_url(url, options)
    check_driver()
    from txcore_kafka.backend import KafkaBackend  # noqa: PLC0415 - needs the driver

    return KafkaBackend(parsed)


@hookimpl
def txcore_doctor(url: str, options: Mapping[str, str], request: Request) -> Examination[Any] | None:
    """Return the checks of the live cluster that a `kafka://` URL names; None for another scheme."""
    if urlsplit(url).scheme != SCHEME:
        return None
    parsed = parse_url(url, options)
    check_driver()
    from txcore_kafka.doctor import kafka_examination  # noqa: PLC0415 - needs the driver

    return kafka_examination(parsed, request)


def describe_group(url: str, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the topics and the consumer group of a group; *partition_count* 0 takes the number of the URL."""
    from txcore_kafka import describing  # noqa: PLC0415 - only `txcore topics` needs it

    return describing.describe_group(url, group, partition_count)


def open_consumer(url: str, topic: str, group: str) -> KafkaConsumer:
    """Return a plain consumer of *topic*, which is made if it is missing; see `txcore_kafka.consumer`.

    Raises:
        BackendNotInstalledError: confluent-kafka is missing.
        ConfigError, BackendUnavailableError, BackendTimeoutError: see `txcore_kafka.consumer.open_consumer`.
    """
    check_driver()
    from txcore_kafka.consumer import open_consumer as opened  # noqa: PLC0415 - needs the driver

    return opened(url, topic, group)
