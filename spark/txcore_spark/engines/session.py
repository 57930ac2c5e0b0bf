"""The Spark session: the caller's, or one with the audit's settings; an error names what is missing on this machine.

What the caller has set wins: options of `spark-submit`, `spark-defaults.conf`, a Spark Connect server's, a session that
is open. Only what the verdicts or passwords depend on is set in each session that is made here.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from txcore.errors import BackendNotInstalledError, ConfigError
from txcore_spark.engines.spark_connect import connected, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Options that hold passwords; Spark keeps them out of its logs and plans.
    "spark.sql.redaction.options.regex": "(?i)url|jaas",
}
ONCE: Final[Mapping[str, str]] = {"spark.speculation": "false"}
"""Gaps and ranges are counted exactly once per attempt that counts: a task is never run twice at a time."""
QUIET: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
"""For a session on this machine; `spark-submit` has its own."""
CHOSEN: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.parquet.compression.codec": "zstd",
    # Lines of two kinds are written side by side, without sorting them first.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
}
"""For speed; the caller's value wins."""
_CHOSEN_IN: Final[WeakKeyDictionary[SparkSession, set[str]]] = WeakKeyDictionary()
"""Keys that `choose` has set in a session: it may set them again."""

INTERPRETED: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def require_java(environment: Mapping[str, str] | None = None) -> None:
    """Require Java.

    Raises:
        ConfigError: there is no Java on the PATH or in JAVA_HOME.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME", "")
    if not (home and (Path(home) / "bin" / "java").exists()) and not shutil.which("java", path=environment.get("PATH")):
        raise ConfigError("Spark needs Java 17 or newer, and there is none on the PATH or in JAVA_HOME", key="java")


def is_submitted() -> bool:
    """Return whether spark-submit runs this program; it writes standard error and standard output to one stream."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_open() -> bool:
    """Return whether this process has a session."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - an optional dependency, imported when needed
    from pyspark.sql import SparkSession  # noqa: PLC0415

    try:
        SparkSession.active()
    except (PySparkRuntimeError, ImportError):  # or a server is named, and packages of Spark Connect are missing
        return False
    return True


def choose(session: SparkSession, key: str, value: str) -> None:
    """Set a value for speed, unless the caller has set one."""
    chosen = _CHOSEN_IN.setdefault(session, set())
    if key in chosen or key not in session.conf.getAll:
        session.conf.set(key, value)
        chosen.add(key)


def open_session(
    master: str = "", driver_memory: str = "2g", settings: Mapping[str, str] | None = None, jars: str = ""
) -> SparkSession:
    """Return the session of this process, made if there is none.

    Args:
        master: Spark master, or address of a Spark Connect server, `sc://host:port`.
        jars: Folder of jars for the session; a server has its own.

    Raises:
        BackendNotInstalledError: pyspark is missing, or what it needs for Spark Connect.
        ConfigError: there is no Java, no jar in the folder, or no Spark Connect server at the master's address.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an optional dependency, imported when needed
    except ModuleNotFoundError as error:
        raise BackendNotInstalledError("the audit", str(error.name), "spark") from error
    if is_open():
        session = SparkSession.active()
    else:
        if is_remote(master):
            session = connected(SparkSession.builder, master, {**NEEDED, **(settings or {})})
        else:
            require_java()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            session = _built(SparkSession.builder, master, driver_memory, {**(settings or {}), **_jars(jars)})
        for key, value in CHOSEN.items():
            choose(session, key, value)
    from txcore_spark.engines.sources import register  # noqa: PLC0415

    register(session)
    return session


def _jars(folder: str) -> dict[str, str]:
    if not folder:
        return {}
    found = sorted(str(path) for path in Path(folder).absolute().glob("*.jar"))
    if not found:
        raise ConfigError(f"there is no jar in {folder!r}", key="audit.spark_jars")
    return {"spark.jars": ",".join(found)}


def _built(builder: Any, master: str, driver_memory: str, settings: Mapping[str, str]) -> SparkSession:
    # Under spark-submit its options name the master, and the Java process with its memory is running already.
    if master or not is_submitted():
        builder = builder.master(master or "local[*]")
    if not is_submitted():
        builder = builder.config("spark.driver.memory", driver_memory).config(map=dict(QUIET))
    builder = builder.config(map={**NEEDED, **ONCE, **settings})
    session: SparkSession = builder.appName("txcore audit").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def interpreted(session: SparkSession) -> Iterator[None]:
    """Within the block, run plans of few rows and many columns interpreted, in one part, instead of compiled."""
    before = {name: str(session.conf.get(name)) for name in INTERPRETED}
    for name, value in INTERPRETED.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)
