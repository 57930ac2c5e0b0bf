"""Where the brokers' programs come from: downloaded once into the base folder, or the distribution's own packages."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txcore_conformance.machine import base_folder, machine_lock, made_once, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program, install

_KAFKA_NEWEST: Final = "4.3.1"
_NATS_NEWEST: Final = "2.15.2"
_DOWNLOAD_TIME_MAX_S: Final = 900.0
_POM: Final = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>txcore</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>{logging[0]}</groupId><artifactId>{logging[1]}</artifactId><version>{logging[2]}</version></dependency>
  </dependencies>
</project>
"""
_LOG4J2: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """RabbitMQ's programs."""

    prefix: tuple[str, ...] = ()

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs one of them."""
        path = {"epmd": "/usr/bin/epmd"}.get(name, f"/usr/lib/rabbitmq/bin/{name}")
        return [*self.prefix, path, *arguments]


def program(name: str, package: str, *folders: str) -> Path:
    """Return a program of the machine, its Debian package installed when it is missing."""
    with machine_lock(base_folder() / "packages.lock"):
        found = find_program(name, *folders)
        if found is None:
            install(package)
            found = find_program(name, *folders)
    if found is None:
        raise ServerUnavailableError(f"{name} is still not found after installing {package}")
    return found


def kafka_libraries(version: str) -> Path:
    """Return a folder with Kafka's jars, fetched from Maven Central once."""
    wanted = version or _KAFKA_NEWEST
    maven = program("mvn", "maven")
    base = base_folder()

    def make(target: Path) -> None:
        pom = target / "pom.xml"
        logging = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
        pom.write_text(_POM.format(version=wanted, logging=logging), encoding="utf-8")
        command = [str(maven), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={target}"], timeout_s=_DOWNLOAD_TIME_MAX_S)
        (target / "logging.properties").write_text(_LOG4J2, encoding="utf-8")

    with machine_lock(base / "kafka-download.lock"):
        return made_once(base / f"kafka_{wanted}", make)


def kafka_version(libraries: Path) -> str:
    """Return the version of the jars."""
    names = [match[1] for path in libraries.iterdir() if (match := re.match(r"kafka_2\.13-(.+)\.jar$", path.name))]
    return names[0]


def nats_server(version: str) -> Path:
    """Return a nats-server of that version."""
    wanted = version or _NATS_NEWEST
    go = shutil.which("go") or ""
    base = base_folder()

    def make(target: Path) -> None:
        run(
            [go, "install", f"github.com/nats-io/nats-server/v2@v{wanted}"],
            environment=_go_environment(target),
            timeout_s=_DOWNLOAD_TIME_MAX_S,
        )

    with machine_lock(base / "nats-download.lock"):
        return made_once(base / f"nats_{wanted}", make) / "nats-server"


def _go_environment(target: Path) -> dict[str, str]:
    return os.environ | {"GOBIN": str(target), "CGO_ENABLED": "0"}


def rabbitmq_installation(version: str) -> Installation:  # noqa: ARG001
    """Return RabbitMQ's programs."""
    program("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin")
    return Installation()
