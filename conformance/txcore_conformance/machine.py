"""Resources that servers share on this machine: a base folder, locks, ports, and processes that end with this program.

All files are under `base_folder()`, which several runs use at once. A shared folder is made once, under a machine lock;
a running server's folder and ports are locked by the run that uses them; the next run removes the folders of a killed
run.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Final

from txcore_conformance.server_packages import ServerUnavailableError, machine_lock

__all__ = [
    "IN_USE",
    "PortLocks",
    "base_folder",
    "die_with_parent",
    "lock_port",
    "machine_lock",
    "made_once",
    "members_of",
    "remove_abandoned",
    "run",
    "spawn",
    "stacks_of",
    "unprivileged",
    "user_name",
    "wait_until_stopped",
]

#: Name of the file in a server's folder that its program holds locked.
IN_USE: Final = "in-use"
_PR_SET_PDEATHSIG: Final = 1
_PORTS_BELOW_EPHEMERAL: Final = 12_000
_PORT_TRIES_MAX: Final = 500
_SAID_MAX: Final = 500
_STOPPED_MAX_S: Final = 5.0
_STACKS_MAX_S: Final = 5.0
_STACKS_POLL_S: Final = 0.05
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")


class PortLocks:
    """Loopback ports that no other run on this machine gets while this run holds them.

    They are outside the range from which the kernel takes the local ports of outgoing connections: inside it, a client
    that retries while the server is down may get the server's port, and may even connect to itself.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._files: list[IO[str]] = []

    def reserve(self, wanted: int = 0) -> int:
        """Return *wanted* if it is free, otherwise any free one; it is reserved until `release` or the process ends.

        Raises:
            ServerUnavailableError: no port is free.
        """
        if wanted and self._takes(wanted):
            return wanted
        low = _first_port()
        for _ in range(_PORT_TRIES_MAX):
            number = random.randrange(low, low + _PORTS_BELOW_EPHEMERAL)
            if self._takes(number):
                return number
        raise ServerUnavailableError("no free port on 127.0.0.1")

    def _takes(self, number: int) -> bool:
        """Reserve a port and return True, or return False if another program has it."""
        file = lock_port(number)
        if file is None:
            return False
        if not _can_bind(number):
            file.close()
            return False
        self._files.append(file)
        self.numbers.append(number)
        return True

    def release(self) -> None:
        """Release all reserved ports."""
        for file in self._files:
            file.close()
        self._files.clear()
        self.numbers.clear()


def lock_port(number: int | str) -> IO[str] | None:
    """Return the open lock file of a port, or None if another run holds it."""
    folder = base_folder() / "ports"
    folder.mkdir(exist_ok=True)
    file = (folder / str(number)).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def base_folder() -> Path:
    """Return the folder of templates and data, which a server's own user must be able to reach."""
    base = Path(os.environ.get("TXCORE_SERVERS") or Path(tempfile.gettempdir()) / f"txcore-servers-{os.getuid()}")
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise ServerUnavailableError(f"{base} belongs to another user; set TXCORE_SERVERS to a folder of yours")
    return base


def made_once(folder: Path, make: Callable[[Path], None], own: Callable[[Path], None] = lambda _: None) -> Path:
    """Make a folder unless it exists, under another name, then rename it, so that it is never incomplete.

    Other runs that need the same folder wait for it.
    """
    if folder.exists():
        return folder
    with machine_lock(folder.with_name(folder.name + ".lock")):
        if not folder.exists():
            draft = folder.with_name(folder.name + ".draft")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=0o700)
            own(draft)
            try:
                make(draft)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            draft.rename(folder)
    return folder


def remove_abandoned(base: Path, name: str) -> None:
    """Delete the folders of servers whose program has ended; called under the machine's lock."""
    for mark in base.glob(f"{name}-*/{IN_USE}"):
        with contextlib.suppress(FileNotFoundError), mark.open("w") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent, ignore_errors=True)


