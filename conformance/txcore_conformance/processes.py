"""A server's process: its folder, ports, start, readiness and signals, and its end together with the program.

The database servers (`servers`) and the brokers (`brokers`) share it. `machine` has the parts that do not depend on
servers.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from txcore_conformance.machine import (
    IN_USE,
    PortLocks,
    base_folder,
    machine_lock,
    members_of,
    remove_abandoned,
    spawn,
    unprivileged,
    wait_until_stopped,
)
from txcore_conformance.server_packages import ServerUnavailableError

_READY_TIME_MAX_S: Final = 60.0
_STOP_TIME_MAX_S: Final = 20.0
_READY_PAUSE_S: Final = 0.05
_STARTS_MAX: Final = 3
_LOG: Final = "server.log"


class ManagedProcess(abc.ABC):
    """A server in its own folder under the base folder, which ends with this program. Not thread safe.

    Attributes:
        name: The kind of server; its folders are named after it.
        folder: Logs, settings and data.
        stop_signal: Signal for an orderly end.
        death_signal: Signal that the kernel sends it when this program dies.
        port: Port for clients; 0 before it is chosen.
        usual_port: Port for clients that people expect; 0 without one.
        takes_usual_ports: Whether the first start takes the usual ports that are free. Any free ones otherwise, so that
            several runs can be live at once.
    """

    name: str
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    ready_time_max_s: float = _READY_TIME_MAX_S
    stop_time_max_s: float = _STOP_TIME_MAX_S
    port: int = 0
    usual_port: int = 0
    takes_usual_ports: bool = False
    runs_unprivileged: bool = False

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        self._ports = PortLocks()
        base = base_folder()
        with machine_lock(base / f"{self.name}.lock"):
            remove_abandoned(base, self.name)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=base))
            # Held while this program runs, so that the next program recognizes unused folders.
            self._in_use = (self.folder / IN_USE).open("w")
            fcntl.flock(self._in_use, fcntl.LOCK_EX)
        if self.runs_unprivileged:
            self._own(self.folder)
        atexit.register(self.remove)

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abc.abstractmethod
    def _assign_ports(self) -> None:
        """Choose ports with `self._ports.reserve()` and set the attributes that depend on them."""

    @abc.abstractmethod
    def _check_ready(self) -> None:
        """Return if the server answers its own protocol, otherwise raise any exception."""

    def _environment(self) -> dict[str, str] | None:
        """Return the environment of the process; None for this program's own."""
        return None

    def _before_spawn(self) -> None:  # noqa: B027 - a default, not a part that is missing
        """Prepare each start, on a folder and ports that exist."""

    def _reserve(self, usual_port: int) -> int:
        """Return a reserved port: the usual one, if this server takes it and it is free."""
        return self._ports.reserve(usual_port if self.takes_usual_ports else 0)

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the server's leading process."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def start(self) -> None:
        """Start and wait; ports that another program took before the server bound them are replaced.

        Raises:
            ServerUnavailableError: the server ended or did not answer in time.
        """
        assert self._process is None, f"{self.name} is running"
        is_first = not self._ports.numbers
        for _ in range(_STARTS_MAX):
            if not self._ports.numbers:
                self._assign_ports()
            self._before_spawn()
            self._spawn()
            if self._wait_until_ready():
                return
            self._end_all()
            if not (is_first and self._port_is_taken()):
                break
            self._ports.release()
        raise ServerUnavailableError(f"{self.name} does not start: {self.last_lines()}")

    def stop(self) -> None:
        """Ask the server to end, and kill it if it does not."""
        if self._process is None or os.getpid() != self._owner:
            return
        self.resume()
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(self.stop_time_max_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._end_all()

    def kill(self) -> None:
        """Kill parent and children while none of them runs, as a power failure would."""
        if self._process is None:
            return
        self._end_all()

    def pause(self) -> None:
        """Pause the server, the parent first, so that it starts no more children."""
        if self._process is not None:
            # Popen's own method does nothing after the process has ended, when its id may be another's.
            self._process.send_signal(signal.SIGSTOP)
            children = self._children()
            self._signal(children, signal.SIGSTOP)
            wait_until_stopped([self._process.pid, *children])

    def resume(self) -> None:
        """Let children and parent continue."""
        if self._process is not None:
            self._signal(self._children(), signal.SIGCONT)
            self._process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server and delete its folder; idempotent."""
        if os.getpid() != self._owner:
            return  # a forked child runs the same atexit hooks
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._in_use.close()
        self._ports.release()
        atexit.unregister(self.remove)

    def _log_file(self) -> Path:
        return self.folder / _LOG

    def last_lines(self, count: int = 6) -> str:
        """Return the last lines of the server's log."""
        try:
            lines = self._log_file().read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "no log"
        return " / ".join(lines[-count:])

    def _spawn(self) -> None:
        log = self._log = self._log_file().open("ab")
        self._process = spawn(
            self._command(),
            log,
            self.folder,
            self.death_signal,
            environment=self._environment(),
            options=unprivileged() if self.runs_unprivileged else {},
        )

    def _wait_until_ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + self.ready_time_max_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._check_ready()
            except Exception:  # noqa: BLE001 - drivers raise many kinds while a server starts
                time.sleep(_READY_PAUSE_S)
            else:
                return True
        return False

    def _end_all(self) -> None:
        """Kill the server's remaining processes, and wait."""
        if self._process is not None:
            self.pause()  # so that the parent does not see its children die first
            self._signal(self._children(), signal.SIGKILL)
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    @staticmethod
    def _signal(pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _children(self) -> list[int]:
        """Return every process of the session that the server leads, and all descendants."""
        assert self._process is not None
        return members_of(self._process.pid)

    def _port_is_taken(self) -> bool:
        lines = self.last_lines(200)
        return "in use" in lines or "eaddrinuse" in lines

    def _own(self, path: Path) -> None:
        user = unprivileged()
        if user:
            os.chown(path, user["user"], user["group"])
