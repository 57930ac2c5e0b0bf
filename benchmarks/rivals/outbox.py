"""A hand-written transactional outbox: 16 psycopg threads write it, one relay process empties it into Kafka.

The relay (`outbox_relay`) runs while the producers run, and polls every 50 ms or waits for NOTIFY.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg

from benchmarks.rivals import measures, outbox_relay
from benchmarks.rivals.postgres import INSERT_ORDER, Connections, business_only, database
from benchmarks.rivals.system import DRAIN, Figures, Plan, Row, body_of
from benchmarks.rivals.topic import Topic, kafka, wait_until

OVERLOAD_THREADS: Final = 64
_FILL: Final = (
    "INSERT INTO outbox (body) SELECT convert_to(lpad(n::text, 20, '0') || repeat('x', 280), 'UTF8') "
    "FROM generate_series(1, %s) AS n"
)
_WAIT_MAX_S: Final = 120.0


class Outbox:
    """An outbox written by hand; *wake_up* is poll or notify."""

    def __init__(self, wake_up: str) -> None:
        self.name = f"outbox by hand, {'50 ms poll' if wake_up == 'poll' else 'NOTIFY'}"
        self._wake_up = wake_up

    def prepare(self) -> None:
        """Do nothing: the tests' own broker and database are used."""

    def measure(self, plan: Plan) -> Figures:
        """Measure with the relay running, then the relay alone."""
        with kafka() as servers, database() as url:
            with psycopg.connect(url) as connection:
                connection.execute(outbox_relay.CREATE)
            connections = Connections(url)
            numbers = itertools.count(1)

            def commit(number: int) -> float:
                connection = connections.get()
                connection.execute(INSERT_ORDER)
                connection.execute(outbox_relay.INSERT, (body_of(number),))
                if self._wake_up == "notify":
                    connection.execute(outbox_relay.NOTIFY)
                connection.commit()
                return time.monotonic()

            found = business_only(url, plan.seconds)
            topic = Topic(servers, "orders")
            with self._relay(url, servers, topic):
                found |= measures.rate(commit, numbers, plan, "psycopg")
                wait_until_empty(url)
                found |= measures.visible(commit, numbers, topic, plan)
            topic.close()
            found |= self._incidents(url, servers, commit, plan) if plan.has_incidents else {}
            found |= self._drain(url, servers, plan)
            connections.close()
        return found

    def _incidents(self, url: str, servers: str, commit: measures.Commit, plan: Plan) -> dict[Row, float]:
        topic = Topic(servers, "overload")
        with self._relay(url, servers, topic):
            send_for = measures.from_threads(commit, itertools.count(1), OVERLOAD_THREADS)
            found = measures.overload(topic, f"{OVERLOAD_THREADS} threads", send_for, plan)
            wait_until_empty(url)
        topic.close()
        return found | self._recovery(url, servers, plan)

    def _drain(self, url: str, servers: str, plan: Plan) -> dict[Row, float]:
        """Measure the time between the first and the last message of a relay that finds many waiting."""
        topic = Topic(servers, "drained")
        _fill(url, plan.in_doubt)
        with self._relay(url, servers, topic):
            rate = topic.rate_of(plan.in_doubt, _WAIT_MAX_S)
        topic.close()
        return {Row(DRAIN, f"{plan.in_doubt:,} waiting", "/s"): rate}

    def _recovery(self, url: str, servers: str, plan: Plan) -> dict[Row, float]:
        """Kill the relay in the middle of the given number of messages, and start another."""
        topic = Topic(servers, "recovered")
        _fill(url, plan.in_doubt)
        with self._relay(url, servers, topic):
            wait_until(lambda: topic.count() > 0, _WAIT_MAX_S, 0.0)
        with self._relay(url, servers, topic):
            took_s = wait_until_empty(url)
        return measures.recovery(topic, plan.in_doubt, took_s)

    @contextlib.contextmanager
    def _relay(self, url: str, servers: str, topic: Topic) -> Iterator[None]:
        command = [sys.executable, "-m", outbox_relay.__name__, url, servers, topic.name, self._wake_up]
        process = subprocess.Popen(command)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _fill(url: str, count: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(_FILL, (count,))


def wait_until_empty(url: str, limit_s: float = _WAIT_MAX_S) -> float:
    """Wait until the relay has emptied the outbox; returns the time that it took."""
    begin_s = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:

        def is_empty() -> bool:
            row: Any = connection.execute("SELECT NOT EXISTS (SELECT FROM outbox)").fetchone()
            return bool(row[0])

        wait_until(is_empty, limit_s, 0.02)
    return time.monotonic() - begin_s
