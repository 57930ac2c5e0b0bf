"""A session on a Spark Connect server: it needs no Java here, and takes only what a client may set."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from txcore.errors import BackendNotInstalledError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME: Final = "sc://"
TRIES: Final = 5
"""Tries of the first request, some 20 s in all; Spark's client has 15, which take ten minutes."""
_DETAILS: Final = re.compile(r'details = "(.*)"')


def is_remote(master: str) -> bool:
    """Return whether a master, or for none the environment, names a Spark Connect server."""
    return (master or os.environ.get("SPARK_REMOTE", "")).startswith(SCHEME)


def connected(builder: Any, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session on a server, with its settings.

    Args:
        builder: Builder of sessions, `SparkSession.builder`.
        master: Address of the server; empty for the environment's.

    Raises:
        BackendNotInstalledError: packages of Spark Connect are missing.
        ConfigError: no server answers there, or one that may run a task twice at a time.
    """
    try:
        session: SparkSession = (builder.remote(master) if master else builder).getOrCreate()
    except ImportError as error:
        raise BackendNotInstalledError("Spark Connect", "grpcio and others", "spark-connect") from error
    try:
        _require_answer(session)
        _require_each_task_once(session)
        for key, value in settings.items():
            session.conf.set(key, value)
    except BaseException:
        session.stop()
        raise
    return session


def _require_answer(session: SparkSession) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency, imported when needed
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    usual = session.client.get_retry_policies()
    session.client.set_retry_policies([DefaultPolicy(max_retries=TRIES)])
    try:
        with warnings.catch_warnings(action="ignore"):  # that no try is left, which the error says
            _ = session.version
    except PySparkException as error:
        why = _DETAILS.search(str(error))
        reason = why[1] if why else str(error)
        raise ConfigError(f"no Spark Connect server answers: {reason}", key="audit.master") from error
    session.client.set_retry_policies(usual)


def _require_each_task_once(session: SparkSession) -> None:
    if session.conf.get("spark.speculation", "false") != "false":  # a server's own setting
        raise ConfigError("the audit needs a Spark Connect server with spark.speculation=false", key="audit.master")
