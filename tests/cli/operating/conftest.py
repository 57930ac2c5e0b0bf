"""A group with halves in each state, on a broker and a database that the command's own processes reach."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy
from txcore_conformance import raw
from txcore_conformance.kit import FAST, Answers, Kit
from txcore_conformance.pytest_plugin import load_harness

import txcore as library
from txcore import LocalTransactionState
from txcore.cli import main
from txcore.ids import id_text
from txcore.records import HalfRecord

HARNESS = os.environ.get("TXCORE_OPERATING_HARNESS", "txcore_sqlite.testing:SqliteHarness")
CHECKER = """
import sys, time
import sqlalchemy, txcore
from txcore_conformance import raw
from txcore_conformance.kit import FAST
broker, group, database = sys.argv[1:]
fence = txcore.SqlFence(sqlalchemy.create_engine(database))

class Listener(txcore.TransactionListener):
    def execute_local_transaction(self, message, arg): ...
    def check_local_transaction(self, half): return None

backend = txcore.connect(broker)
checker = txcore.Checker(backend, group, fence=fence, listener=Listener(), limits=FAST, member="tester")
checker.start()
print("ready", flush=True)
sys.stdin.read()
checker.stop()
backend.close().result(10)
"""


@dataclass(frozen=True)
class Ran:
    """The exit status and the output of a command."""

    status: int
    output: str
    errors: str

    @property
    def sentence(self) -> str:
        """The only sentence on standard error; it fails if there is anything else."""
        lines = self.errors.splitlines()
        assert [line[:8] for line in lines] == ["txcore: "], self.errors
        return lines[0].removeprefix("txcore: ")

    @property
    def width(self) -> int:
        """The length of the longest line."""
        return max(len(line.rstrip()) for line in self.output.splitlines())


def run_here(*arguments: str) -> Ran:
    """Run the command line in this process, 80 columns wide, without a user at a terminal."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code or 0
    return Ran(status, out.getvalue(), err.getvalue())


