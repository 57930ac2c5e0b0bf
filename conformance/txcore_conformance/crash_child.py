"""The programs that the crash kit kills: producers in four styles, and a checker.

`python -m txcore_conformance.crash_child` reads jobs, one JSON object a line, and forks a real process for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import sqlalchemy

import txcore
from txcore import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    Checker,
    CheckPolicy,
    HalfView,
    LocalTransactionState,
    Message,
    SqlFence,
    TransactionListener,
    TransactionProducer,
    current_transaction,
)
from txcore.producer.arguments import ReleaseName
from txcore_conformance.failpoints import VARIABLE, Failpoints, Watched, install
from txcore_conformance.forks import load_backend, serve
from txcore_conformance.kit import FAST, decide_all, hasty
from txcore_conformance.live_orders import id_type

LIFETIME_MAX_S: Final = 180
UNKNOWN_BODY: Final = b"never known"
PRODUCERS: Final = ("database", "listener", "pipelined", "async")
PROGRAMS: Final = (*PRODUCERS, "checker")
INSERT: Final = sqlalchemy.text("INSERT INTO orders VALUES (:id)")
SELECT: Final = sqlalchemy.text("SELECT transaction_id FROM orders")


@dataclass(frozen=True, slots=True)
class Job:
    """The job of one process; *steps* is a file to which it writes its steps if it ends without a kill."""

    program: str
    url: str
    group: str
    topics: tuple[str, ...]
    database: str
    immunity_s: float
    failpoint: str = ""
    steps: str = ""
    release: ReleaseName = "producer"
    order_key: str = ""  #: of all messages; "" for none

    def message(self, topic: str, body: bytes) -> Message:
        """Return a message with the job's order key."""
        return Message(topic, body, order_key=self.order_key.encode() or None)

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Job:
        """Return the job in a line."""
        fields = json.loads(line)
        return Job(**{**fields, "topics": tuple(fields["topics"])})


class Deliberate(Exception):  # noqa: N818 - no error: how the block of a test ends
    """Raised to leave a database block."""


def engine_of(database: str) -> sqlalchemy.Engine:
    """Return an engine for a database's URL; it keeps no connection open, so it needs no `dispose`."""
    return sqlalchemy.create_engine(database, poolclass=sqlalchemy.NullPool)


class Orders:
    """The local database, by its URL: a transaction committed if its id is in `orders`."""

    def __init__(self, database: str, failpoints: Failpoints | None = None) -> None:
        self._engine = engine_of(database)
        self._failpoints = failpoints

    def create(self) -> None:
        """Create the tables."""
        with self._engine.connect() as connection:
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.exec_driver_sql(f"CREATE TABLE orders (transaction_id {id_type(self._engine)} PRIMARY KEY)")
            connection.commit()
        SqlFence(self._engine).create()

    def commit(self, transaction_id: bytes) -> None:
        """Run a local transaction, with a step on either side of its COMMIT."""
        with self._engine.connect() as connection:
            connection.execute(INSERT, {"id": transaction_id})
            self._reach("before local commit")
            connection.commit()
            self._reach("after local commit")

    def committed(self) -> set[bytes]:
        """Return the ids of all committed transactions."""
        with self._engine.connect() as connection:
            return {bytes(row[0]) for row in connection.execute(SELECT)}

    def _reach(self, name: str) -> None:
        if self._failpoints is not None:
            self._failpoints.reach(name)


class OrderListener(TransactionListener):
    """Local transactions by *arg*; checks by reading `orders`.

    The answer ROLLBACK for a missing id is correct only because the process that could still commit it is dead.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        """Commit for "commit" and "silent", which then returns UNKNOWN; otherwise roll back."""
        if arg == "rollback":
            return LocalTransactionState.ROLLBACK
        self._orders.commit(current_transaction().transaction_id)
        return LocalTransactionState.COMMIT if arg == "commit" else LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Look up the transaction's id."""
        if half.messages[0].body == UNKNOWN_BODY:
            return LocalTransactionState.UNKNOWN
        is_there = half.transaction_id in self._orders.committed()
        return LocalTransactionState.COMMIT if is_there else LocalTransactionState.ROLLBACK


