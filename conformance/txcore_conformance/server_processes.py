"""A database server as tests use it, and its template of the data folder, which each start copies."""

from __future__ import annotations

import abc
import itertools
import os
import signal
from pathlib import Path

from txcore_conformance.machine import base_folder, machine_lock, run
from txcore_conformance.processes import ManagedProcess
from txcore_conformance.server_packages import ServerUnavailableError

_numbers = itertools.count(1)


class DatabaseServer(abc.ABC):
    """A server that tests may use, kill and pause. Not thread safe.

    Attributes:
        name: postgresql or mariadb.
        url: SQLAlchemy URL of its default database.
        can_be_killed: False for a server that another program started; then only `url` and `fresh_database` work.
    """

    name: str
    url: str
    can_be_killed: bool = True

    @abc.abstractmethod
    def start(self) -> None:
        """Start the server on the same port and data as before, and wait until it answers a query."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the server in order and wait; do nothing if the server does not run."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill every process of the server with SIGKILL and wait until they are gone."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Stop every process of the server with SIGSTOP: connections stay open and silent."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Let the paused processes continue."""

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()

    def fresh_database(self) -> str:
        """Create an empty database and return its SQLAlchemy URL."""
        name = f"txcore_{os.urandom(3).hex()}_{next(_numbers)}"
        _execute(self.url, f"CREATE DATABASE {name}")
        return _with_database(self.url, name)


class ExternalServer(DatabaseServer):
    """A server that another program started; it can only be used."""

    can_be_killed = False

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def start(self) -> None:
        """Refuse."""
        self._refuse()

    def stop(self) -> None:
        """Do nothing: the server's owner stops it."""

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
        raise ServerUnavailableError(f"this {self.name} was not started by this program")


class ManagedServer(ManagedProcess, DatabaseServer):
    """Base of both servers, with their template, port, settings and readiness."""

    stop_signal: signal.Signals
    runs_unprivileged = True

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = {name.replace("_", "-") if "_" in name else name: value for name, value in settings.items()}
        base = base_folder()
        with machine_lock(base / f"{self.name}-template.lock"):
            template = self._template(base)
        super().__init__()
        self.death_signal = self.stop_signal
        run(["cp", "-a", "--reflink=auto", str(template), str(self.folder / "data")])
        self.port = 0

    @abc.abstractmethod
    def _template(self, base: Path) -> Path:
        """Return the template of the data folder, made if missing; called under the machine's lock."""

    @abc.abstractmethod
    def _url(self) -> str: ...

    def _assign_ports(self) -> None:
        self.port = self._reserve(self.usual_port)
        self.url = self._url()

    def _check_ready(self) -> None:
        _execute(self.url, "SELECT 1")


def _execute(url: str, sql: str) -> None:
    from sqlalchemy import create_engine, text  # noqa: PLC0415 - not needed to import this module
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(sql))


def _with_database(url: str, name: str) -> str:
    from sqlalchemy import make_url  # noqa: PLC0415

    return make_url(url).set(database=name).render_as_string(hide_password=False)
