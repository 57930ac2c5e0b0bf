"""The origin of a run, for its manifest and report: user, host, versions, and brokers and databases by name."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from txcore.config import Loaded
from txcore.operator.login import login_name

PACKAGES: Final = ("txcore", "duckdb", "pyspark", "pyarrow", "confluent-kafka", "pika", "nats-py", "sqlalchemy")
"""Packages whose versions a run notes, if they are installed."""


def origin_of(loaded: Loaded) -> dict[str, Any]:
    """Return where a run comes from; the URLs are without passwords and options."""
    config = loaded.config
    return {
        "user": login_name(),
        "host": platform.node() or "unknown",
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **_versions()},
        "brokers": {name: each.url for name, each in sorted(config.backends.items())},
        "databases": {name: each.url for name, each in sorted(config.databases.items())},
    }


@cache  # reading them is a tenth of an incremental step, and a process has one version of each
def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
