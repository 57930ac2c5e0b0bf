"""What the tests of these examples need: brokers, programs that are killed, and messages published by txcore."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
import sqlalchemy
from sqlalchemy import text
from txcore_conformance import brokers
from txcore_conformance.kit import Recorder, wait_until
from txcore_conformance.raw import target_only
from txcore_conformance.required import obtained

import txcore
from txcore.records import Status

FOLDER = Path(__file__).parents[1]


class Program:
    """A program in a session of its own, so that a kill ends its children too."""

    def __init__(self, command: list[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def write(self, text: str) -> None:
        """Write to the program's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def wait_for(self, sign: str) -> None:
        """Wait until the program has printed *sign*."""

        def is_printed() -> bool:
            assert self._process.poll() is None, self.log.read_text()
            return sign in self.log.read_text()

        wait_until(is_printed, f"{sign!r} of {self.log.name}")

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program itself."""
        self._process.send_signal(signal.SIGTERM)

    def wait_until_ended(self) -> None:
        """Wait for the program's end, which must be a success."""
        assert 0 == self._process.wait(120), self.log.read_text()

    @property
    def url(self) -> str:
        """The address that a server prints; waits for it."""

        def printed() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text()
            return re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())

        found = wait_until(printed, "the address")
        return str(found.group(0))

    def kill(self) -> None:
        """Kill the program and its children with SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start programs in the folder of the test, and kill what is left of them."""
    started: list[Program] = []

    def start(*command: str, **variables: str) -> Program:
        paths = {
            "PYTHONPATH": f"{FOLDER}:{os.environ.get('PYTHONPATH', '')}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        environment = {**os.environ, **variables, **paths}
        started.append(Program(list(command), tmp_path, tmp_path / f"{len(started)}.log", environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[str]:
    """The URL of a RabbitMQ."""
    yield from running("rabbitmq")


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The URL of a Kafka."""
    yield from running("kafka")


def running(name: str) -> Iterator[str]:
    broker = obtained(name, lambda: brokers.start(name))
    yield broker.url
    broker.remove()


def make_topic(url: str, topic: str) -> None:
    """Make a topic by the command of the guide."""
    command = ["topics", "create", "--broker", url, "--group", "shop", "--target", topic]
    subprocess.run([sys.executable, "-m", "txcore.cli", *command], check=True, stdout=subprocess.DEVNULL)


def rows(file: Path, sql: str) -> list[object]:
    """Return the first column of a query; nothing before the table exists."""
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        try:
            return [row[0] for row in connection.execute(sql)]
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []


def publish(url: str, topic: str, count: int) -> None:
    """Publish numbers as txcore's targets, every third one twice under its one id."""
    with txcore.connect(url) as backend:
        backend.ensure_group("shop").result(30)
        items = [target_only("shop", topic, b"%d" % number) for number in range(count)]
        items += items[::3]
        batch = Recorder(items)
        backend.release(batch)
        assert {Status.DURABLE} == {outcome.status for outcome in batch.wait(backend, 60.0)}


@contextmanager
def channel_of(url: str) -> Iterator[Any]:
    """Open a channel of RabbitMQ for a block."""
    connection = pika.BlockingConnection(pika.URLParameters(url.replace("rabbitmq://", "amqp://")))
    try:
        yield connection.channel()
    finally:
        connection.close()


def count_in(url: str, queue: str) -> int | None:
    """Return how many messages are in a queue and with its consumers; None if there is no such queue."""
    status = obtained("rabbitmq", lambda: brokers.start("rabbitmq")).control("list_queues", "name", "messages")
    found = dict(line.split("\t") for line in status.splitlines())
    return int(found[queue]) if queue in found else None


def repeat_all(url: str, queue: str) -> int:
    """Publish each message in a queue twice more, as a retry after a lost answer does; return how many there were."""
    with channel_of(url) as channel:
        channel.confirm_delivery()
        count = channel.queue_declare(queue, passive=True).method.message_count
        for _ in range(count):
            method, properties, body = channel.basic_get(queue)
            for _ in range(3):
                channel.basic_publish("", queue, body, properties, mandatory=True)
            channel.basic_ack(method.delivery_tag)
    return count


def mails_table(file: Path) -> None:
    """Make the table of the tasks' effects, and the inbox."""
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    txcore.Inbox(engine).create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE mails (number INTEGER)"))
