"""The cost of the fence on the producer's connection: round trips, and objects for the garbage collector."""

from __future__ import annotations

import contextlib
import gc

import psycopg
import pytest
from sqlalchemy import event, text

import txcore
from txcore.errors import NotSentError
from txcore.fence import FenceAnswer
from txcore.sqlfence.border import Mark

GROUP = "orders"


@contextlib.contextmanager
def round_trips(connection, folder):
    """Count the round trips of a psycopg connection."""
    trips, trace = [], folder / "trace"
    with trace.open("w") as file:
        connection.pgconn.trace(file.fileno())
        yield trips
        connection.pgconn.untrace()
    sent = [line.split("\t") for line in trace.read_text(encoding="utf-8", errors="replace").splitlines()]
    trips += [part[3] for part in sent if len(part) > 3 and part[1] == "F" and part[3] in {"Query", "Sync"}]


@pytest.fixture
def producer(postgresql):
    return txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=postgresql.fence)


def test_prepared_psycopg_transaction_pays_one_round_trip(postgresql, producer, tmp_path):
    """A prepared psycopg transaction pays one round trip: the answer to the insert makes the row certain.

    The library reads the identity of the database once on each connection; after that the insert compares it.
    """
    url = postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with contextlib.closing(psycopg.connect(url)) as connection:
        for _ in range(2):
            transaction = producer.begin()
            number = transaction.transaction_id.hex()
            connection.execute(f"INSERT INTO {postgresql.orders_table} (number) VALUES (%s)", (number,))
            transaction.publish(txcore.Message("orders", b"tea"))
            with round_trips(connection, tmp_path) as trips:
                transaction.prepare(connection)
            connection.commit()
            assert transaction.commit().state is txcore.EndState.ACCEPTED
        assert len(trips) == 1
    assert postgresql.check(transaction.transaction_id) is FenceAnswer.COMMIT


def test_database_style_pays_one_round_trip_once_the_statements_are_prepared(postgresql, producer, tmp_path):
    """The database style sends the row with BEGIN, and pays one round trip to verify the row at the end."""
    engine = postgresql.new_engine(pool_size=1)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
    for _ in range(8):
        with round_trips(driver, tmp_path) as trips, producer.transaction(engine) as transaction:
            postgresql.add_order(transaction.connection, transaction.transaction_id)
            transaction.publish(txcore.Message("orders", b"tea"))
    assert len(trips) == len(["BEGIN and the row", "the order", "verify", "COMMIT"])
    assert transaction.result.state is txcore.EndState.ACCEPTED


def test_database_style_runs_few_statements_on_sqlite(make_world):
    """The database style's own statements on SQLite are settings, the row, its savepoint and its digest."""
    world = make_world("sqlite")
    producer = txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=world.fence)
    engine, statements = world.new_engine(pool_size=1), []
    with engine.connect() as connection:
        connection.connection.driver_connection.set_trace_callback(statements.append)
    for _ in range(2):
        del statements[:]
        with producer.transaction(engine) as transaction:
            transaction.publish(txcore.Message("orders", b"tea"))
    own = [each.split()[0] for each in statements if not each.startswith("--")]  # the others are parts of these
    begun = ["PRAGMA", "BEGIN", "SELECT", "INSERT", "SAVEPOINT"]
    assert own == [*begun, "RELEASE", "UPDATE", "COMMIT"]
    assert transaction.result.state is txcore.EndState.ACCEPTED


def test_database_style_pays_five_round_trips_on_mariadb(mariadb):
    """A savepoint, by which MariaDB knows the transaction, costs two; the savepoint is not set again at the end."""
    producer = txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=mariadb.fence)
    engine = mariadb.new_engine(pool_size=1)
    statements, asked = [], "SHOW SESSION STATUS LIKE 'Questions'"
    for _ in range(2):
        with engine.connect() as connection:
            before = connection.execute(text(asked)).one()[1]
        with producer.transaction(engine) as transaction:
            transaction.publish(txcore.Message("orders", b"tea"))
        with engine.connect() as connection:
            statements.append(int(connection.execute(text(asked)).one()[1]) - int(before))
    around = ["ROLLBACK of the pool", "ROLLBACK of the pool", "the question itself"]
    assert statements[1] - len(around) == len(["row", "SAVEPOINT", "RELEASE", "digest", "COMMIT"])
    assert transaction.result.state is txcore.EndState.ACCEPTED


