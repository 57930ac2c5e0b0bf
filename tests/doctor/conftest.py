"""Servers whose settings the doctor accepts, and fixtures that run a single check.

A test that breaks the setting of a check is marked `breaks("check.id")`; `test_docs.py` requires one for each check.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from txcore_conformance import brokers, servers
from txcore_conformance.required import obtained

import txcore
from txcore.cli import main
from txcore.clock import SystemClock
from txcore.doctor.callback_checks import callback_examination
from txcore.doctor.database_checks import database_examination
from txcore.findings import Examination, Finding, Level, Request, examine
from txcore.message_table import Mode
from txcore.registry import open_doctor


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "breaks(check): breaks what the doctor's check is about and sees its line")


class Forwarder:
    """Passes connections to an address of this machine beyond its loopback on to a server, as from another machine."""

    def __init__(self, host: str, port: int) -> None:
        self._listener = socket.create_server((host, 0))
        self._port = port
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        source.close()

    def close(self) -> None:
        """Accept no connections any more."""
        self._listener.close()


class ShiftedClock(SystemClock):
    """This machine's clock, shifted by *shift_ms*."""

    def __init__(self, shift_ms: int) -> None:
        super().__init__()
        self._shift_ms = shift_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._shift_ms


def finding_of(examination: Examination[Any], name: str) -> Finding:
    """Run one check alone, without the checks that it needs."""
    check = next(check for check in examination.checks if check.name == name)
    try:
        (line,) = examine(Examination([replace(check, needs="")], examination.subject, examination.close)).lines
    finally:
        examination.close()
    return line.finding


@dataclass
class Look:
    """One check: each call runs it again and compares the level and the text of its line."""

    examination: Callable[[], Examination[Any]]
    name: str
    patience_s: float = 0.0  #: seconds in which a cluster may not yet know of the change

    def __call__(self, level: str, *words: str) -> Finding:
        pause, deadline_s = threading.Event(), time.monotonic() + self.patience_s
        while True:
            finding = finding_of(self.examination(), self.name)
            said = f"{finding.text} -> {finding.change}"
            if time.monotonic() > deadline_s or (finding.level == level and all(word in said for word in words)):
                break
            pause.wait(0.2)
        assert finding.level == level, said
        assert [word for word in words if word not in said] == [], said
        assert bool(finding.change) == (finding.level is not Level.OK) or not words, said
        return finding


@pytest.fixture
def database_line(request: pytest.FixtureRequest) -> Callable[..., Look]:
    """Return a function that makes the marked check for a database."""

    def make(url: Any, **options: Any) -> Look:
        return Look(lambda: database_examination(url, **options), _marked(request))

    return make


@pytest.fixture
def callback_line(request: pytest.FixtureRequest) -> Callable[[str], Look]:
    """Return a function that makes the marked check for a callback."""
    return lambda url: Look(lambda: callback_examination((url,)), _marked(request))


@pytest.fixture
def broker_line(request: pytest.FixtureRequest) -> Callable[..., Look]:
    """Return a function that makes the marked check for a broker, through its plugin."""

    def make(url: str, group: str, patience_s: float = 0.0, **options: Any) -> Look:
        def examination() -> Examination[Any]:
            found = open_doctor(url, Request(group, **options))
            assert found is not None
            return found

        return Look(examination, _marked(request), patience_s)

    return make


@pytest.fixture
def make_group() -> Callable[..., None]:
    """Make a group as its first producer would."""

    def make(url: str, group: str, partitions: int | None = None) -> None:
        backend = txcore.connect(url)
        try:
            backend.ensure_group(group, partitions).result(30)
        finally:
            backend.close().result(10)

    return make


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition holds, for at most thirty seconds."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in thirty seconds"
            pause.wait(0.05)

    return wait


@pytest.fixture
def from_elsewhere() -> Iterator[Callable[[str], str]]:
    """Return a function that changes a server's URL to one that does not name the loopback, and leads there."""
    made: list[Forwarder] = []

    def change(url: str) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing
            except OSError:
                pytest.skip("this machine has no address beyond its loopback")
            host = probe.getsockname()[0]
        found = re.search(r"(127\.0\.0\.1|localhost):(\d+)", url)
        assert found
        made.append(Forwarder(host, int(found[2])))
        return url.replace(found[0], made[-1].address)

    yield change
    for each in made:
        each.close()


@pytest.fixture
def execute() -> Callable[[str, str], None]:
    """Run one statement on a database, in autocommit."""

    def run(url: str, statement: str) -> None:
        with create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(statement))

    return run


DELAYED = (
    "INSERT INTO txcore_tx_later (transaction_id, message_index, producer_group, lane, slot, due) "
    "SELECT pruned_below, 0, 'shop', 0, 0, 1 FROM txcore_tx_meta"
)
"""A statement that makes a delayed message, with the lowest id."""


@pytest.fixture
def expect_message_table(
    database_line: Callable[..., Look], execute: Callable[[str, str], None]
) -> Callable[[str], None]:
    """Without the message table mode half is OK, and the other modes fail; the line names the remedy."""

    def expect(url: str) -> None:
        line, half = database_line(url, mode=Mode.AUTO), database_line(url)
        line("OK", "txcore_tx_msg")
        execute(url, DELAYED)
        line("WARN", "1 delayed message of group 'shop' waits", "no relay", "txcore relay")
        execute(url, "DELETE FROM txcore_tx_later")
        execute(url, "ALTER TABLE txcore_tx_msg DROP COLUMN reason")
        line("FAIL", "is refused: a table of the fence lacks columns", "txcore fence create")
        execute(url, "DROP TABLE txcore_tx_later")
        line("FAIL", "txcore_tx_later does not exist", "txcore fence create")
        execute(url, "DROP TABLE txcore_tx_msg")
        line("FAIL", "txcore_tx_msg does not exist", "mode auto", "txcore fence create")
        half("OK", "mode half needs none")

    return expect


@pytest.fixture
def wrong_clock() -> Callable[[float], ShiftedClock]:
    """Make a clock that is fast by a number of seconds."""
    return lambda seconds: ShiftedClock(int(seconds * 1000))


@dataclass(frozen=True)
class Ran:
    """The exit status and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `txcore doctor` in this process, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *arguments])
        return Ran(int(ended.value.code or 0), *capfd.readouterr())

    return run


@contextlib.contextmanager
def started(name: str, start: Callable[[], Any]) -> Iterator[Any]:
    """Start a server and remove it at the end; without it skip the test, or fail if TXCORE_REQUIRE names it."""
    server = obtained(name, start)
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def start() -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """Start a broker for this test alone, by name and with settings."""
    return lambda name, **settings: started(name, lambda: brokers.start(name, own=True, **settings))


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[servers.DatabaseServer]:
    """A PostgreSQL whose settings the doctor accepts."""
    with started(
        "postgresql", lambda: servers.postgresql(fsync="on", full_page_writes="on", max_prepared_transactions="5")
    ) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[servers.DatabaseServer]:
    """A MariaDB whose settings the doctor accepts."""
    settings = {"innodb-flush-method": "fsync", "log-bin": "binlog", "sync-binlog": "1", "server-id": "1"}
    settings["idle-write-transaction-timeout"] = "60"
    with started("mariadb", lambda: servers.mariadb(**settings)) as server:
        yield server


def _marked(request: pytest.FixtureRequest) -> str:
    marker = request.node.get_closest_marker("breaks")
    assert marker is not None, "mark the test with @pytest.mark.breaks"
    name: str = marker.args[0]
    return name