class AsyncOrderListener(AsyncTransactionListener):
    """The listener `OrderListener` for asyncio."""

    def __init__(self, orders: Orders) -> None:
        self._listener = OrderListener(orders)

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """See `OrderListener`."""
        return self._listener.execute_local_transaction(message, arg)


def run(job: Job, failpoints: Failpoints) -> None:
    """Do *job* in this process."""
    if job.program not in PROGRAMS:
        raise ValueError(f"there is no program {job.program!r}")
    backend: Any = Watched(txcore.connect(job.url), failpoints)
    orders = Orders(job.database, failpoints)
    if job.program == "checker":
        check_all(backend, job, orders)
    elif job.program == "database":
        _database(backend, job)
    else:
        _listener_style(backend, job, orders)
    backend.close(5).result(10)


def check_all(backend: Any, job: Job, orders: Orders) -> None:
    """Run a checker until nothing is pending, then leave the group."""
    fence = SqlFence(engine_of(job.database))
    policy = CheckPolicy(interval_s=0.001, check_max=2)
    limits = replace(FAST, check_deadline_s=10.0)
    checker = Checker(backend, job.group, listener=OrderListener(orders), fence=fence, policy=policy, limits=limits)
    decide_all(checker, backend, job.group, LIFETIME_MAX_S / 2)


def _database(backend: Any, job: Job) -> None:
    engine = engine_of(job.database)
    policy = CheckPolicy(immunity_s=job.immunity_s)
    producer = TransactionProducer(
        hasty(backend), job.group, fence=SqlFence(engine), policy=policy, release=job.release
    )
    for number in range(2):
        with producer.transaction(engine) as transaction:
            transaction.connection.execute(INSERT, {"id": transaction.transaction_id})
            for topic in job.topics:
                transaction.publish(job.message(topic, b"commit %d" % number))
        with contextlib.suppress(Deliberate), producer.transaction(engine) as transaction:
            transaction.connection.execute(INSERT, {"id": transaction.transaction_id})
            transaction.publish(job.message(job.topics[0], b"rollback %d" % number))
            raise Deliberate


def _listener_style(backend: Any, job: Job, orders: Orders) -> None:
    policy = CheckPolicy(immunity_s=job.immunity_s)
    args = ("commit", "rollback", "silent", "commit", "rollback")
    messages = [(job.message(job.topics[0], b"%s %d" % (arg.encode(), n)), arg) for n, arg in enumerate(args)]
    if job.program == "async":
        asynchronous = AsyncTransactionProducer(
            hasty(backend), job.group, listener=AsyncOrderListener(orders), policy=policy, release=job.release
        )

        async def send() -> None:
            for message, arg in messages:
                await asynchronous.send_message_in_transaction(message, arg)

        asyncio.run(send())
        return
    producer = TransactionProducer(
        hasty(backend), job.group, listener=OrderListener(orders), policy=policy, release=job.release
    )
    if job.program == "pipelined":
        producer.send_many(messages)
        return
    for message, arg in messages:
        producer.send_message_in_transaction(message, arg)


def _in_child(job: Job) -> int:
    signal.alarm(LIFETIME_MAX_S)
    failpoints = Failpoints(job.failpoint or os.environ.get(VARIABLE, ""))
    install(failpoints)
    try:
        run(job, failpoints)
    except BaseException as error:  # noqa: BLE001 - the parent reads the status, the log has the text
        print(f"{job.program} {job.failpoint}: {error!r}", file=sys.stderr, flush=True)
        return 1
    if job.steps:
        Path(job.steps).write_text("\n".join(failpoints.steps), encoding="utf-8")
    return 0


if __name__ == "__main__":
    serve(lambda line: load_backend(Job.from_json(line).url), lambda line: _in_child(Job.from_json(line)))
