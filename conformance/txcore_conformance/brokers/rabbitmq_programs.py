"""RabbitMQ's programs, from the distribution's package or a small system of another Debian suite."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txcore_conformance.broker_warnings import warn
from txcore_conformance.brokers import debian
from txcore_conformance.machine import base_folder, machine_lock, made_once, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program, install

NEWEST: Final = "newest"
DISTRIBUTION: Final = "distribution"
#: The Debian suite of each version; the suite of the newest version changes with time.
SUITES: Final = {"3.10": "bookworm", "4.0": "trixie", NEWEST: "testing"}
_FOLDER: Final = "/usr/lib/rabbitmq/bin"
_PACKAGE: Final = "rabbitmq-server"


@dataclass(frozen=True, slots=True)
class Installation:
    """RabbitMQ's programs, on the machine or in a separate system."""

    prefix: tuple[str, ...] = ()

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs one of the programs; the process becomes that program."""
        # Not the wrappers in /usr/sbin, which change the user and the folder.
        path = "/usr/bin/epmd" if name == "epmd" else f"{_FOLDER}/{name}"
        return [*self.prefix, path, *arguments]


def rabbitmq_installation(version: str) -> Installation:
    """Return RabbitMQ in a version: 3.10, 4.0, newest, a Debian suite's name, or distribution.

    If a suite is not available, the distribution's own version replaces it, with a warning.

    Raises:
        ServerUnavailableError: the distribution's version is not available either.
    """
    wanted = version or NEWEST
    suite = SUITES.get(wanted, wanted)
    if wanted == DISTRIBUTION or suite == debian.codename():
        return _of_the_distribution()
    try:
        return _of_suite(base_folder(), suite)
    except ServerUnavailableError as error:
        found = _of_the_distribution()
        warn(f"RabbitMQ {wanted} is not available, the distribution's own version runs instead: {error}")
        return found


def _of_suite(base: Path, suite: str) -> Installation:
    root = made_once(base / f"rabbitmq_{suite}", lambda target: debian.make_root(_PACKAGE, suite, target))
    found = Installation(debian.inside(root, base))
    run([*found.prefix, "true"])  # fails unless mounts and chroot are allowed here
    return found


def _of_the_distribution() -> Installation:
    with machine_lock(base_folder() / "packages.lock"):
        if find_program(_PACKAGE, _FOLDER) is None or shutil.which("epmd") is None:
            install(_PACKAGE)
    if find_program(_PACKAGE, _FOLDER) is None:
        raise ServerUnavailableError(f"{_PACKAGE} is still not found after installing it")
    return Installation()