def user_name() -> str:
    """Return the user that database servers run as."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def run(
    command: Sequence[str],
    *options: str,
    as_user: bool = False,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a program until it ends and return its output; raises ServerUnavailableError."""
    try:
        done = subprocess.run(  # noqa: S603 - known programs with txcore's arguments
            [*command, *options],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            env=None if environment is None else dict(environment),
            timeout=timeout_s,
            **(unprivileged() if as_user else {}),
        )
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"{command[0]} took longer than {timeout_s} s") from error
    except FileNotFoundError as error:
        raise ServerUnavailableError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        said = _ANSI.sub("", done.stderr).strip() or _ANSI.sub("", done.stdout).strip()
        raise ServerUnavailableError(f"{command[0]} failed: {said[:_SAID_MAX]}")
    return str(done.stdout)


def spawn(
    command: Sequence[str],
    log: IO[bytes],
    folder: Path,
    death_signal: signal.Signals,
    *,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which the kernel ends when this program does; from any thread."""
    started: subprocess.Popen[bytes] = _spawner().call(
        lambda: subprocess.Popen(  # noqa: S603 - a known program with txcore's arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=None if environment is None else dict(environment),
            start_new_session=True,
            preexec_fn=die_with_parent(death_signal),  # noqa: PLW1509
            **(options or {}),
        )
    )
    return started


def members_of(leader: int) -> list[int]:
    """Return the processes of a session and all descendants of its leader, the leader left out."""
    sessions: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            sessions[int(path.parent.name)] = (int(fields[1]), int(fields[3]))
    found = {pid for pid, (_, session) in sessions.items() if session == leader} | {leader}
    while more := {pid for pid, (parent, _) in sessions.items() if parent in found} - found:
        found |= more
    return sorted(found - {leader})


def stacks_of(popen: subprocess.Popen[bytes], log: Path) -> str:
    """Return the stacks of a process's threads; SIGUSR1 makes it write them to *log* (`faulthandler.register`).

    The text is empty if the process has ended, or writes none within 5 s.
    """
    size = log.stat().st_size
    popen.send_signal(signal.SIGUSR1)
    deadline_s = time.monotonic() + _STACKS_MAX_S
    while popen.poll() is None and time.monotonic() < deadline_s:
        text = log.read_bytes()[size:].decode(errors="replace")
        if "in <module>" in text:  # the end of the main thread's stack, which is the last one
            return text
        time.sleep(_STACKS_POLL_S)
    return ""


def wait_until_stopped(pids: Sequence[int]) -> None:
    """Wait, for 5 s at most, until no thread of these processes runs, after SIGSTOP was sent to them.

    On a busy machine a thread runs for another moment: long enough to answer, or to take a lock that it then holds.
    """
    deadline_s = time.monotonic() + _STOPPED_MAX_S
    while any(map(_is_running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _is_running(pid: int) -> bool:
    try:
        stats = [each.read_text(encoding="utf-8") for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False
    return any(stat.rpartition(")")[2].split()[0] not in "TtZX" for stat in stats)


class _Spawner:
    """A thread that runs as long as the process: the kernel sends the death signal when the starting *thread* ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="txcore-spawner", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._calls.put((function, future))
        return future.result()

    def _run(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                future.set_exception(error)


_spawners: list[_Spawner] = []
_spawners_lock = threading.Lock()


def _spawner() -> _Spawner:
    with _spawners_lock:
        if not _spawners or _spawners[0].pid != os.getpid():
            _spawners[:] = [_Spawner()]
        return _spawners[0]


def unprivileged() -> dict[str, Any]:
    """Return Popen's arguments for a user without rights: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(user_name())
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a function for a new process, with which the kernel sends it *number* when the starting thread ends."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _first_port() -> int:
    """Return the first port of a range that the kernel does not use for outgoing connections."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except OSError:
        return 20_000
    if low - _PORTS_BELOW_EPHEMERAL > 1024:
        return low - _PORTS_BELOW_EPHEMERAL
    return min(high + 1, 65_535 - _PORTS_BELOW_EPHEMERAL)


def _can_bind(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True
