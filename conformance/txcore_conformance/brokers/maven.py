"""Java's programs: jars that Maven fetches, and the machine's Java."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from txcore_conformance.machine import base_folder, machine_lock, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program, install

Jar = tuple[str, str, str]
"""A jar's group, artifact and version."""
_DOWNLOAD_TIME_MAX_S: Final = 900.0
_MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DEPENDENCY: Final = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\n"
)
_POM: Final = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>txcore</groupId><artifactId>for-tests</artifactId><version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
_ALONE: Final = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>\n"
)


def fetch(target: Path, *jars: Jar) -> None:
    """Let Maven copy jars and what they need at run time into *target*.

    Raises:
        ServerUnavailableError: there is no Maven, or Maven could not fetch the jars.
    """
    _copy(target, _DEPENDENCY, jars, "-DincludeScope=runtime")


def fetch_alone(target: Path, *jars: Jar) -> None:
    """Let Maven copy jars without what they depend on, such as jars whose needs another program brings.

    Raises:
        ServerUnavailableError: there is no Maven, or Maven could not fetch the jars.
    """
    _copy(target, _ALONE, jars)


def _copy(target: Path, dependency: str, jars: tuple[Jar, ...], *options: str) -> None:
    maven = _program("mvn", "maven")
    pom = target / "pom.xml"
    pom.write_text(_POM.format(dependencies="".join(dependency.format(*jar) for jar in jars)), encoding="utf-8")
    command = [str(maven), "-q", "-B", "-Dstyle.color=never", "-f", str(pom), _MAVEN_PLUGIN, *options]
    run(command, f"-DoutputDirectory={target}", timeout_s=_DOWNLOAD_TIME_MAX_S)


def java() -> Path:
    """Return the machine's Java, installed if it is missing.

    Raises:
        ServerUnavailableError: there is no Java.
    """
    return _program("java", "default-jre-headless")


def _program(name: str, package: str) -> Path:
    """Return a program of the machine, after installing its Debian package if it is missing.

    Raises:
        ServerUnavailableError: the program is missing and cannot be installed.
    """
    with machine_lock(base_folder() / "packages.lock"):
        found = find_program(name)
        if found is None:
            install(package)
            found = find_program(name)
    if found is None:
        raise ServerUnavailableError(f"{name} is still not found after installing {package}")
    return found
