"""A server's process: its folder, its start and readiness, its signals, and its end with the program's own."""

from __future__ import annotations

import abc
import atexit
import contextlib
import ctypes
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from txcore_conformance.server_packages import ServerUnavailableError, machine_lock

_READY_TIME_MAX_S: Final = 60.0
_STOP_TIME_MAX_S: Final = 20.0
_STARTS_MAX: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_IN_USE: Final = "in-use"
_numbers = itertools.count(1)


class DatabaseServer(abc.ABC):
    """A server to which tests may do anything. Not thread safe.

    Attributes:
        name: postgresql or mariadb.
        url: SQLAlchemy URL of its default database.
        can_be_killed: False for a server that somebody else runs; then only `url` and `fresh_database` work.
    """

    name: str
    url: str
    can_be_killed: bool = True

    @abc.abstractmethod
    def start(self) -> None:
        """Start, on the same port and data as before, and wait until it answers a query."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop in order and wait; nothing happens when it does not run."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill every process of it with SIGKILL and wait until they are gone."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Stop every process of it with SIGSTOP: connections stay open and silent."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Let the paused processes go on."""

    def remove(self) -> None:
        """Stop and delete the data."""
        self.stop()

    def fresh_database(self) -> str:
        """Create an empty database and return its SQLAlchemy URL."""
        name = f"txcore_{os.urandom(3).hex()}_{next(_numbers)}"
        _execute(self.url, f"CREATE DATABASE {name}")
        return _with_database(self.url, name)


class ExternalServer(DatabaseServer):
    """A server that somebody else runs; it can only be used."""

    can_be_killed = False

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def start(self) -> None:
        """Refuse."""
        self._refuse()

    def stop(self) -> None:
        """Leave it to its owner."""

    def kill(self) -> None:
        """Refuse."""
        self._refuse()

    def pause(self) -> None:
        """Refuse."""
        self._refuse()

    def resume(self) -> None:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> None:
        raise ServerUnavailableError(f"this {self.name} is run by somebody else")


class ManagedServer(DatabaseServer):
    """What both servers share: template, folder, process, readiness, signals."""

    stop_signal: signal.Signals

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = {name.replace("_", "-") if "_" in name else name: value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        base = base_folder()
        with machine_lock(base / f"{self.name}.lock"):
            template = self._template(base)
            _remove_left_behind(base, self.name)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=base))
            # Held while this program lives, so that the next one can tell what nobody uses any more.
            self._in_use = (self.folder / _IN_USE).open("w")
            fcntl.flock(self._in_use, fcntl.LOCK_EX)
            self._own(self.folder)
            run(["cp", "-a", "--reflink=auto", str(template), str(self.folder / "data")])
        self.port = 0
        atexit.register(self.remove)

    @abc.abstractmethod
    def _template(self, base: Path) -> Path:
        """Return the template of the data folder, made if missing; called under the machine's lock."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    def start(self) -> None:
        """Start and wait; a port that somebody took between looking and binding is changed for another one."""
        assert self._process is None, f"{self.name} is running"
        is_first = self.port == 0
        for _ in range(_STARTS_MAX):
            if self.port == 0:
                self.port = _free_port()
                self.url = self._url()
            self._spawn()
            if self._wait_until_ready():
                return
            self._reap()
            if is_first and self._port_is_taken():
                self.port = 0
        raise ServerUnavailableError(f"{self.name} does not start: {self._last_lines()}")

    def stop(self) -> None:
        """Ask it to end, and kill it when it does not."""
        if self._process is None or os.getpid() != self._owner:
            return
        self.resume()
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(_STOP_TIME_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reap()

    def kill(self) -> None:
        """Kill parent and children while none of them runs, as a power failure would."""
        if self._process is None:
            return
        self.pause()  # so that the parent does not see its children die first
        for pid in [*self._children(), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        """Stop the parent first, so that it starts no more children."""
        if self._process is not None:
            for pid in [self._process.pid, *self._children()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let children and parent go on."""
        if self._process is not None:
            for pid in [*self._children(), self._process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and delete its folder."""
        if os.getpid() != self._owner:
            return  # a forked child runs the same atexit hooks
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._in_use.close()
        atexit.unregister(self.remove)

    @abc.abstractmethod
    def _url(self) -> str: ...

    def _spawn(self) -> None:
        self._log = (self.folder / "server.log").open("ab")
        is_main = threading.current_thread() is threading.main_thread()
        self._process = subprocess.Popen(  # noqa: S603 - a program that was looked up, with our own arguments
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            start_new_session=True,
            # The kernel's signal is bound to the starting thread, so only the main one may ask for it.
            preexec_fn=_die_with_parent(self.stop_signal) if is_main else None,  # noqa: PLW1509
            **_unprivileged(),
        )

    def _wait_until_ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + _READY_TIME_MAX_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                _execute(self.url, "SELECT 1")
            except Exception:  # noqa: BLE001 - drivers raise many kinds while a server starts
                time.sleep(0.05)
            else:
                return True
        return False

    def _reap(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_TIME_MAX_S)
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _children(self) -> list[int]:
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        try:
            return [int(pid) for pid in path.read_text(encoding="ascii").split()]
        except OSError:
            return []

    def _port_is_taken(self) -> bool:
        return "in use" in self._last_lines()

    def _last_lines(self) -> str:
        try:
            lines = (self.folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "no log"
        return " / ".join(lines[-6:])

    def _own(self, path: Path) -> None:
        user = _unprivileged()
        if user:
            os.chown(path, user["user"], user["group"])


def base_folder() -> Path:
    """Return the folder of templates and data, which a server's own user must be able to reach."""
    base = Path(os.environ.get("TXCORE_SERVERS") or Path(tempfile.gettempdir()) / f"txcore-servers-{os.getuid()}")
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise ServerUnavailableError(f"{base} belongs to somebody else; set TXCORE_SERVERS to a folder of yours")
    return base


def user_name() -> str:
    """Return the user that servers run as."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _unprivileged() -> dict[str, Any]:
    """Return Popen's arguments for a user without rights: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(user_name())
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def run(command: list[str], *options: str, as_user: bool = False) -> str:
    """Run a program to its end and return its output; raises ServerUnavailableError."""
    done = subprocess.run(  # noqa: S603 - programs that were looked up, with our own arguments
        [*command, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **(_unprivileged() if as_user else {}),
    )
    if done.returncode != 0:
        raise ServerUnavailableError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return str(done.stdout)


def _remove_left_behind(base: Path, name: str) -> None:
    for mark in base.glob(f"{name}-*/{_IN_USE}"):
        with mark.open("w") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent, ignore_errors=True)


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _execute(url: str, sql: str) -> None:
    from sqlalchemy import create_engine, text  # noqa: PLC0415 - not needed to import this module
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(sql))


def _with_database(url: str, name: str) -> str:
    from sqlalchemy import make_url  # noqa: PLC0415

    return make_url(url).set(database=name).render_as_string(hide_password=False)
