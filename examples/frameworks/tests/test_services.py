"""Services and producers of tasks, killed at every step: an order has its message, or does not exist."""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance.crash_plugin import kill_at_every_step
from txcore_conformance.kit import wait_until
from txcore_conformance.scenario import Scenario
from txcore_sqlite.consumer import read_topic

import txcore

ORDERS = "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"
INSERT = "INSERT INTO orders (item) VALUES ('tea') RETURNING number"


def asynchronous(place):
    return place.database.replace("sqlite:", "sqlite+aiosqlite:")


class Example(Scenario):
    """An order in one SQLite file."""

    group = "shop"
    topics = ("orders.created",)

    def setup(self, place):
        engine = sqlalchemy.create_engine(place.database)
        txcore.SqlFence(engine).create()
        with engine.begin() as connection:
            connection.execute(text(ORDERS))

    def committed(self, place):
        with closing(sqlite3.connect(place.database.partition("///")[2])) as connection:
            return [row[0] for row in connection.execute("SELECT number FROM orders")]

    def announced(self, message):
        return int(message.body)


class Flask(Example):
    preload = ("flask",)

    def run(self, place):
        app = importlib.import_module("flask_shop").make_app(place.broker, place.database)
        assert 201 == app.test_client().post("/orders", json={"item": "tea"}).status_code


class Litestar(Example):
    preload = ("litestar", "httpx", "aiosqlite")

    def run(self, place):
        app = importlib.import_module("litestar_shop").make_app(place.broker, asynchronous(place))
        transport = httpx.ASGITransport(app=app)  # without its lifespan: the checker is the test's

        async def post():
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return (await client.post("/orders", json={"item": "tea"})).status_code

        assert 201 == asyncio.run(post())


class SqlModel(Example):
    preload = ("sqlmodel",)

    def run(self, place):
        importlib.import_module("sqlmodel_shop").main(place.broker, place.database)

    def announced(self, message):
        return json.loads(message.body)["number"]


class Worker(Example):
    """The invoice of the asyncio worker, which is announced if it is marked as sent."""

    topics = ("invoices.sent",)
    preload = ("aiosqlite",)

    def setup(self, place):
        engine = sqlalchemy.create_engine(place.database)
        txcore.SqlFence(engine).create()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE invoices (number INTEGER PRIMARY KEY, sent INTEGER DEFAULT 0)"))
            connection.execute(text("INSERT INTO invoices (number) VALUES (1)"))

    def committed(self, place):
        with closing(sqlite3.connect(place.database.partition("///")[2])) as connection:
            return [row[0] for row in connection.execute("SELECT number FROM invoices WHERE sent = 1")]

    def run(self, place):
        engine = create_async_engine(asynchronous(place))
        fence = txcore.AsyncSqlFence(engine)

        async def send():
            async with (
                txcore.connect(place.broker) as backend,
                txcore.AsyncTransactionProducer(backend, self.group, fence=fence) as producer,
            ):
                return await importlib.import_module("asyncio_worker").send_one(producer, engine)

        assert asyncio.run(send())


class CeleryTask(Example):
    topics = ("celery",)
    preload = ("celery",)

    def run(self, place):
        tasks = importlib.import_module("celery_tasks")
        engine = sqlalchemy.create_engine(place.database)
        fence = txcore.SqlFence(engine)
        with (
            txcore.connect(place.broker) as backend,
            txcore.TransactionProducer(backend, self.group, fence=fence) as producer,
            producer.transaction(engine) as tx,
        ):
            tasks.start_if_committed(tx, tasks.mail, tx.connection.execute(text(INSERT)).scalar_one())

    def announced(self, message):
        assert message.headers["id"] == message.headers["txcore-id"]
        return json.loads(message.body)[0][0]


class TaskiqTask(Example):
    topics = ("taskiq",)
    preload = ("taskiq_aio_pika", "aiosqlite")

    def run(self, place):
        tasks = importlib.import_module("taskiq_tasks")
        engine = create_async_engine(asynchronous(place))
        fence = txcore.AsyncSqlFence(engine)

        async def order():
            async with (
                txcore.connect(place.broker) as backend,
                txcore.AsyncTransactionProducer(backend, self.group, fence=fence) as producer,
                producer.transaction(engine) as tx,
            ):
                number = (await tx.connection.execute(text(INSERT))).scalar_one()
                tasks.start_if_committed(tx, tasks.mail, number)

        asyncio.run(order())

    def announced(self, message):
        found = json.loads(message.body)
        assert found["task_id"] == message.headers["txcore-id"]
        return found["args"][0]


@pytest.mark.parametrize("scenario", [Flask, Litestar, SqlModel, Worker, CeleryTask, TaskiqTask])
def test_an_order_killed_at_any_step_has_its_message_or_is_not_there(scenario):
    """The process is killed before, during and after half, COMMIT, targets and op."""
    verdict = kill_at_every_step(scenario)
    assert [] == verdict.wrong, str(verdict)
    steps = {finding.step for finding in verdict.findings}
    assert {"before half:1", "after half:1", "before release COMMIT:1", "during release COMMIT:1"} <= steps
    assert any("COMMIT" in step and step.startswith("after") for step in steps)


def test_the_flask_example_starts_with_its_commands(run, tmp_path):
    """The tables are made by a command, and a request is answered."""
    urls = f"'sqlite:///{tmp_path}/broker.db', 'sqlite:///{tmp_path}/shop.db'"
    flask = ("flask", "--app", f"flask_shop:make_app({urls})")
    made = run(*flask, "create-tables")
    made.wait_until_ended()
    service = run(*flask, "run", "--port", "0")
    assert {"order": 1} == httpx.post(f"{service.url}/orders", json={"item": "tea"}, timeout=60).json()


def test_the_litestar_example_starts_with_its_command(run, tmp_path):
    """The service makes its tables, and answers a request."""
    service = run(
        *("uvicorn", "--factory", "litestar_shop:make_app", "--port", "0"),
        BROKER=f"sqlite:///{tmp_path}/broker.db",
        DATABASE=f"sqlite+aiosqlite:///{tmp_path}/shop.db",
    )
    assert {"order": 1} == httpx.post(f"{service.url}/orders", json={"item": "tea"}, timeout=60).json()


def test_the_sqlmodel_example_starts_with_its_command(run, tmp_path):
    """Each run places one order."""
    for number in (1, 2):
        program = run("python", str(Path(__file__).parents[1] / "sqlmodel_shop.py"))
        program.wait_until_ended()
        assert f"order {number} is placed and announced\n" == program.log.read_text()
    assert (tmp_path / "shop.db").is_file()


def test_the_asyncio_worker_sends_what_is_due_and_ends_when_it_is_asked_to(run, tmp_path):
    """Each due invoice is marked and announced once, and the worker ends with status 0 after SIGTERM."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE invoices (number INTEGER PRIMARY KEY, sent INTEGER DEFAULT 0)")
        connection.executemany("INSERT INTO invoices (number) VALUES (?)", [(number,) for number in range(5)])
    worker = run("python", str(Path(__file__).parents[1] / "asyncio_worker.py"), IDLE_S="0.01")

    def sent():
        file = tmp_path / "broker.db"
        return [message.body for message in read_topic(file, "invoices.sent")] if file.exists() else []

    wait_until(lambda: len(sent()) == 5, "all invoices")
    worker.ask_to_end()
    worker.wait_until_ended()
    assert [b"0", b"1", b"2", b"3", b"4"] == sent()
