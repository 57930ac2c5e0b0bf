"""A database server's binaries: from PATH, Debian's folders, or apt-get as root.

Installing never starts or creates the package's own instance: a temporary policy-rc.d and a setting of
postgresql-common prevent that, and both are restored afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from txcore_conformance import progress

_POLICY: Final = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT: Final = "#!/bin/sh\n# Written by txcore while it installs a test server; removed afterwards.\nexit 101\n"
_CLUSTER_SETTING: Final = Path("/etc/postgresql-common/createcluster.conf")
_APT_TIME_MAX_S: Final = 600


class ServerUnavailableError(Exception):
    """No server is available here; the text has the reason. A test skips, unless TXCORE_REQUIRE names the server."""


@contextlib.contextmanager
def machine_lock(path: Path) -> Iterator[None]:
    """Hold a lock that all runs on this machine share; the end of the process releases it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_program(name: str, *folders: str) -> Path | None:
    """Return *name* from the *folders* (glob patterns, the last match wins) or from PATH."""
    for folder in folders:
        matches = sorted(Path("/").glob(f"{folder.lstrip('/')}/{name}"), key=_version_key)
        if matches:
            return matches[-1]
    found = shutil.which(name)
    return Path(found) if found else None


def install(*packages: str, first: str = "") -> None:
    """Install Debian packages with apt-get, without starting anything.

    Args:
        first: A package installed before the others so that its setting can be changed (postgresql-common).

    Raises:
        ServerUnavailableError: not root, no apt-get, TXCORE_APT=0, or apt-get failed.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None or os.environ.get("TXCORE_APT") == "0":
        raise ServerUnavailableError(f"not installed, and {' '.join(packages)} can be installed only as root with apt")
    # apt-get waits for dpkg's lock, but not for that of its own lists.
    progress.say(f"apt-get installs {' and '.join(packages)}")
    with machine_lock(Path(tempfile.gettempdir(), "txcore-apt.lock")), _nothing_starts():
        _apt_get("update", "-q")
        if first:
            _apt_get("install", "-y", "--no-install-recommends", first)
        with _no_cluster():
            _apt_get("install", "-y", "--no-install-recommends", *packages)


def _apt_get(*arguments: str) -> None:
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Options::=--force-confold", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program with fixed arguments
            command, env=environment, capture_output=True, text=True, timeout=_APT_TIME_MAX_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"apt-get {arguments[0]} took longer than {_APT_TIME_MAX_S} s") from error
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise ServerUnavailableError(f"apt-get {' '.join(arguments)} failed: {' '.join(last)}")


@contextlib.contextmanager
def _nothing_starts() -> Iterator[None]:
    with _replaced(_POLICY, _POLICY_TEXT, 0o755):
        yield


@contextlib.contextmanager
def _no_cluster() -> Iterator[None]:
    if not _CLUSTER_SETTING.parent.is_dir():
        yield
        return
    with _replaced(_CLUSTER_SETTING, "create_main_cluster = false\n", 0o644):
        yield


@contextlib.contextmanager
def _replaced(path: Path, text: str, mode: int) -> Iterator[None]:
    """Replace a file by *text* and restore it afterwards; the backup of a killed run is restored first."""
    saved = path.with_name(path.name + ".txcore-saved")
    absent = path.with_name(path.name + ".txcore-absent")
    _put_back(path, saved, absent)
    if path.exists():
        shutil.copy2(path, saved)
    else:
        absent.touch()
    path.write_text(text, encoding="ascii")
    path.chmod(mode)
    try:
        yield
    finally:
        _put_back(path, saved, absent)


def _put_back(path: Path, saved: Path, absent: Path) -> None:
    if saved.exists():
        saved.replace(path)
    elif absent.exists():
        path.unlink(missing_ok=True)
        absent.unlink()


def _version_key(path: Path) -> list[int]:
    return [int(part) for part in path.parts if part.isdigit()]
