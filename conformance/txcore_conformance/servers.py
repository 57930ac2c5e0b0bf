"""Real database servers for tests and the demo: started in folders of their own, on free loopback ports.

`postgresql()` and `mariadb()` return a started server, or raise ServerUnavailableError. A server that is given by
TXCORE_POSTGRES_URL or TXCORE_MARIADB_URL is used as it is and cannot be killed. The first run on a machine makes a
template of the data folder; later starts copy it. Processes end with the program that started them.

The servers skip fsync by default: a killed process loses nothing of the page cache, so what a client was promised
at COMMIT is still either written to the file or lost, as the setting under test says.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import ctypes
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from txcore_conformance.server_packages import ServerUnavailableError, find_program, install, machine_lock

__all__ = ["DatabaseServer", "ServerUnavailableError", "is_required", "mariadb", "postgresql"]

_READY_TIME_MAX_S: Final = 60.0
_STOP_TIME_MAX_S: Final = 20.0
_STARTS_MAX: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_numbers = itertools.count(1)


def is_required(name: str) -> bool:
    """Return whether TXCORE_REQUIRE (names separated by commas) makes a missing server a failure, not a skip."""
    wanted = os.environ.get("TXCORE_REQUIRE", "")
    return name in [item.strip() for item in wanted.split(",")]


def postgresql(**settings: str) -> DatabaseServer:
    """Return a running PostgreSQL; *settings* are passed with -c.

    Raises:
        ServerUnavailableError: it cannot be had here.
    """
    url = os.environ.get("TXCORE_POSTGRES_URL")
    if url:
        return _ExternalServer("postgresql", url.replace("postgresql://", "postgresql+psycopg://", 1))
    return _started(PostgreSQLServer(settings))


def mariadb(**settings: str) -> DatabaseServer:
    """Return a running MariaDB; *settings* are passed as options.

    Raises:
        ServerUnavailableError: it cannot be had here.
    """
    url = os.environ.get("TXCORE_MARIADB_URL")
    if url:
        return _ExternalServer("mariadb", url)
    return _started(MariaDBServer(settings))


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
        name = f"txcore_{os.getpid()}_{next(_numbers)}"
        _execute(self.url, f"CREATE DATABASE {name}")
        return _with_database(self.url, name)


class _ExternalServer(DatabaseServer):
    can_be_killed = False

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def start(self) -> None:
        self._refuse()

    def stop(self) -> None:
        """Leave it to its owner."""

    def kill(self) -> None:
        self._refuse()

    def pause(self) -> None:
        self._refuse()

    def resume(self) -> None:
        self._refuse()

    def _refuse(self) -> None:
        raise ServerUnavailableError(f"this {self.name} is run by somebody else")


class _ManagedServer(DatabaseServer):
    """What both servers share: template, folder, process, readiness, signals."""

    stop_signal: signal.Signals

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = {name.replace("_", "-") if "_" in name else name: value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        base = _base_folder()
        with machine_lock(base / f"{self.name}.lock"):
            template = self._template(base)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=base))
            self._own(self.folder)
            _run(["cp", "-a", "--reflink=auto", str(template), str(self.folder / "data")])
        self.port = 0
        atexit.register(self.remove)

    @abc.abstractmethod
    def _template(self, base: Path) -> Path:
        """Return the template of the data folder, made if missing; called under the machine's lock."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    def start(self) -> None:
        assert self._process is None, f"{self.name} is running"
        for attempt in range(_STARTS_MAX):
            if self.port == 0:
                self.port = _free_port()
                self.url = self._url()
            self._spawn()
            if self._wait_until_ready():
                return
            self._reap()
            if attempt == 0 and self._port_is_taken():
                self.port = 0
        raise ServerUnavailableError(f"{self.name} does not start: {self._last_lines()}")

    def stop(self) -> None:
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
        if self._process is None:
            return
        self.pause()  # so that the parent does not see its children die first
        for pid in [*self._children(), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        if self._process is not None:
            for pid in [self._process.pid, *self._children()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            for pid in [*self._children(), self._process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child runs the same atexit hooks
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
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


class PostgreSQLServer(_ManagedServer):
    """PostgreSQL, any version, one database cluster."""

    name = "postgresql"
    stop_signal = signal.SIGINT  # fast shutdown

    def __init__(self, settings: dict[str, str]) -> None:
        self._programs = _postgresql_programs()
        super().__init__(settings)
        self._settings = settings

    def _template(self, base: Path) -> Path:
        folder = self._programs["initdb"].resolve().parent
        template = base / f"template-postgresql-{'-'.join(folder.parts[-2:-1])}"

        def make(target: Path) -> None:
            _run(
                [str(self._programs["initdb"]), "-D", str(target), "-U", "txcore", "-A", "trust", "--no-sync"]
                + ["--encoding=UTF8", "--locale=C", "--no-instructions"],
                as_user=True,
            )

        return _made_once(template, make, self._own)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "150",
            "max_wal_size": "256MB",
            "logging_collector": "off",
        } | self._settings
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._programs["postgres"]), "-D", str(self.folder / "data"), *options]

    def start(self) -> None:
        """Start; a killed postmaster leaves its pid file, which may name a pid that is somebody else's by now."""
        if self._process is None:
            (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        super().start()

    def _url(self) -> str:
        return f"postgresql+psycopg://txcore@127.0.0.1:{self.port}/postgres"


class MariaDBServer(_ManagedServer):
    """MariaDB, InnoDB flushing its log at each commit."""

    name = "mariadb"
    stop_signal = signal.SIGTERM

    def __init__(self, settings: dict[str, str]) -> None:
        self._programs = _mariadb_programs()
        super().__init__(settings)

    def _template(self, base: Path) -> Path:
        version = _run([str(self._programs["mariadbd"]), "--no-defaults", "--version"]).split("Ver ")[-1].split("-")[0]
        template = base / f"template-mariadb-{version}"

        def make(target: Path) -> None:
            _run(
                [str(self._programs["mariadb-install-db"]), "--no-defaults", f"--datadir={target}"]
                + ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=32M"],
                as_user=True,
            )

        return _made_once(template, make, self._own)

    def _command(self) -> list[str]:
        settings = {
            "datadir": str(self.folder / "data"),
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.folder / "s.sock"),
            "pid-file": str(self.folder / "server.pid"),
            "tmpdir": str(self.folder),
            "innodb-flush-log-at-trx-commit": "1",
            "innodb-flush-method": "nosync",
            "innodb-buffer-pool-size": "64M",
            "innodb-log-file-size": "32M",
            "innodb-fast-shutdown": "2",
            "max-connections": "200",
            "performance-schema": "OFF",
        } | self._settings
        options = [f"--{name}={value}" for name, value in settings.items()]
        # `--user` because it refuses to run as root unless told so.
        return [str(self._programs["mariadbd"]), "--no-defaults", f"--user={_user_name()}", "--skip-name-resolve"] + [
            *options
        ]

    def _url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/mysql"


