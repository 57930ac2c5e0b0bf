"""Physical copies of a running PostgreSQL server: a standby, and a recovery to an earlier point.

Copies are made with `pg_basebackup`, as operators make them; the user that owns the server's files owns theirs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from txcore_conformance.machine import PortLocks
from txcore_conformance.server_packages import ServerUnavailableError

#: No less than the first server has, or the copy refuses to start.
ROOM: Final = "-c max_connections=1000 -c max_wal_senders=50 -c max_worker_processes=50"
ARCHIVING: Final = {"wal_level": "replica", "archive_mode": "on", "archive_timeout": "0"}


class PhysicalCopy:
    """A copy of the server at *url*, in a folder of its own, which leaving the block deletes.

    Args:
        url: SQLAlchemy URL of the server to copy.
        archive: Folder with its archived write-ahead log, for `recover`.

    Raises:
        ServerUnavailableError: `pg_basebackup` of the server's version is not installed.
    """

    def __init__(self, url: str, archive: Path | None = None) -> None:
        self._origin, self._archive, self._ports = make_url(url), archive, PortLocks()
        self.url = self._origin.set(port=self._ports.reserve()).render_as_string(hide_password=False)
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            data = connection.exec_driver_sql("SHOW data_directory").scalar_one()
            version = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
        self._tools = Path(f"/usr/lib/postgresql/{int(version) // 10_000}/bin")
        if not (self._tools / "pg_basebackup").exists():
            raise ServerUnavailableError("pg_basebackup of the server's version is not installed")
        self._owner = pwd.getpwuid(Path(data).stat().st_uid)
        self._base = Path(tempfile.mkdtemp(prefix="txcore-copy-"))
        os.chown(self._base, self._owner.pw_uid, self._owner.pw_gid)
        self._data = self._base / "data"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._base)
        self._ports.release()

    def take(self) -> None:
        """Copy the running server's files."""
        place = ("-h", "127.0.0.1", "-p", str(self._origin.port), "-U", str(self._origin.username))
        self._run("pg_basebackup", *place, "-D", str(self._data), "-R", "-X", "stream", "-c", "fast")

    def start(self) -> None:
        """Start the copy and wait until it answers: as a standby, until `promote`."""
        port = make_url(self.url).port
        options = f"-p {port} -k {self._base} -c archive_mode=off {ROOM}"
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-w", "-l", str(self._base / "log"), "start")

    def recover(self, point: str) -> None:
        """Start the copy as a server of its own, in the state of the restore point *point*."""
        (self._data / "standby.signal").rename(self._data / "recovery.signal")
        with (self._data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(
                f"primary_conninfo = ''\nrestore_command = 'cp {self._archive}/%f %p'\n"
                f"recovery_target_name = '{point}'\nrecovery_target_action = 'promote'\n"
            )
        self.start()

    def promote(self) -> None:
        """Make the standby a server that takes writes."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "promote")

    def stop(self) -> None:
        """Stop the copy at once; do nothing if it does not run."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def _run(self, tool: str, *arguments: str) -> None:
        subprocess.run(  # noqa: S603 - programs of PostgreSQL
            [self._tools / tool, *arguments],
            user=self._owner.pw_uid,
            group=self._owner.pw_gid,
            cwd=self._base,
            stdout=subprocess.DEVNULL,
            check=True,
        )
