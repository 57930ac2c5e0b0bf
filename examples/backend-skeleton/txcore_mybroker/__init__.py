"""`mybroker://name`: a backend to begin with. Copy the folder, rename `mybroker`, and follow the README."""

from __future__ import annotations

from txcore import hookimpl
from txcore.backends.options import parse_options
from txcore.plugin import BackendPlugin
from txcore_mybroker.backend import MyBackend, Options


def parse_url(url: str) -> Options:
    """Return the settings of *url*; raises ConfigError for an option that is unknown or wrong."""
    return parse_options(Options, url, name=url.partition("://")[2].partition("?")[0])


PLUGIN = BackendPlugin(scheme="mybroker", parse_url=parse_url, options=Options, backend=MyBackend)


@hookimpl
def txcore_backend() -> BackendPlugin:
    """See `txcore.hookspecs.txcore_backend`."""
    return PLUGIN
