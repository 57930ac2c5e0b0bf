"""faststream-outbox: 16 asyncio tasks write its outbox through SQLAlchemy, its relay empties it into Kafka.

It runs in a virtual environment of its own (`faststream_program`), as its quick start shows. The setting
"tuned" raises every option for throughput. Its rows are leased for 60 s: the rows of a killed relay wait for that.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from txcore_conformance.machine import base_folder, made_once, run
from txcore_conformance.server_packages import ServerUnavailableError

from benchmarks.rivals.measures import IDLE_RATE, latencies_ms, overload, recovery
from benchmarks.rivals.outbox import wait_until_empty
from benchmarks.rivals.postgres import database, sqlalchemy_url
from benchmarks.rivals.system import (
    BUSINESS,
    CALLERS,
    DRAIN,
    TRANSACTIONAL,
    Figures,
    MissingError,
    Plan,
    Row,
    callers,
    percentiles,
)
from benchmarks.rivals.topic import Topic, kafka, wait_until

VERSION: Final = "0.19.0"
PROGRAM: Final = Path(__file__).with_name("faststream_program.py")
OVERLOAD_TASKS: Final = 64
_REQUIREMENTS: Final = (f"faststream-outbox[asyncpg]=={VERSION}", "faststream[kafka]")
_INSTALL_TIME_MAX_S: Final = 600.0
_SHARE: Final = 5
"""Divisor of the number of waiting messages, which is smaller for this system because it is slower."""
_WAIT_MAX_S: Final = 120.0


class FastStreamOutbox:
    """The system faststream-outbox; *setting* is default or tuned."""

    def __init__(self, setting: str) -> None:
        self.name = f"faststream-outbox, {setting}"
        self._setting = setting

    def prepare(self) -> None:
        """Make its virtual environment, once per machine."""
        try:
            self._environment = made_once(base_folder() / f"faststream-outbox_{VERSION}", _install)
        except ServerUnavailableError as error:
            raise MissingError(f"faststream-outbox cannot be installed here: {error}") from error

    def measure(self, plan: Plan) -> Figures:
        """Measure with the relay running, then the relay alone."""
        with kafka() as servers, database() as url:
            self._url, self._servers = url, servers
            topic = Topic(servers, "orders")
            self._run(topic, "create")
            load = f"{callers(CALLERS, 'task')}, SQLAlchemy"
            found = {Row(BUSINESS, load, "/s"): self._run(topic, "business", CALLERS, plan.seconds)["per_s"]}
            with self._relay(topic):
                made = self._run(topic, "produce", CALLERS, plan.seconds, 0, 1)
                found[Row(TRANSACTIONAL, load, "/s")] = made["per_s"]
            self._forget()
            with self._relay(topic):
                found |= self._visible(topic, plan)
            topic.close()
            self._forget()
            if plan.has_incidents:
                found |= self._incidents(plan)
            found |= self._drain(plan)
        return found

    def _visible(self, topic: Topic, plan: Plan) -> dict[Row, float]:
        found: dict[Row, float] = {}
        first = 1_000_000
        for rate, tasks, words in ((IDLE_RATE, 1, f"idle, {IDLE_RATE}/s"), (plan.rate, CALLERS, f"{plan.rate}/s")):
            with topic.watched() as arrived:
                self._run(topic, "produce", 1, 0.1, 0, first)
                wait_until(lambda: bool(arrived), _WAIT_MAX_S)
                first += 1_000_000
                made = self._run(topic, "produce", tasks, max(plan.seconds, 3), rate, first)
                committed = {int(number): at_s for number, at_s in made["committed"].items()}
                found |= percentiles(latencies_ms(committed, arrived), words)
                first += 1_000_000
        return found

    def _incidents(self, plan: Plan) -> dict[Row, float]:
        topic = Topic(self._servers, "overload")

        def send_for(seconds: float) -> list[int]:
            return [int(each) for each in self._run(topic, "produce", OVERLOAD_TASKS, seconds, 0, 1)["committed"]]

        with self._relay(topic):
            found = overload(topic, callers(OVERLOAD_TASKS, "task"), send_for, plan)
        topic.close()
        self._forget()
        return found | self._recovery(plan)

    def _recovery(self, plan: Plan) -> dict[Row, float]:
        """Kill the relay in the middle of the given number of messages, and start another."""
        topic = Topic(self._servers, "recovered")
        count = plan.in_doubt // _SHARE
        self._run(topic, "fill", count)
        with self._relay(topic):
            wait_until(lambda: topic.count() > 0, _WAIT_MAX_S, 0.0)
        with self._relay(topic):
            took_s = wait_until_empty(self._url, _WAIT_MAX_S)
        return recovery(topic, count, took_s)

    def _drain(self, plan: Plan) -> dict[Row, float]:
        topic = Topic(self._servers, "drained")
        count = plan.in_doubt // _SHARE
        self._run(topic, "fill", count)
        with self._relay(topic):
            rate = topic.rate_of(count, _WAIT_MAX_S)
        topic.close()
        return {Row(DRAIN, f"{count:,} waiting", "/s"): rate}

    def _run(self, topic: Topic, *words: object) -> Any:
        command = self._command(topic, *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"faststream-outbox failed: {done.stderr[-1500:]}")
        return json.loads(done.stdout.splitlines()[-1])

    @contextlib.contextmanager
    def _relay(self, topic: Topic) -> Iterator[None]:
        process = subprocess.Popen(self._command(topic, "relay"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def _command(self, topic: Topic, *words: object) -> list[str]:
        python = str(self._environment / "bin" / "python")
        where = [sqlalchemy_url(self._url, "asyncpg"), self._servers, topic.name, self._setting]
        return [python, "-P", str(PROGRAM), *where, *map(str, words)]

    def _forget(self) -> None:
        """Drop the rows that the last relay left, so that the next measure does not wait for them."""
        with psycopg.connect(self._url) as connection:
            connection.execute("TRUNCATE outbox")


def _install(target: Path) -> None:
    run([sys.executable, "-m", "venv", str(target)], timeout_s=_INSTALL_TIME_MAX_S)
    python = str(target / "bin" / "python")
    options = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_REQUIREMENTS]
    run([python, *options], timeout_s=_INSTALL_TIME_MAX_S)