def test_row_and_messages_pay_one_round_trip_with_begin(postgresql, tmp_path):
    """In mode table, BEGIN, row and messages are one round trip, with a plan that the server uses again."""
    producer = txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=postgresql.fence, mode="table")
    url = postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with contextlib.closing(psycopg.connect(url)) as connection:
        for _ in range(20):
            transaction = producer.begin()
            transaction.publish(txcore.Message("orders", b"tea"))
            transaction.publish(txcore.Message("orders", b"milk"))
            with round_trips(connection, tmp_path) as trips:
                transaction.prepare(connection)
                connection.commit()
            assert transaction.commit().state is txcore.EndState.VIA_TABLE
        assert len(trips) == len(["BEGIN, the row and the messages", "COMMIT"])
        plans = connection.execute(
            "SELECT generic_plans > custom_plans FROM pg_prepared_statements WHERE statement LIKE '%put AS%'"
        ).fetchall()
    assert plans == [(True,)]


def test_a_relays_batch_has_few_statements(postgresql):
    """A relay's batch has few statements with any number of slots and rows, as each waits for the processor."""
    producer = txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=postgresql.fence, mode="table")
    relay = txcore.Relay(txcore.connect("memory://"), GROUP, postgresql.engine, table=postgresql.fence_table)
    assert not relay.run_once().sent
    for _ in range(10):
        with producer.transaction(postgresql.engine) as transaction:
            for number in range(100):
                transaction.publish(txcore.Message("orders", b"tea", str(number).encode()))
    statements = []
    event.listen(postgresql.engine, "before_cursor_execute", lambda *each: statements.append(each[2]))
    table = relay.table
    taken = table.take(GROUP, (), 1_000)
    table.settle(taken, taken.rows, [])
    assert len(taken.rows) > 200
    assert len(taken.slots) > 10
    assert len(statements) <= len(["settings", "a bound", "busy slots", "hold", "rows", "delete"])


def marks():
    """Return the marks of all connections that the process holds."""
    return [each for each in gc.get_objects() if isinstance(each, Mark)]


@pytest.mark.parametrize("style", ["the fence's connection", "the caller's connection"])
def test_connection_with_a_row_leaves_no_cycle_of_references(world, style):
    """A connection with a row is freed without the garbage collector."""
    gc.collect()
    before = {id(each) for each in marks()}  # another test's connection may be open still
    gc.disable()
    try:
        if style == "the fence's connection":
            connection = world.fence.begin(None, world.new_id(), GROUP)
            world.fence.commit(connection)
        else:
            with world.engine.begin() as connection:
                world.fence.insert(connection, world.new_id(), GROUP)
            assert not world.fence.is_open(connection)
        del connection
        assert not {id(each) for each in marks()} - before
    finally:
        gc.enable()


def test_connection_lost_before_verify_is_not_given_out_again(server_world):
    """A dead pooled connection is found by `verify`, whose statement bypasses SQLAlchemy, and is not used again."""
    engine = server_world.new_engine(pool_size=1, max_overflow=0)
    transaction_id = server_world.new_id()
    connection = server_world.fence.begin(engine, transaction_id, GROUP)
    server_world.kill_session(server_world.session_id(connection))
    with pytest.raises(NotSentError, match="lost"):
        server_world.fence.verify(connection, transaction_id)
    assert connection.closed
    with engine.connect() as fresh:
        assert fresh.execute(text("SELECT 1")).scalar_one() == 1
    assert server_world.check(transaction_id) is FenceAnswer.ROLLBACK
