"""Databases for the fence's tests: one server of each kind per session, separate tables for each test."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool
from txcore_conformance import servers
from txcore_conformance.required import obtained

from txcore.clock import SystemClock
from txcore.errors import TxcoreError
from txcore.fence import FenceAnswer
from txcore.ids import IdFactory
from txcore.sqlfence import SqlFence

SERVER_KINDS = ("postgresql", "mariadb")
ALL_KINDS = (*SERVER_KINDS, "sqlite")
GROUP = "orders"
_numbers = itertools.count(1)


@dataclass
class World:
    """One database with a fence table and a business table that no other test knows."""

    kind: str
    url: str
    server: servers.DatabaseServer | None
    randomness: random.Random
    number: int = field(default_factory=lambda: next(_numbers))
    engines: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = IdFactory(SystemClock(), self.randomness)
        self.fence_table = f"fence_{self.number}"
        self.orders_table = f"orders_{self.number}"
        self.engine = self.new_engine()
        self.spare = self.new_engine()
        self.fence = self.new_fence()
        self.fence.create()
        with self.engine.begin() as connection:
            if self.kind == "postgresql":  # tests of asynchronous commits must not lose the table in their crash
                connection.execute(text("SET LOCAL synchronous_commit = on"))
            connection.execute(text(f"CREATE TABLE {self.orders_table} (number varchar(64) PRIMARY KEY)"))

    def new_engine(self, **options: Any) -> Engine:
        """Return an engine that is disposed of at the end of the test."""
        engine = create_engine(self.url, **options)
        self.engines.append(engine)
        return engine

    def new_fence(self, engine: Engine | None = None, **options: Any) -> SqlFence:
        return SqlFence(engine or self.engine, table=self.fence_table, **options)

    def new_id(self) -> bytes:
        return self.ids.new()

    def add_order(self, connection: Any, transaction_id: bytes) -> None:
        """Insert a business row named after the transaction."""
        connection.execute(
            text(f"INSERT INTO {self.orders_table} (number) VALUES (:number)"), {"number": transaction_id.hex()}
        )

    def has_order(self, transaction_id: bytes) -> bool:
        with self.engine.connect() as connection:
            sql = text(f"SELECT 1 FROM {self.orders_table} WHERE number = :number")
            return connection.execute(sql, {"number": transaction_id.hex()}).first() is not None

    def check(self, transaction_id: bytes, fence: SqlFence | None = None, group: str = GROUP) -> FenceAnswer:
        return (fence or self.fence).check([transaction_id], group)[transaction_id].answer

    def row(self, transaction_id: bytes) -> FenceAnswer:
        return self.fence.peek([transaction_id])[transaction_id].answer

    def committed(self) -> bytes:
        """Return the id of a transaction that has committed an order."""
        transaction_id = self.new_id()
        connection = self.fence.begin(None, transaction_id, GROUP)
        self.add_order(connection, transaction_id)
        self.fence.commit(connection)
        return transaction_id

    def waiters(self) -> int:
        """Return the number of statements that wait for a lock now."""
        sql = {
            "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
            # Not innodb_trx: it is a copy that the server renews only after a while without queries.
            "mariadb": "SELECT variable_value FROM information_schema.global_status "
            "WHERE variable_name = 'Innodb_row_lock_current_waits'",
        }
        with self.spare.connect() as connection:
            return int(connection.execute(text(sql[self.kind])).scalar_one())

    def session_id(self, connection: Any) -> int:
        """Return the server's own number of a connection."""
        sql = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}[self.kind]
        return int(connection.execute(text(sql)).scalar_one())

    def kill_session(self, number: int) -> None:
        """Let the server end one connection."""
        sql = {"postgresql": f"SELECT pg_terminate_backend({number})", "mariadb": f"KILL CONNECTION {number}"}
        with create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(sql[self.kind]))

    def close(self) -> None:
        for engine in self.engines:
            engine.dispose()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[servers.DatabaseServer]:
    yield from _server("postgresql", servers.postgresql)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[servers.DatabaseServer]:
    yield from _server("mariadb", servers.mariadb)


@pytest.fixture(scope="session")
def database_urls() -> dict[str, str]:
    return {}


@pytest.fixture
def make_world(
    request: pytest.FixtureRequest, database_urls: dict[str, str], tmp_path: Path
) -> Iterator[Callable[[str], World]]:
    """A factory of worlds by kind."""
    worlds: list[World] = []

    def make(kind: str) -> World:
        server = None
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/business.db"
        else:
            server = request.getfixturevalue(f"{kind}_server")
            url = database_urls.setdefault(kind, "") or server.fresh_database()
            # A restarted server keeps its port; an address of a fresh server is found again here.
            if make_url(url).port != make_url(server.url).port:
                url = server.fresh_database()
            database_urls[kind] = url
        worlds.append(World(kind, url, server, random.Random(request.node.name)))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world_on(request: pytest.FixtureRequest) -> Iterator[Callable[[servers.DatabaseServer], World]]:
    """A factory of worlds on a server that the test owns."""
    worlds: list[World] = []

    def make(server: servers.DatabaseServer) -> World:
        worlds.append(World(server.name, server.fresh_database(), server, random.Random(request.node.name)))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(params=ALL_KINDS)
def world(request: pytest.FixtureRequest, make_world: Callable[[str], World]) -> World:
    """A world on each of the three databases."""
    return make_world(request.param)


@pytest.fixture(params=SERVER_KINDS)
def server_world(request: pytest.FixtureRequest, make_world: Callable[[str], World]) -> World:
    """A world on each database that is a server."""
    return make_world(request.param)


@pytest.fixture
def postgresql(make_world: Callable[[str], World]) -> World:
    return make_world("postgresql")


@pytest.fixture
def mariadb(make_world: Callable[[str], World]) -> World:
    return make_world("mariadb")


@pytest.fixture
def sqlite(make_world: Callable[[str], World]) -> World:
    return make_world("sqlite")


@pytest.fixture
def killable(server_world: World) -> World:
    """A world on a server that may be killed."""
    assert server_world.server is not None
    if not server_world.server.can_be_killed:
        pytest.skip("the server does not belong to the tests")
    return server_world


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as executor:
        yield executor


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], object]], None]:
    """Return a function that waits until a condition holds, for at most ten seconds."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in ten seconds"
            pause.wait(0.005)

    return wait


@pytest.fixture(scope="session")
def raised() -> Callable[[Callable[[], object]], TxcoreError | None]:
    """Return a function that returns the TxcoreError that a call raises, or None."""

    def catch(call: Callable[[], object]) -> TxcoreError | None:
        try:
            call()
        except TxcoreError as error:
            return error
        return None

    return catch


@pytest.fixture
def replicated() -> Iterator[servers.DatabaseServer]:
    """Return a PostgreSQL server that a standby can follow."""
    yield from _server("postgresql", lambda: servers.postgresql(wal_level="replica"))


def _server(kind: str, start: Callable[[], servers.DatabaseServer]) -> Iterator[servers.DatabaseServer]:
    server = obtained(kind, start)
    yield server
    server.remove()