def _started(server: _ManagedServer) -> DatabaseServer:
    try:
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


def _postgresql_programs() -> dict[str, Path]:
    return _programs(
        ("postgres", "initdb"), ("/usr/lib/postgresql/*/bin",), lambda: install("postgresql", first="postgresql-common")
    )


def _mariadb_programs() -> dict[str, Path]:
    return _programs(
        ("mariadbd", "mariadb-install-db"), ("/usr/sbin", "/usr/bin"), lambda: install("mariadb-server-core")
    )


def _programs(names: Sequence[str], folders: Sequence[str], install_them: Callable[[], None]) -> dict[str, Path]:
    with machine_lock(_base_folder() / "packages.lock"):
        for _ in range(2):
            found = {name: path for name in names if (path := find_program(name, *folders)) is not None}
            if len(found) == len(names):
                return found
            install_them()
    raise ServerUnavailableError(f"{' and '.join(names)} are still not found after installing them")


def _base_folder() -> Path:
    """Return the folder of templates and data, which a server's own user must be able to reach."""
    base = Path(os.environ.get("TXCORE_SERVERS") or Path(tempfile.gettempdir()) / f"txcore-servers-{os.getuid()}")
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise ServerUnavailableError(f"{base} belongs to somebody else; set TXCORE_SERVERS to a folder of yours")
    return base


def _made_once(template: Path, make: Callable[[Path], None], own: Callable[[Path], None]) -> Path:
    """Make a template in a folder beside it and rename it, so that an interrupted run leaves none half made."""
    if not template.exists():
        draft = template.with_name(template.name + ".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        own(draft)
        make(draft)
        draft.rename(template)
    return template


def _user_name() -> str:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _unprivileged() -> dict[str, Any]:
    """Return Popen's arguments for a user without rights: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(_user_name())
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _run(command: list[str], *, as_user: bool = False) -> str:
    done = subprocess.run(  # noqa: S603 - programs that were looked up, with our own arguments
        command, capture_output=True, text=True, check=False, cwd="/", **(_unprivileged() if as_user else {})
    )
    if done.returncode != 0:
        raise ServerUnavailableError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


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
