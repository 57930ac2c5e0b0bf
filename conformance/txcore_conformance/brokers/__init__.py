"""Real brokers for tests, benchmarks and examples: Kafka, RabbitMQ and NATS without Docker.

`kafka()`, `rabbitmq()` and `nats()` return a running broker, or raise ServerUnavailableError. Each has a folder and
free loopback ports of its own, so that several runs can be live at once, and ends with the program that started it. One
that TXCORE_KAFKA_URL, TXCORE_RABBITMQ_URL or TXCORE_NATS_URL names is used as it is, unless a broker of one's own is
asked for. Programs are downloaded once, into `base_folder()`.
"""

from __future__ import annotations

import os

from txcore_conformance.brokers.broker import Broker, ExternalBroker, ManagedBroker
from txcore_conformance.brokers.kafka import KafkaBroker
from txcore_conformance.brokers.nats import NatsBroker
from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.brokers.rabbitmq import ExternalRabbitmq, RabbitmqBroker
from txcore_conformance.server_packages import ServerUnavailableError
from txcore_conformance.servers import is_required

__all__ = ["Broker", "Proxy", "ServerUnavailableError", "is_required", "kafka", "nats", "rabbitmq", "start"]

_MANAGED: dict[str, type[KafkaBroker | RabbitmqBroker | NatsBroker]] = {
    "kafka": KafkaBroker,
    "rabbitmq": RabbitmqBroker,
    "nats": NatsBroker,
}


def kafka(version: str = "", *, own: bool = False, **settings: str) -> Broker:
    """Return a running Kafka; see `start`."""
    return start("kafka", version, own=own, **settings)


def rabbitmq(version: str = "", *, own: bool = False, **settings: str) -> Broker:
    """Return a running RabbitMQ; see `start`."""
    return start("rabbitmq", version, own=own, **settings)


def nats(version: str = "", *, own: bool = False, **settings: str) -> Broker:
    """Return a running NATS with JetStream; see `start`."""
    return start("nats", version, own=own, **settings)


def start(name: str, version: str = "", *, own: bool = False, **settings: str) -> Broker:
    """Return a running broker.

    Args:
        name: kafka, rabbitmq or nats.
        version: "" means what TXCORE_KAFKA_VERSION and its like say, else the newest.
        own: Whether it must be one of this program's own even though the environment names one.
        settings: Go into the server's configuration, by its own names; they make it a broker of one's own.

    Raises:
        ServerUnavailableError: it cannot be had here.
    """
    url = os.environ.get(f"TXCORE_{name.upper()}_URL", "")
    if url and not own and not settings and not version:
        monitor_url = os.environ.get(f"TXCORE_{name.upper()}_MONITOR_URL", "")
        return (ExternalRabbitmq if name == "rabbitmq" else ExternalBroker)(name, url, monitor_url)
    broker = _MANAGED[name](settings, version or os.environ.get(f"TXCORE_{name.upper()}_VERSION", ""))
    return _started(broker)


def _started(broker: ManagedBroker) -> Broker:
    try:
        broker.start()
    except BaseException:
        broker.remove()
        raise
    return broker
