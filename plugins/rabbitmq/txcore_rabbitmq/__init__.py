"""RabbitMQ under txcore: the backend for `rabbitmq://` URLs, on pika and streams over AMQP 0-9-1."""

from __future__ import annotations

from typing import Final

from txcore.hookspecs import hookimpl
from txcore.plugin import BackendPlugin
from txcore_rabbitmq.guarantees import GUARANTEES
from txcore_rabbitmq.options import SCHEME, Options, parse_url

__all__ = ["PLUGIN", "Options", "parse_url", "txcore_backend"]

PLUGIN: Final = BackendPlugin(
    scheme=SCHEME,
    parse_url=parse_url,
    options=Options,
    guarantees=GUARANTEES,
    driver="pika",
    driver_module="pika",
    extra="rabbitmq",
    backend="txcore_rabbitmq.backend:RabbitmqBackend",
    examination="txcore_rabbitmq.doctor:rabbitmq_examination",
    objects="txcore_rabbitmq.describing:describe_group",
    permissions="txcore_rabbitmq.permissions:permissions_of",
    consumer="txcore_rabbitmq.consumer:RabbitmqConsumer",
    target="txcore_rabbitmq.making:make_queue",
)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN
