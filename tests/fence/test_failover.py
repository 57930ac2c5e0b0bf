"""A failover of the fence's database: a promoted standby is the same database, so its checks answer."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
import sqlalchemy
from txcore_conformance import servers

import txcore
from txcore.fence import FenceAnswer

PORT = 29_911
ROOM = "-c max_connections=1000 -c max_wal_senders=50 -c max_worker_processes=50"


class Standby:
    """A copy of a running server, made with pg_basebackup as operators do; the server's user owns its files."""

    def __init__(self, url, folder):
        self.url = sqlalchemy.make_url(url).set(port=PORT)
        self.folder, self.port = folder / "standby", sqlalchemy.make_url(url).port
        engine = sqlalchemy.create_engine(url)
        with engine.connect() as connection:
            data = connection.exec_driver_sql("SHOW data_directory").scalar_one()
            self.user = connection.exec_driver_sql("SELECT current_user").scalar_one()
            version = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
        engine.dispose()
        self.owner = pwd.getpwuid(Path(data).stat().st_uid)
        os.chown(folder, self.owner.pw_uid, self.owner.pw_gid)
        self.tools = Path(f"/usr/lib/postgresql/{int(version) // 10_000}/bin")
        if not (self.tools / "pg_basebackup").exists():
            give_up = pytest.fail if servers.is_required("postgresql") else pytest.skip
            give_up("needs pg_basebackup of the server's version")

    def run(self, tool, *arguments):
        subprocess.run(
            [self.tools / tool, *arguments],
            user=self.owner.pw_uid,
            group=self.owner.pw_gid,
            cwd="/tmp",
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def start(self):
        place = ("-h", "127.0.0.1", "-p", str(self.port), "-U", self.user)
        self.run("pg_basebackup", *place, "-D", str(self.folder), "-R", "-X", "stream")
        options = f"-p {PORT} -k /tmp {ROOM}"
        self.run("pg_ctl", "-D", str(self.folder), "-o", options, "-w", "-l", str(self.folder / "log"), "start")

    def promote(self):
        self.run("pg_ctl", "-D", str(self.folder), "-w", "promote")

    def stop(self):
        if (self.folder / "postmaster.pid").exists():
            self.run("pg_ctl", "-D", str(self.folder), "-m", "immediate", "stop")


@pytest.mark.heavy
def test_promoted_standby_has_the_identity_of_the_primary(replicated):
    """A promoted standby keeps the primary's identity and answers COMMIT for earlier commits, with no adoption."""
    folder = Path(f"/tmp/txcore-failover-{os.getpid()}")
    folder.mkdir(mode=0o700)
    standby = None
    try:
        primary = sqlalchemy.create_engine(replicated.url)
        fence = txcore.SqlFence(primary)
        fence.create()
        named = fence.identity().current
        standby = Standby(replicated.url, folder)
        with primary.begin() as connection:
            fence.insert(connection, b"committed-before", "g")
        standby.start()
        engine = sqlalchemy.create_engine(standby.url)
        promoted = txcore.SqlFence(engine)
        assert named == promoted.identity().current
        standby.promote()
        assert (named, False) == (promoted.identity().current, promoted.identity().is_copy)
        ids = [b"committed-before", b"never-committed!"]
        readings = promoted.check(ids, "g", dict.fromkeys(ids, named))
        assert [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK] == [readings[each].answer for each in ids]
        engine.dispose()
        primary.dispose()
    finally:
        if standby is not None:
            standby.stop()
        shutil.rmtree(folder)