class World:
    """The group of the module, with its broker and database. Transactions are named by their UUID."""

    def __init__(self, kit: Kit, folder: Path, command) -> None:
        self.kit = kit
        self.folder = folder
        self.command = command
        self.broker_url = kit.harness.url
        self.database_url = f"sqlite:///{folder / 'service.db'}"
        self.engine = sqlalchemy.create_engine(self.database_url)
        self.fence = library.SqlFence(self.engine)
        self.fence.create()
        self.topic = kit.topic("orders")
        self._checkers: list[subprocess.Popen] = []
        self._started: list[subprocess.Popen] = []
        self._numbers = itertools.count(1)
        assert kit.backend  # makes the group

    @property
    def place(self) -> list[str]:
        """The options that name the broker, the group and the database."""
        return ["--broker", self.broker_url, "--group", self.kit.group, "--database", self.database_url]

    def __call__(self, *arguments: str) -> Ran:
        """Run `txcore` about this group, in this process."""
        return run_here(*arguments, *self.place)

    here = staticmethod(run_here)

    def process(self, *arguments: str, timeout_s: float = 60):
        """Run `txcore` about this group as users do: in a process of its own."""
        return self.command(*arguments, *self.place, timeout_s=timeout_s)

    def json(self, *arguments: str, status: int = 0):
        """Run `txcore` with --json and return the output."""
        ran = self(*arguments, "--json")
        assert (ran.status, ran.errors) == (status, ""), ran
        return json.loads(ran.output)

    def start(self, *arguments: str) -> subprocess.Popen:
        """Start a `txcore` process about this group."""
        process = subprocess.Popen(
            [sys.executable, "-m", "txcore.cli", *arguments, *self.place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    # -- transactions ------------------------------------------------------------------------------------------------

    def message(self, topic: str = "", **fields) -> library.Message:
        return library.Message(
            topic or self.topic,
            fields.pop("body", b"parcel %d" % next(self._numbers)),
            fields.pop("key", b"42"),
            {"kind": "order", **fields},
        )

    def pending(self, *messages: library.Message, **options) -> str:
        """Make a half whose listener will be asked."""
        return id_text(self.kit.orphan(*(messages or [self.message()]), **options).transaction_id)

    def young(self) -> str:
        """Make a half with the default immunity."""
        transaction = self.kit.producer().begin()
        transaction.publish(self.message())
        transaction.prepare()
        return id_text(transaction.transaction_id)

    def fenced(self, end: str = "commit") -> str:
        """Make a half of a dead producer, whose database transaction is committed, rolled back, or `open`."""
        transaction = self.kit.hasty_producer(fence=self.fence).begin()
        transaction.publish(self.message())
        connection = self.engine.connect()
        connection.begin()
        transaction.prepare(connection)
        if end == "open":
            self.open_connection = connection
        else:
            getattr(connection, end)()
            connection.close()
        return id_text(transaction.transaction_id)

    def listened(self, *, has_row: bool = True) -> str:
        """Make a listener-style half of a producer that died after its local transaction, with or without a row."""
        engine = self.engine

        class Dying(library.TransactionListener):
            def execute_local_transaction(self, message, arg):
                if has_row:
                    with engine.begin() as connection:
                        library.current_transaction().fence(connection)
                raise RuntimeError

        producer = self.kit.hasty_producer(Dying(), fence=self.fence)
        return id_text(producer.send_message_in_transaction(self.message()).transaction_id)

    def parked(self, *messages: library.Message) -> str:
        """Make a half that was parked after UNKNOWN answers."""
        identity = self.pending(*messages)
        self.decide(identity, LocalTransactionState.UNKNOWN)
        return identity

    def undeliverable(self, lost: str = "") -> str:
        """Make a committed half with two messages, of which one cannot be delivered."""
        lost = lost or self.kit.topic("lost")
        identity = self.pending(self.message(), self.message(lost))
        self.refuse(lost)
        self.decide(identity, LocalTransactionState.COMMIT, self.kit.open())  # a backend without a cached topic
        return identity

    def poison(self) -> str:
        """Append a record that cannot be decoded, wait until it is parked, and return its name."""
        raw.append(self.kit, HalfRecord(self.kit.group, 0, b"p" * 16, 0, b"\xc1 no half", []))

        def found():
            return [each for each in self.kit.operator().parked() if each.code == "POISON"]

        self.sweep(Answers(None), found)
        return id_text(found()[0].transaction_id)

    def finished(self, state: LocalTransactionState = LocalTransactionState.COMMIT) -> str:
        """Make a half that the listener decided."""
        identity = self.pending()
        self.decide(identity, state)
        return identity

    def decide(self, identity: str, state: LocalTransactionState, backend=None) -> None:
        """Run a checker whose listener answers only about this half, until the half is no longer pending."""
        body = self.journey(identity).half.messages[0].body
        listener = Answers(None, by_body={body: state})
        self.sweep(
            listener, lambda: not self.journey(identity).is_pending, check_max=2, backend=backend or self.kit.backend
        )

    def refuse(self, topic: str) -> None:
        """Remove a topic, so that the broker refuses its messages."""
        if not self.kit.harness.refuse_topic(topic, refuses=True):
            path = self.broker_url.partition(":///")[2].partition("?")[0]
            with contextlib.closing(sqlite3.connect(path)) as broker, broker:
                broker.execute("INSERT INTO topic (name) VALUES (?)", (f"{topic}-after",))  # no id is reused
                broker.execute("DELETE FROM topic WHERE name = ?", (topic,))

    def sweep(self, listener, condition, **options) -> None:
        """Run a checker in this process until *condition* holds."""
        checker = self.kit.checker(listener, limits=replace(FAST, retry_max_s=0.02), **options)
        self.kit.sweep(checker, lambda: bool(condition()))
        checker.stop()

    def sweep_fenced(self, condition) -> None:
        """Run a checker with the fence until *condition* holds."""
        self.sweep(Answers(None), condition, fence=self.fence)

    def sweep_once_forced(self, identity) -> None:
        """Run a checker, whose listener does not know, until it has executed a request."""
        self.sweep(Answers(None), lambda: self.journey(identity).final)

    def journey(self, identity: str):
        """Return the records of a transaction in the logs."""
        return self.kit.operator().show(bytes.fromhex(identity.replace("-", "")))

    def bodies(self) -> list[bytes]:
        """Return the bodies that consumers of the topic see."""
        return self.kit.bodies(self.topic)

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_checker(self) -> subprocess.Popen:
        """Start a checker in its own process, whose listener never knows."""
        process = subprocess.Popen(
            [sys.executable, "-c", CHECKER, self.broker_url, self.kit.group, self.database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._checkers.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    def until(self, condition, timeout_s: float = 60):
        """Return the first true value of *condition*."""
        deadline_s = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return value

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for process in self._checkers:
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self.engine.dispose()


@pytest.fixture(scope="session")
def operating_harness():
    harness = load_harness(HARNESS)()
    harness.start()
    yield harness
    harness.stop()


@pytest.fixture
def kit(operating_harness):
    made = Kit(operating_harness, f"orders-{secrets.token_hex(3)}")
    yield made
    made.close()


@pytest.fixture
def world(kit, tmp_path, txcore, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    made = World(kit, tmp_path, txcore)
    yield made
    made.close()
