"""The origin of a run, for its manifest and report: user, host, versions, and brokers and databases by name."""

from __future__ import annotations

import os
import platform
import pwd
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from txcore.config import Loaded

PACKAGES: Final = ("txcore", "duckdb", "pyspark", "pyarrow", "confluent-kafka", "pika", "nats-py", "sqlalchemy")
"""Packages whose versions a run notes, if they are installed."""


def origin_of(loaded: Loaded) -> dict[str, Any]:
    """Return where a run comes from; the URLs are without passwords and options."""
    config = loaded.config
    return {
        "user": user_name(),
        "host": platform.node() or "unknown",
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **_versions()},
        "brokers": {name: each.url for name, each in sorted(config.backends.items())},
        "databases": {name: each.url for name, each in sorted(config.databases.items())},
    }


def user_name() -> str:
    """Return the login name of this process, or its number; under sudo, the caller's login name."""
    sudo = os.environ.get("SUDO_USER", "")
    if sudo and os.getuid() == 0:
        return sudo
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
