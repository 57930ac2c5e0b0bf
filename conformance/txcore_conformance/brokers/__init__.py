"""Real brokers for tests, benchmarks and examples: Kafka, RabbitMQ and NATS without Docker.

`kafka()`, `rabbitmq()` and `nats()` return a running broker, or raise ServerUnavailableError. Each has a folder and
free loopback ports of its own, so that several runs can be live at once, and ends with the program that started it. A
broker that TXCORE_KAFKA_URL, TXCORE_RABBITMQ_URL or TXCORE_NATS_URL names is used unchanged, unless the caller requests
a new one. Programs are downloaded once, into `base_folder()`. docs/testing.md has the versions and the variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from txcore_conformance.broker_warnings import BrokerFallbackWarning, warnings
from txcore_conformance.brokers.broker import Broker, ManagedBroker
from txcore_conformance.brokers.cluster import Cluster, start_cluster
from txcore_conformance.brokers.external import ExternalBroker
from txcore_conformance.brokers.kafka_node import KafkaBroker
from txcore_conformance.brokers.kafka_programs import AS_SHIPPED
from txcore_conformance.brokers.nats_node import NatsBroker
from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.brokers.rabbitmq_node import RabbitmqBroker
from txcore_conformance.brokers.security import PASSWORD, USER, Security
from txcore_conformance.server_packages import ServerUnavailableError
from txcore_conformance.servers import is_required

__all__ = [
    "NAMES",
    "PASSWORD",
    "USER",
    "Broker",
    "BrokerFallbackWarning",
    "Cluster",
    "Proxy",
    "ServerUnavailableError",
    "cluster",
    "environment",
    "is_required",
    "kafka",
    "kafka_as_shipped",
    "managed",
    "nats",
    "rabbitmq",
    "start",
    "warnings",
]

_MANAGED: Final[Mapping[str, type[ManagedBroker]]] = {
    "kafka": KafkaBroker,
    "rabbitmq": RabbitmqBroker,
    "nats": NatsBroker,
}
NAMES: Final = tuple(_MANAGED)


def kafka(version: str = "", *, own: bool = False, **options: Any) -> Broker:
    """Return a running Kafka; see `start`."""
    return start("kafka", version, own=own, **options)


def rabbitmq(version: str = "", *, own: bool = False, **options: Any) -> Broker:
    """Return a running RabbitMQ; see `start`."""
    return start("rabbitmq", version, own=own, **options)


def nats(version: str = "", *, own: bool = False, **options: Any) -> Broker:
    """Return a running NATS with JetStream; see `start`."""
    return start("nats", version, own=own, **options)


def start(
    name: str, version: str = "", *, own: bool = False, takes_usual_ports: bool = False, **options: Any
) -> Broker:
    """Return a running broker.

    With a version or any of the options this program starts a new broker.

    Args:
        name: kafka, rabbitmq or nats.
        version: "" means the version in TXCORE_KAFKA_VERSION (and so on), otherwise the newest.
        own: Whether this program starts a new broker even if the environment names one.
        takes_usual_ports: Whether a new broker takes those of its usual ports that are free (9092, 5672, 4222).
        options: `tls=True` adds a TLS listener: `tls_url`, `ca_file`, `cert_file`, `key_file`; NATS has no other
            listener then. `credentials=True` adds the user `USER` with the password `PASSWORD`: `credentials_url`,
            which is a TLS listener too when both are set; NATS refuses all other clients then.
            `client_certificate=True` makes the TLS listener refuse clients without a certificate. All other options,
            strings, are written into the server's configuration, by its own names.

    Raises:
        ServerUnavailableError: the broker is not available here.
    """
    url = os.environ.get(f"TXCORE_{name.upper()}_URL", "")
    if url and not (own or version or options):
        return ExternalBroker(name, url)
    broker = managed(name, version, **options)
    broker.takes_usual_ports = takes_usual_ports
    try:
        broker.start()
    except BaseException:
        broker.remove()
        raise
    return broker


def managed(name: str, version: str = "", **options: Any) -> ManagedBroker:
    """Return a new broker that is not started yet; the arguments are those of `start`.

    Raises:
        ServerUnavailableError: the broker's programs are not available here.
    """
    guards = {field.name: bool(options.pop(field.name)) for field in fields(Security) if field.name in options}
    return _MANAGED[name](options, version or _version(name), Security(**guards))


def kafka_as_shipped() -> KafkaBroker:
    """Return a Kafka like `managed`, on Java with the options of Kafka's start script: slow to start, then fast.

    Raises:
        ServerUnavailableError: the broker's programs are not available here.
    """
    return KafkaBroker({}, _version("kafka"), java_options=AS_SHIPPED)


def cluster(name: str, nodes: int = 3, version: str = "", **settings: str) -> Cluster:
    """Return a new running cluster, set up to keep acknowledged records when one of three nodes is lost.

    Kafka: replication factor 3, `min.insync.replicas` 2. NATS: `sync_interval: always`; streams ask for their replicas.
    RabbitMQ: `pause_minority`; quorum queues and streams have a member on each node.

    Raises:
        ServerUnavailableError: the broker is not available here.
    """
    return start_cluster(lambda: managed(name, version, **settings), nodes)


def _version(name: str) -> str:
    return os.environ.get(f"TXCORE_{name.upper()}_VERSION", "")


def environment(brokers: Mapping[str, Broker]) -> dict[str, str]:
    """Return the variables with which another program uses these brokers."""
    found = {name: value for broker in brokers.values() for name, value in broker.environment().items()}
    return {name: value for name, value in found.items() if value}
