"""Kafka's programs: its jars, downloaded once into the base folder, and the machine's Java."""

from __future__ import annotations

import base64
import re
import shlex
import shutil
import uuid
from pathlib import Path
from typing import Final

from txcore_conformance import progress
from txcore_conformance.brokers import maven
from txcore_conformance.machine import base_folder, made_once, run

NEWEST: Final = "newest"
KAFKA_VERSIONS: Final = {NEWEST: "4.3.1", "3.9": "3.9.1"}
ARCHIVE: Final = "classes.jsa"
_BOOTSTRAP: Final = "bootstrap.checkpoint"
_FORMAT_TIME_MAX_S: Final = 900.0
QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m")
"""Java's options for tests: a start within a second, and little memory."""
AS_SHIPPED: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Xms1G",
    "-Xmx1G",
)
"""Java's options in Kafka's own start script: fast after its methods are compiled, in ten seconds of load."""
_FORMAT_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1
log.dirs={folder}
"""
# Fetched alone: pyspark brings what they need, and Spark's parent project names a repository of its own.
_SPARK_JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),  # the newest release
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
# Kafka 4 logs through log4j 2, Kafka 3 through the successor of log4j 1.
_LOG4J_2: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
"""
_LOG4J_1: Final = """\
log4j.rootLogger = WARN, console
log4j.appender.console = org.apache.log4j.ConsoleAppender
log4j.appender.console.layout = org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern = %d{ISO8601} %p %c{1}: %m%n
"""


def kafka_libraries(version: str) -> Path:
    """Return a folder with Kafka's jars, fetched by Maven once per version: newest, 3.9, or an exact one.

    Raises:
        ServerUnavailableError: there is no Maven, or Maven could not fetch the jars.
    """
    wanted = KAFKA_VERSIONS.get(version or NEWEST, version)

    def make(target: Path) -> None:
        logging_jar, logging = _logging(wanted)
        progress.say(f"Maven fetches Kafka {wanted}, about 100 MB")
        maven.fetch(target, ("org.apache.kafka", "kafka_2.13", wanted), logging_jar)
        (target / "logging.properties").write_text(logging, encoding="utf-8")
        _format_once(target)

    return made_once(base_folder() / f"kafka_{wanted}", make)


def spark_kafka_libraries() -> Path:
    """Return a folder with the jars of Spark's own Kafka source, fetched by Maven once.

    Raises:
        ServerUnavailableError: there is no Maven, or Maven could not fetch the jars.
    """
    return made_once(base_folder() / "spark_kafka_4.2.0", lambda target: maven.fetch_alone(target, *_SPARK_JARS))


def write_acls_script(folder: Path) -> None:
    """Write the newest Kafka's `kafka-acls.sh` into *folder*: Maven has the jars of Kafka's tools, but no scripts.

    Raises:
        ServerUnavailableError: there is no Java or no Maven, or Maven could not fetch the jars.
    """
    version = KAFKA_VERSIONS[NEWEST]
    jar = ("org.apache.kafka", "kafka-tools", version)
    tools = made_once(base_folder() / f"kafka_tools_{version}", lambda target: maven.fetch_alone(target, jar))
    *java, libraries = java_command(kafka_libraries(version), *QUICK_START)
    command = shlex.join([*java, f"{libraries}:{tools}/*", "org.apache.kafka.tools.AclCommand"])
    script = folder / "kafka-acls.sh"
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    script.chmod(0o755)


def kafka_version(libraries: Path) -> str:
    """Return the version of the jars."""
    names = [match[1] for path in libraries.iterdir() if (match := re.match(r"kafka_2\.13-(.+)\.jar$", path.name))]
    return names[0]


def write_format(libraries: Path, data: Path, number: int, cluster_id: str) -> None:
    """Format an empty data folder without a process of Kafka's storage tool."""
    shutil.copy(libraries / _BOOTSTRAP, data)
    identity = {"version": "1", "node.id": str(number), "directory.id": new_id(), "cluster.id": cluster_id}
    lines = [f"{name}={value}\n" for name, value in identity.items()]
    (data / "meta.properties").write_text("".join(lines), encoding="ascii")


def new_id() -> str:
    """Return a random id in Kafka's form: 22 characters of base64, of which the first is not a dash."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def java_command(libraries: Path, *options: str) -> list[str]:
    """Return the command to which a class of Kafka is added.

    Raises:
        ServerUnavailableError: there is no Java.
    """
    logging = libraries / "logging.properties"
    named = (f"-Dlog4j2.configurationFile={logging}", f"-Dlog4j.configuration=file:{logging}")
    return [str(maven.java()), *options, *named, "-cp", f"{libraries}/*"]


def _format_once(libraries: Path) -> None:
    """Store the storage tool's output: the features of this version, the same for each node of each cluster."""
    progress.say("Kafka's storage tool formats a log for the first time")
    folder = libraries / "format"
    properties = libraries / "format.properties"
    properties.write_text(_FORMAT_PROPERTIES.format(folder=folder), encoding="utf-8")
    tool = ["kafka.tools.StorageTool", "format", "-t", new_id(), "-c", str(properties)]
    run([*java_command(libraries, *QUICK_START), *tool], timeout_s=_FORMAT_TIME_MAX_S)
    (folder / _BOOTSTRAP).rename(libraries / _BOOTSTRAP)
    shutil.rmtree(folder)


def _logging(version: str) -> tuple[tuple[str, str, str], str]:
    """Return the logging library of a version, and its settings."""
    if int(version.partition(".")[0]) >= 4:
        return ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"), _LOG4J_2
    return ("org.slf4j", "slf4j-reload4j", "1.7.36"), _LOG4J_1
