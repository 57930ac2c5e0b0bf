"""Programs of another Debian suite than the machine's, without changes to the machine's own packages or sources.

The mirror is the one that the machine's own apt uses.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from txcore_conformance import progress
from txcore_conformance.machine import run
from txcore_conformance.server_packages import ServerUnavailableError, install

_DOWNLOAD_TIME_MAX_S: Final = 900.0
_SCRIPT: Final = Path("/usr/share/debootstrap/scripts/sid")
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TARGETS: Final = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
_PACKAGES_OF_DEBOOTSTRAP: Final = ("debootstrap", "debian-archive-keyring", "util-linux", "mount")


def codename() -> str:
    """Return the machine's suite; "" if it is not Debian."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = dict(line.partition("=")[::2] for line in lines)
    return values.get("VERSION_CODENAME", "").strip('"') if values.get("ID", "").strip('"') == "debian" else ""


def mirror() -> str:
    """Return the address of the Debian archive that the machine's apt uses.

    Raises:
        ServerUnavailableError: there is no apt, or no such archive in its sources.
    """
    if shutil.which("apt-get") is None:
        raise ServerUnavailableError("there is no apt-get on this machine")
    found = run(_TARGETS).split()
    if not found and os.geteuid() == 0:
        run(["apt-get", "update", "-q"], timeout_s=_DOWNLOAD_TIME_MAX_S)
        found = run(_TARGETS).split()
    if not found:
        raise ServerUnavailableError("apt's sources name no Debian archive")
    return min(found)


def unpack(package: str, suite: str, target: Path) -> None:
    """Download one package of a suite with an apt state of its own, and unpack it into *target*.

    Raises:
        ServerUnavailableError: no apt, no Debian archive, or the download failed.
    """
    progress.say(f"apt-get fetches {package} of Debian {suite}")
    source = mirror()
    state = target / ".apt"
    for folder in ("lists/partial", "cache/archives/partial", "empty"):
        (state / folder).mkdir(parents=True)
    sources = state / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {source} {suite} main\n", encoding="utf-8")
    (state / "status").touch()
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": state / "empty",
        "Dir::Etc::preferencesparts": state / "empty",
        "Dir::Etc::preferences": state / "none",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    run(["apt-get", *options, "update", "-q"], timeout_s=_DOWNLOAD_TIME_MAX_S)
    download = ["sh", "-c", 'cd "$0" && exec "$@"', str(state), "apt-get", *options, "download", "-q", package]
    run(download, timeout_s=_DOWNLOAD_TIME_MAX_S)
    for archive in state.glob("*.deb"):
        run(["dpkg", "-x", str(archive), str(target)])
    shutil.rmtree(state)


def make_root(package: str, suite: str, target: Path) -> None:
    """Make a minimal system of a suite with one package in it; about 400 MB.

    Raises:
        ServerUnavailableError: not root, no debootstrap, or debootstrap failed.
    """
    if os.geteuid() != 0:
        raise ServerUnavailableError(f"a system of Debian {suite} is made by root only")
    if not _SCRIPT.exists() or not _KEYRING.exists() or shutil.which("unshare") is None:
        install(*_PACKAGES_OF_DEBOOTSTRAP)
    progress.say(f"debootstrap makes a small system of Debian {suite} with {package}, about 400 MB")
    include = f"--include=ca-certificates,{package}"
    command = ["debootstrap", "--variant=minbase", f"--keyring={_KEYRING}", include, suite, str(target), mirror()]
    # In a mount namespace of its own, so that its mounts end with it in any case.
    run([*_own_mounts(), *command, str(_SCRIPT)], environment=_environment(), timeout_s=_DOWNLOAD_TIME_MAX_S)
    shutil.rmtree(target / "var" / "cache" / "apt" / "archives", ignore_errors=True)
    with (target / "etc" / "hosts").open("a", encoding="ascii") as hosts:
        hosts.write("127.0.0.1 localhost\n")


def inside(root: Path, shared: Path) -> tuple[str, ...]:
    """Return the command that runs another command in a system made by `make_root`, with the folder *shared*.

    The process becomes that other command, and its mounts end with it.
    """
    steps = (
        'mkdir -p "$0$1" && mount --rbind "$1" "$0$1" && mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev"',
        'root=$0; shift; exec chroot "$root" "$@"',
    )
    return (*_own_mounts(), "sh", "-c", " && ".join(steps), str(root), str(shared))


def _own_mounts() -> tuple[str, ...]:
    return ("unshare", "--mount", "--propagation", "private")


def _environment() -> dict[str, str]:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    proxy = run(["apt-config", "shell", "proxy", "Acquire::http::Proxy"]).strip()
    if proxy:
        environment.setdefault("http_proxy", proxy.partition("=")[2].strip("'\""))
    return environment
