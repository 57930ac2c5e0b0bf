"""Celery and taskiq on a real RabbitMQ: a task has one effect for each committed order, whichever process is killed."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import uuid
from contextlib import closing

import pytest
import sqlalchemy
from conftest import count_in, mails_table, repeat_all, rows
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance.kit import wait_until

import txcore

COUNT = 60
KILLS = 2
INSERT = "INSERT INTO orders DEFAULT VALUES RETURNING number"


class UndoneError(Exception):
    """Ends an order's transaction without a commit."""


def order_with_celery(url, database, queue):
    """Place COUNT orders, of which every third one is rolled back after its task was published."""
    tasks = importlib.import_module("celery_tasks")
    tasks.app.conf.task_default_queue = queue
    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    fence = txcore.SqlFence(engine)
    with txcore.connect(url) as backend, txcore.TransactionProducer(backend, "shop", fence=fence) as producer:
        for number in range(COUNT):
            try:
                with producer.transaction(engine) as tx:
                    order = tx.connection.execute(text(INSERT)).scalar_one()
                    tasks.start_if_committed(tx, tasks.mail, order)
                    undo_some(number)
            except UndoneError:
                pass


def order_with_taskiq(url, database, queue):
    """Do the same in asyncio."""
    tasks = importlib.import_module("taskiq_tasks")
    tasks.QUEUE = queue
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    fence = txcore.AsyncSqlFence(engine)

    async def order_all():
        async with (
            txcore.connect(url) as backend,
            txcore.AsyncTransactionProducer(backend, "shop", fence=fence) as producer,
        ):
            for number in range(COUNT):
                try:
                    async with producer.transaction(engine) as tx:
                        order = (await tx.connection.execute(text(INSERT))).scalar_one()
                        tasks.start_if_committed(tx, tasks.mail, order)
                        undo_some(number)
                except UndoneError:
                    pass
        await engine.dispose()

    asyncio.run(order_all())


def undo_some(number):
    if number % 3 == 2:
        raise UndoneError


@pytest.mark.parametrize(
    ("order_all", "worker", "dialect"),
    [
        (order_with_celery, ("celery", "--app", "celery_tasks", "worker", "--concurrency", "1"), "sqlite"),
        (order_with_taskiq, ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "1"), "sqlite+aiosqlite"),
    ],
)
def test_a_task_runs_with_one_effect_for_each_committed_order(order_all, worker, dialect, rabbitmq, run, tmp_path):
    """Tasks of undone orders never run; repeated messages and killed workers leave one effect for each other one."""
    queue, shop, mails = f"tasks-{uuid.uuid4()}", tmp_path / "shop.db", tmp_path / "mails.db"
    mails_table(mails)
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY AUTOINCREMENT)")
    txcore.SqlFence(sqlalchemy.create_engine(f"sqlite:///{shop}")).create()
    environment = {
        "BROKER": rabbitmq.replace("rabbitmq://", "amqp://"),
        "QUEUE": queue,
        "DATABASE": f"{dialect}:///{mails}",
    }

    def start():
        return run(*worker, **environment)

    first = start()  # it makes its queue
    wait_until(lambda: count_in(rabbitmq, queue) is not None, "the queue")
    first.kill()
    order_all(rabbitmq, shop, queue)
    committed = rows(shop, "SELECT number FROM orders")
    assert 2 * COUNT // 3 == len(committed) == repeat_all(rabbitmq, queue)
    program = start()
    for number in range(1, KILLS + 1):
        least = number * len(committed) // (KILLS + 2)
        wait_until(lambda least=least: len(rows(mails, "SELECT number FROM mails")) >= least, "some mails")
        program.kill()
        program = start()
    wait_until(lambda: count_in(rabbitmq, queue) == 0, "the end of the queue")
    wait_until(lambda: len(rows(mails, "SELECT number FROM mails")) >= len(committed), "all mails")
    assert committed == sorted(rows(mails, "SELECT number FROM mails"))
