"""`sqlite:///file`: a broker in one file, for trying txcore, for tests and for small deployments."""

from __future__ import annotations

from typing import Final

from txcore.hookspecs import hookimpl
from txcore.plugin import BackendPlugin
from txcore_sqlite.backend import SqliteBackend
from txcore_sqlite.guarantees import GUARANTEES
from txcore_sqlite.options import SCHEME, Options, parse_url

__all__ = ["PLUGIN", "Options", "SqliteBackend", "parse_url", "txcore_backend"]

PLUGIN: Final = BackendPlugin(
    scheme=SCHEME,
    parse_url=parse_url,
    options=Options,
    guarantees=GUARANTEES,
    backend=lambda address: SqliteBackend(*address),
    examination="txcore_sqlite.doctor:sqlite_examination",
    objects="txcore_sqlite.describing:describe_group",
    consumer="txcore_sqlite.consumer:open_consumer",
    target="txcore_sqlite.consumer:make_topic",
)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN
