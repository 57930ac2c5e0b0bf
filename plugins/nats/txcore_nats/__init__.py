"""NATS JetStream under txcore: the backend for `nats://` URLs, on nats-py."""

from __future__ import annotations

from typing import Final

from txcore.hookspecs import hookimpl
from txcore.plugin import BackendPlugin
from txcore_nats.guarantees import GUARANTEES
from txcore_nats.options import SCHEME, Options, parse_url

__all__ = ["PLUGIN", "Options", "parse_url", "txcore_backend"]

PLUGIN: Final = BackendPlugin(
    scheme=SCHEME,
    parse_url=parse_url,
    options=Options,
    guarantees=GUARANTEES,
    driver="nats-py",
    driver_module="nats",
    extra="nats",
    backend="txcore_nats.backend:NatsBackend",
    examination="txcore_nats.doctor:nats_examination",
    objects="txcore_nats.describing:describe_group",
    permissions="txcore_nats.permissions:permissions_of",
    consumer="txcore_nats.consumer:NatsConsumer",
    target="txcore_nats.making:make_subject",
)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN
