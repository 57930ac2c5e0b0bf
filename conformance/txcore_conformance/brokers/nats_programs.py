"""NATS's program: built once into the base folder, or from a Debian package."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from txcore_conformance import progress
from txcore_conformance.broker_warnings import warn
from txcore_conformance.brokers import debian
from txcore_conformance.machine import base_folder, made_once, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program

NEWEST: Final = "newest"
DISTRIBUTION: Final = "distribution"
NATS_VERSIONS: Final = {NEWEST: "2.15.2", "2.9": "2.9.25"}
_GO_MODULE: Final = "github.com/nats-io/nats-server/v2"
_DOWNLOAD_TIME_MAX_S: Final = 900.0


def nats_server(version: str) -> Path:
    """Return a nats-server: newest, 2.9, an exact version, a Debian suite's name, or distribution.

    A numbered version is a Go module. If it is not available, the version of Debian's testing suite (for the newest)
    or of the distribution replaces it, with a warning.

    Raises:
        ServerUnavailableError: no replacement is available either.
    """
    wanted = version or NEWEST
    number = NATS_VERSIONS.get(wanted, wanted)
    base = base_folder()
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
        version = run([str(found), "--version"]).strip()
        warn(f"NATS {number} cannot be built, {version} of Debian ({suite}) runs instead: {reason}")
        return found
    raise ServerUnavailableError(f"NATS {number} is not available: {reason}")


def _build_nats(number: str, target: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise ServerUnavailableError("Go is not installed on this machine")
    progress.say(f"Go fetches and builds nats-server {number}")
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
