"""Where Kafka and NATS come from: downloaded once into the base folder, or the distribution's own package."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from txcore_conformance.brokers import debian
from txcore_conformance.brokers.fallback import warn
from txcore_conformance.machine import base_folder, machine_lock, made_once, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program, install

NEWEST: Final = "newest"
DISTRIBUTION: Final = "distribution"
KAFKA_VERSIONS: Final = {NEWEST: "4.3.1", "3.9": "3.9.1"}
NATS_VERSIONS: Final = {NEWEST: "2.15.2", "2.9": "2.9.25"}
_GO_MODULE: Final = "github.com/nats-io/nats-server/v2"
_DOWNLOAD_TIME_MAX_S: Final = 900.0
_MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DEPENDENCY: Final = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\n"
)
_POM: Final = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>txcore</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
# Kafka 4 logs through log4j 2, Kafka 3 through the successor of log4j 1; each reads only its own lines.
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
log4j.rootLogger = WARN, console
log4j.appender.console = org.apache.log4j.ConsoleAppender
log4j.appender.console.layout = org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern = %d{ISO8601} %p %c{1}: %m%n
"""


def program(name: str, package: str, *folders: str) -> Path:
    """Return a program of the machine, its Debian package installed when it is missing.

    Raises:
        ServerUnavailableError: it is missing and cannot be installed.
    """
    with machine_lock(base_folder() / "packages.lock"):
        found = find_program(name, *folders)
        if found is None:
            install(package)
            found = find_program(name, *folders)
    if found is None:
        raise ServerUnavailableError(f"{name} is still not found after installing {package}")
    return found


def kafka_libraries(version: str) -> Path:
    """Return a folder with Kafka's jars, fetched by Maven once a version: newest, 3.9, or an exact one.

    Raises:
        ServerUnavailableError: no Maven, or it could not fetch them.
    """
    wanted = KAFKA_VERSIONS.get(version or NEWEST, version)
    base = base_folder()

    def make(target: Path) -> None:
        maven = program("mvn", "maven")
        pom = target / "pom.xml"
        wanted_jars = (("org.apache.kafka", "kafka_2.13", wanted), _logging_jar(wanted))
        lines = "".join(_DEPENDENCY.format(*jar) for jar in wanted_jars)
        pom.write_text(_POM.format(dependencies=lines), encoding="utf-8")
        command = [str(maven), "-q", "-B", "-f", str(pom), _MAVEN_PLUGIN, "-DincludeScope=runtime"]
        run(command, f"-DoutputDirectory={target}", timeout_s=_DOWNLOAD_TIME_MAX_S)
        (target / "logging.properties").write_text(_LOGGING, encoding="utf-8")

    with machine_lock(base / "kafka-download.lock"):
        return made_once(base / f"kafka_{wanted}", make)


def kafka_version(libraries: Path) -> str:
    """Return the version of the jars."""
    names = [match[1] for path in libraries.iterdir() if (match := re.match(r"kafka_2\.13-(.+)\.jar$", path.name))]
    return names[0]


def nats_server(version: str) -> Path:
    """Return a nats-server: newest, 2.9, an exact version, a Debian suite's name, or distribution.

    Numbers come as a Go module. One that cannot be had is replaced by what Debian's testing suite has (for the newest),
    else by the distribution's own, with a warning.

    Raises:
        ServerUnavailableError: not even that one can be had.
    """
    wanted = version or NEWEST
    number = NATS_VERSIONS.get(wanted, wanted)
    base = base_folder()
    with machine_lock(base / "nats-download.lock"):
        if not number[:1].isdigit():
            return _nats_of_suite(base, number)
        try:
            return made_once(base / f"nats_{number}", lambda target: _build_nats(number, target)) / "nats-server"
        except ServerUnavailableError as error:
            reason = error
        for suite in ("testing", DISTRIBUTION) if wanted == NEWEST else (DISTRIBUTION,):
            try:
                found = _nats_of_suite(base, suite)
            except ServerUnavailableError as error:
                reason = error
                continue
            told = run([str(found), "--version"]).strip()
            warn(f"NATS {number} cannot be built, {told} of Debian ({suite}) runs instead: {reason}")
            return found
    raise ServerUnavailableError(f"NATS {number} cannot be had: {reason}")


def _logging_jar(version: str) -> tuple[str, str, str]:
    if int(version.partition(".")[0]) >= 4:
        return ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
    return ("org.slf4j", "slf4j-reload4j", "1.7.36")


def _build_nats(number: str, target: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise ServerUnavailableError("there is no Go on this machine")
    environment = os.environ | {"GOBIN": str(target), "CGO_ENABLED": "0"}
    run([go, "install", f"{_GO_MODULE}@v{number}"], environment=environment, timeout_s=_DOWNLOAD_TIME_MAX_S)


def _nats_of_suite(base: Path, suite: str) -> Path:
    name = debian.codename() if suite == DISTRIBUTION else suite
    if not name:
        raise ServerUnavailableError("this machine's distribution is not Debian")
    folder = made_once(base / f"nats_{name}", lambda target: debian.unpack("nats-server", name, target))
    found = find_program("nats-server", f"{folder}/usr/sbin", f"{folder}/usr/bin")
    if found is None:
        raise ServerUnavailableError(f"Debian's package of {name} has no nats-server in it")
    return found
