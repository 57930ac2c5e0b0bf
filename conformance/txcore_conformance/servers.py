"""Real database servers for tests and the demo, started in folders of their own, on free loopback ports.

`postgresql()` and `mariadb()` return a started server, or raise ServerUnavailableError. A server in
TXCORE_POSTGRES_URL or TXCORE_MARIADB_URL is used unchanged and cannot be killed. The first run on a machine makes a
template of the data folder; later starts copy it. Processes end with the program that started them.

The servers skip fsync by default: a killed process loses nothing of the page cache, so a transaction after COMMIT is
still either written to the file or lost, by the setting under test.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from txcore_conformance.machine import base_folder, machine_lock, made_once, run, user_name
from txcore_conformance.server_packages import ServerUnavailableError, find_program, install
from txcore_conformance.server_processes import DatabaseServer, ExternalServer, ManagedServer

__all__ = ["DatabaseServer", "ServerUnavailableError", "database_url", "is_required", "mariadb", "postgresql"]


def is_required(name: str) -> bool:
    """Return whether TXCORE_REQUIRE (names separated by commas) makes a missing server a failure, not a skip."""
    wanted = os.environ.get("TXCORE_REQUIRE", "")
    return bool(name) and name in [item.strip() for item in wanted.split(",")]


def postgresql(*, takes_usual_ports: bool = False, **settings: str) -> DatabaseServer:
    """Return a running PostgreSQL, on port 5432 if it is to take usual ports; *settings* are passed with -c.

    Raises:
        ServerUnavailableError: the server is not available here.
    """
    url = os.environ.get("TXCORE_POSTGRES_URL")
    if url:
        return ExternalServer("postgresql", url.replace("postgresql://", "postgresql+psycopg://", 1))
    return _started(PostgreSQLServer(settings), takes_usual_ports=takes_usual_ports)


def mariadb(*, takes_usual_ports: bool = False, **settings: str) -> DatabaseServer:
    """Return a running MariaDB, on port 3306 if it is to take usual ports; *settings* are passed as options.

    Raises:
        ServerUnavailableError: the server is not available here.
    """
    url = os.environ.get("TXCORE_MARIADB_URL")
    if url:
        return ExternalServer("mariadb", url)
    return _started(MariaDBServer(settings), takes_usual_ports=takes_usual_ports)


@contextlib.contextmanager
def database_url(kind: str) -> Iterator[str]:
    """Start a database for one run ("postgresql" or "mariadb") and provide its URL; "" for any other *kind*.

    Raises:
        ServerUnavailableError: the server is not available here.
    """
    starts = {"postgresql": postgresql, "mariadb": mariadb}
    if kind not in starts:
        yield ""
        return
    server = starts[kind]()
    try:
        yield server.url
    finally:
        server.remove()


class PostgreSQLServer(ManagedServer):
    """PostgreSQL of any version, with one database cluster."""

    name = "postgresql"
    stop_signal = signal.SIGINT  # fast shutdown
    usual_port = 5432

    def __init__(self, settings: dict[str, str]) -> None:
        self._programs = _postgresql_programs()
        super().__init__(settings)
        self._settings = settings

    def _template(self, base: Path) -> Path:
        folder = self._programs["initdb"].resolve().parent
        template = base / f"template-postgresql-{'-'.join(folder.parts[-2:-1])}"

        def make(target: Path) -> None:
            run(
                [str(self._programs["initdb"]), "-D", str(target), "-U", "txcore", "-A", "trust", "--no-sync"],
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
                as_user=True,
            )

        return made_once(template, make, self._own)

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
        """Start the server without a killed postmaster's pid file, whose pid may belong to another process now."""
        if self._process is None:
            (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        super().start()

    def _url(self) -> str:
        return f"postgresql+psycopg://txcore@127.0.0.1:{self.port}/postgres"


class MariaDBServer(ManagedServer):
    """MariaDB, in which InnoDB flushes its log at each commit."""

    name = "mariadb"
    stop_signal = signal.SIGTERM
    usual_port = 3306

    def __init__(self, settings: dict[str, str]) -> None:
        self._programs = _mariadb_programs()
        super().__init__(settings)

    def _template(self, base: Path) -> Path:
        version = run([str(self._programs["mariadbd"]), "--no-defaults", "--version"]).split("Ver ")[-1].split("-")[0]
        template = base / f"template-mariadb-{version}"

        def make(target: Path) -> None:
            run(
                [str(self._programs["mariadb-install-db"]), "--no-defaults", f"--datadir={target}"],
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=32M",
                as_user=True,
            )

        return made_once(template, make, self._own)

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
        # Without `--user` it refuses to run as root.
        program = str(self._programs["mariadbd"])
        return [program, "--no-defaults", f"--user={user_name()}", "--skip-name-resolve", *options]

    def _url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/mysql"


def _started(server: ManagedServer, *, takes_usual_ports: bool) -> DatabaseServer:
    server.takes_usual_ports = takes_usual_ports
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
        ("mariadbd", "mariadb-install-db", "my_print_defaults"),
        ("/usr/sbin", "/usr/bin"),
        lambda: install("mariadb-server-core", "mariadb-client-core"),
    )


def _programs(names: Sequence[str], folders: Sequence[str], install_them: Callable[[], None]) -> dict[str, Path]:
    with machine_lock(base_folder() / "packages.lock"):
        for _ in range(2):
            found = {name: path for name in names if (path := find_program(name, *folders)) is not None}
            if len(found) == len(names):
                return found
            install_them()
    raise ServerUnavailableError(f"{' and '.join(names)} are still not found after installing them")
