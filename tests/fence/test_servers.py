"""The servers that the tests start can be killed and started again, and leave no process or file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from txcore_conformance import servers
from txcore_conformance.server_packages import _replaced


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_processes_end_with_the_program_that_started_them(request, kind, eventually):
    """A server ends with the program that started it, even if the program is killed and cannot clean up."""
    request.getfixturevalue(f"{kind}_server")
    if os.environ.get("TXCORE_POSTGRES_URL") or os.environ.get("TXCORE_MARIADB_URL"):
        pytest.skip("the server does not belong to the tests")
    code = (
        "import os, signal\n"
        "from txcore_conformance import servers\n"
        f"server = servers.{kind}()\n"
        "print(server._process.pid, server.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, _folder = done.stdout.split()
    eventually(lambda: not _runs(pid))


def test_killed_server_starts_again_with_its_data_on_the_same_port(killable):
    """A row that was committed before the kill is there after the start, on the same port."""
    transaction_id = killable.committed()
    url = killable.server.url
    killable.server.kill()
    killable.engine.dispose()
    with pytest.raises(Exception, match=r"(?i)connect"):
        killable.has_order(transaction_id)
    killable.server.start()
    assert killable.server.url == url
    assert killable.has_order(transaction_id)


def test_fresh_databases_are_empty_and_apart(killable):
    """Two databases of one server do not see each other's tables."""
    for _ in range(2):
        engine = create_engine(killable.server.fresh_database(), poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE same_name (x int)"))


def test_foreign_server_cannot_be_killed(monkeypatch):
    """A server whose URL is from the environment cannot be started, killed, paused or resumed."""
    monkeypatch.setenv("TXCORE_POSTGRES_URL", "postgresql://stranger@db.example/theirs")
    server = servers.postgresql()
    assert (server.url, server.can_be_killed) == ("postgresql+psycopg://stranger@db.example/theirs", False)
    for call in (server.start, server.kill, server.pause, server.resume):
        with pytest.raises(servers.ServerUnavailableError, match="not started by this program"):
            call()
    server.stop()
    server.remove()


def test_required_names_are_read_from_the_environment(monkeypatch):
    """TXCORE_REQUIRE turns skips into failures, by name."""
    monkeypatch.setenv("TXCORE_REQUIRE", "postgresql, mariadb")
    assert [servers.is_required(name) for name in ("postgresql", "mariadb", "kafka")] == [True, True, False]
    monkeypatch.delenv("TXCORE_REQUIRE")
    assert not servers.is_required("postgresql")


def test_system_file_is_put_back_whatever_happens(tmp_path):
    """The next installation restores a file that a killed one has replaced, and removes a file that was new."""
    existing, absent = tmp_path / "policy", tmp_path / "other"
    existing.write_text("theirs")
    for path, before in ((existing, "theirs"), (absent, None)):
        killed = _replaced(path, "ours", 0o755)
        killed.__enter__()
        assert path.read_text() == "ours"
        with _replaced(path, "ours again", 0o755):
            assert path.read_text() == "ours again"
        assert (path.read_text() if path.exists() else None) == before
        killed.gen.close()
        assert (path.read_text() if path.exists() else None) == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["policy"]


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
