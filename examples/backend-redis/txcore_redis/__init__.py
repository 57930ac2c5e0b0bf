"""`redis://host`: transactional messages on Redis Streams, written with the kit for backends and nothing else."""

from __future__ import annotations

from typing import Final

from txcore import hookimpl
from txcore.plugin import BackendPlugin
from txcore_redis.guarantees import GUARANTEES
from txcore_redis.options import SCHEME, Options, parse_url

__all__ = ["GUARANTEES", "PLUGIN", "Options", "parse_url", "txcore_backend"]

PLUGIN: Final = BackendPlugin(
    scheme=SCHEME,
    parse_url=parse_url,
    options=Options,
    guarantees=GUARANTEES,
    driver="redis",
    driver_module="redis",
    backend="txcore_redis.backend:RedisBackend",
)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN
