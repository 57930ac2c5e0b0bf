"""Kafka under txcore: the backend for `kafka://` URLs, on confluent-kafka."""

from __future__ import annotations

from typing import Final

from txcore.hookspecs import hookimpl
from txcore.plugin import BackendPlugin
from txcore_kafka.guarantees import GUARANTEES
from txcore_kafka.options import SCHEME, Options, parse_url

__all__ = ["PLUGIN", "Options", "parse_url", "txcore_backend"]

PLUGIN: Final = BackendPlugin(
    scheme=SCHEME,
    parse_url=parse_url,
    options=Options,
    guarantees=GUARANTEES,
    driver="confluent-kafka",
    driver_module="confluent_kafka",
    extra="kafka",
    backend="txcore_kafka.backend:KafkaBackend",
    examination="txcore_kafka.doctor:kafka_examination",
    objects="txcore_kafka.describing:describe_group",
    permissions="txcore_kafka.permissions:describe_permissions",
    consumer="txcore_kafka.consumer:open_consumer",
    target="txcore_kafka.consumer:make_topic",
)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN
