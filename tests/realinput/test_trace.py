"""A real trace through all of txcore, its producer killed on the way: database and topic agree row by row."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy
from txcore_conformance import servers
from txcore_conformance.required import obtained
from txcore_sqlite.consumer import read_topic

import txcore
from txcore.wire import HEADER_GROUP, HEADER_ID

COUNT = 5_000
KILL_AT = (1_000, 2_500, 4_000)
DEADLINE_S = 60
PROGRAM = Path(__file__).with_name("flights.py")

spec = importlib.util.spec_from_file_location("flights", PROGRAM)
flights = importlib.util.module_from_spec(spec)
spec.loader.exec_module(flights)


@pytest.fixture(scope="module")
def trace():
    found = flights.read_trace(COUNT)
    assert len(found) == len({flights.key_of(flight) for flight in found}) == COUNT
    assert any(flight["dep_time"] in {"", "NA"} for flight in found), "real data has gaps"
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'airport.db'}"
        return
    server = obtained("postgresql", servers.postgresql)
    yield server.url
    server.stop()


@pytest.fixture
def engine(database_url, trace):
    made = flights.open_database(database_url)
    txcore.SqlFence(made).create()
    flights.table_of(list(trace[0])).metadata.create_all(made)
    yield made
    made.dispose()


def count_rows(engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(sqlalchemy.text("SELECT count(*) FROM flights"))


def produce(broker_url, database_url, engine, kill_at) -> int:
    """Run the producer until it ends, or kill it after *kill_at* committed rows, and return its exit status."""
    process = subprocess.Popen([sys.executable, str(PROGRAM), broker_url, database_url, str(COUNT)])
    deadline_s = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline_s:
        if kill_at is not None and count_rows(engine) >= kill_at:
            break
        time.sleep(0.005)
    if process.poll() is None:
        process.kill()
    return process.wait()


def check_all(broker_url, engine):
    """Let a checker finish the killed processes' transactions, and return how many it committed and rolled back."""
    backend = txcore.connect(broker_url)
    checker = txcore.Checker(backend, flights.GROUP, fence=txcore.SqlFence(engine))
    operator = txcore.Operator(backend, flights.GROUP)
    deadline_s = time.monotonic() + DEADLINE_S
    decided = [0, 0]
    while True:
        report = checker.run_once()
        decided = [decided[0] + report.committed, decided[1] + report.rolled_back]
        if not operator.pending():
            break
        assert time.monotonic() < deadline_s, "halves are still undecided"
        time.sleep(0.05)
    assert operator.parked() == []
    checker.stop()
    backend.close().result(10)
    return decided


def test_flights_survive_a_killed_producer(trace, database_url, engine, tmp_path):
    """Each committed row is announced exactly once, with its own values, and no other message is sent."""
    broker = tmp_path / "broker.db"
    broker_url = f"sqlite:///{broker}"
    statuses = [produce(broker_url, database_url, engine, kill_at) for kill_at in (*KILL_AT, None)]
    assert statuses == [-signal.SIGKILL] * len(KILL_AT) + [0]
    committed, rolled_back = check_all(broker_url, engine)
    assert committed + rolled_back <= len(KILL_AT) * flights.THREADS, "only what was open at a kill is checked"

    table = flights.table_of(list(trace[0]))
    with engine.connect() as connection:
        rows = {f"{row.transaction_id}:{row.message_index}": row for row in connection.execute(table.select())}
    messages = read_topic(broker, flights.TOPIC)
    assert sorted(message.headers[HEADER_ID] for message in messages) == sorted(rows)
    expected = {flights.key_of(flight): flight for flight in trace}
    for message in messages:
        row = rows[message.headers[HEADER_ID]]
        flight = {name.removeprefix("c_"): value for name, value in row._mapping.items() if name.startswith("c_")}
        assert flight == json.loads(message.body) == expected.pop(row.key)
        made = flights.message_of(flight)
        assert (message.key, message.body) == (made.key, made.body)
        assert {name: message.headers[name] for name in made.headers} == made.headers
        assert message.headers[HEADER_GROUP] == flights.GROUP
    assert expected == {}, "every flight of the trace is in the database"
