"""The relay sends the messages of other libraries' outbox tables, which need no change."""

from __future__ import annotations

import json
import uuid

import pytest
from sqlalchemy import create_engine, text
from txcore_conformance.kit import Observed, wait_until

from txcore import ConfigError, Inbox, Relay, RelayLimits, wire
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.outbox.foreign_tables import OutboxTable
from txcore.outbox.relay import LAYOUTS, layout_of
from txcore.runtime.instrumentation import RELAY_REFUSED

GROUP = "orders"
BLOB = {"postgresql": "bytea", "mariadb": "BLOB", "sqlite": "BLOB"}


class Bench:
    """A table in the world's database and a broker in memory."""

    def __init__(self, world, columns):
        self.world = world
        self.broker = MemoryBroker()
        self.table = f"outbox_{world.number}"
        with world.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} ({columns})"))

    def insert(self, **values):
        names = ", ".join(self.world.engine.dialect.identifier_preparer.quote(name) for name in values)
        places = ", ".join(f":{name}" for name in values)
        with self.world.engine.begin() as connection:
            connection.execute(text(f"INSERT INTO {self.table} ({names}) VALUES ({places})"), values)

    def relay(self, layout, **options):
        options = {"limits": RelayLimits(retry_s=0.001, retry_max_s=0.01)} | options
        return Relay(MemoryBackend(self.broker), GROUP, self.world.engine, table=self.table, layout=layout, **options)

    def rows(self, condition="1 = 1"):
        with self.world.engine.connect() as connection:
            return connection.execute(text(f"SELECT count(*) FROM {self.table} WHERE {condition}")).scalar_one()


@pytest.fixture
def debezium(world):
    return Bench(
        world,
        "id varchar(36) PRIMARY KEY, aggregatetype varchar(50), aggregateid varchar(50), type varchar(50), "
        "payload varchar(200), created_at integer",
    )


def test_debezium_table_is_sent_in_its_order_and_emptied(debezium):
    """Debezium's rows give topic, key and headers, are sent in their order, and are deleted."""
    ids = [str(uuid.uuid4()) for _ in range(20)]
    for number, identity in enumerate(ids):
        debezium.insert(
            id=identity, aggregatetype="order", aggregateid=f"{number % 3}", type="Created", payload=f"{number}",
            created_at=number,
        )  # fmt: skip
    relay = debezium.relay(layout_of("debezium", {"order": "created_at"}), limits=RelayLimits(row_max=3))
    assert relay.run_once().sent == 20
    sent = debezium.broker.topics["outbox.event.order"]
    for key in (b"0", b"1", b"2"):
        numbers = [int(each.body) for each in sent if each.key == key]
        assert numbers == sorted(numbers)
    by_body = {int(each.body): each.headers for each in sent}
    assert [by_body[n][wire.HEADER_ID] for n in range(20)] == [f"{identity}:0" for identity in ids]
    assert (by_body[0]["id"], by_body[0]["type"], debezium.rows()) == (ids[0], "Created", 0)


def test_table_that_marks_its_rows_keeps_them(world):
    """Eventuate's rows, with JSON headers and an id that is no UUID, are kept and marked as published."""
    bench = Bench(
        world,
        "id varchar(40) PRIMARY KEY, destination varchar(50), headers varchar(200), payload varchar(200), "
        "published smallint DEFAULT 0, creation_time bigint",
    )
    headers = json.dumps({"PARTITION_ID": "7", "n": 1})
    for number in range(3):
        bench.insert(id=f"0000-{number}", destination="orders", headers=headers, payload="{}", creation_time=number)
    relay = bench.relay(LAYOUTS["eventuate"])
    assert (relay.run_once().sent, relay.run_once().sent, bench.rows("published = 1")) == (3, 0, 3)
    first = bench.broker.topics["orders"][0]
    assert (first.headers["PARTITION_ID"], first.headers["n"], first.body) == ("7", "1", b"{}")
    assert len({each.headers[wire.HEADER_ID] for each in bench.broker.topics["orders"]}) == 3


def test_columns_with_capitals_and_binary_bodies(world):
    """MassTransit's rows, with quoted column names and binary bodies, are sent."""
    quote = world.engine.dialect.identifier_preparer.quote
    names = {"SequenceNumber": "bigint", "MessageId": "varchar(36)", "DestinationAddress": "varchar(50)"}
    columns = ", ".join(f"{quote(name)} {kind}" for name, kind in names.items())
    bench = Bench(world, f"{columns}, {quote('Body')} {BLOB[world.kind]}, {quote('Headers')} varchar(100)")
    identity = str(uuid.uuid4())
    bench.insert(SequenceNumber=1, MessageId=identity, DestinationAddress="orders", Body=b"\x00\xff", Headers=None)
    assert bench.relay(LAYOUTS["masstransit"]).run_once().sent == 1
    assert [each.body for each in bench.broker.topics["orders"]] == [b"\x00\xff"]


def test_refused_message_of_an_outbox_stays_and_holds_up_only_its_key(debezium):
    """A refused message stays, delays only its key, and is not parked, because the table counts no tries."""
    debezium.broker.refusing.add("outbox.event.bad")
    for number, (kind, key) in enumerate((("bad", "a"), ("order", "a"), ("order", "b"))):
        debezium.insert(
            id=str(uuid.uuid4()), aggregatetype=kind, aggregateid=key, type="t", payload=f"{number}", created_at=number
        )
    relay = debezium.relay(layout_of("debezium", {"order": "created_at"}))
    relay.start()
    wait_until(lambda: relay.stats().refused > 3, "several tries")
    assert [each.body for each in debezium.broker.topics["outbox.event.order"]] == [b"2"]
    debezium.broker.refusing.clear()
    wait_until(lambda: not debezium.rows(), "an empty table")
    assert relay.stop()


def test_row_without_a_topic_stays_and_one_without_a_body_is_sent(debezium):
    """NULL is not sent as its name: no topic is a refusal, no body an empty one, and no header is made of it."""
    for number, kind in enumerate((None, "", "order")):
        debezium.insert(
            id=str(uuid.uuid4()),
            aggregatetype=kind,
            aggregateid=str(number),
            type=None,
            payload=None,
            created_at=number,
        )
    observed = Observed()
    layout = layout_of("debezium", {"order": "created_at"})
    relay = debezium.relay(layout, plugins=(observed,), limits=RelayLimits(retry_s=9))
    assert (relay.run_once().refused, debezium.rows(), list(debezium.broker.topics)) == (2, 2, ["outbox.event.order"])
    (target,) = debezium.broker.topics["outbox.event.order"]
    assert (target.body, "type" in target.headers) == (b"", False)
    assert {each["error"] for each in observed.named(RELAY_REFUSED)} == {"the row names no topic"}


def test_resting_lanes_of_an_outbox_are_left_alone(debezium):
    """The relay reads the oldest rows of the lanes that do not rest."""
    for number in range(4):
        debezium.insert(
            id=str(uuid.uuid4()),
            aggregatetype="order",
            aggregateid="ab"[number % 2],
            type="t",
            payload=f"{number}",
            created_at=number,
        )
    table = debezium.relay(layout_of("debezium", {"order": "created_at"})).table
    every = table.take(GROUP, (), 10)
    table.drop(every)
    taken = table.take(GROUP, {every.rows[0].lane}, 10)
    table.drop(taken)
    assert [every.rows[1], every.rows[3]] == taken.rows


@pytest.mark.parametrize("done", ["", "done"])
def test_rows_behind_many_that_rest_are_sent(world, done):
    """However many messages wait for their topic, those of other keys after them are sent, in their order."""
    bench = Bench(world, "id varchar(36), topic varchar(9), k varchar(9), payload varchar(9), n integer, done integer")
    bench.broker.refusing.add("bad")
    for number in range(20):
        topic, key = ("bad", f"{number % 5}") if number < 15 else ("good", f"g{number % 2}")
        bench.insert(id=str(uuid.uuid4()), topic=topic, k=key if number != 3 else None, payload=f"{number}", n=number)
    columns = {"id": "id", "topic": "topic", "body": "payload", "key": "k", "order": "n", "done": done}
    limits = RelayLimits(row_max=3, retry_s=60, retry_max_s=60, poll_s=0.001, idle_poll_s=0.01)
    with bench.relay(layout_of("", columns), limits=limits):
        wait_until(lambda: bench.rows("done = 1" if done else "n > 14") == (5 if done else 0), "the others")
    for key in (b"g0", b"g1"):
        numbers = [int(each.body) for each in bench.broker.topics["good"] if each.key == key]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("identity", ["00000000-9681-4fbd-82f9-98a65aa3d8ed", "1475"])
def test_row_with_an_id_that_has_no_time_is_new_to_a_pruned_inbox(world, identity):
    """A random UUID, and one that is made of another value, are never older than an inbox, and are remembered."""
    bench = Bench(world, "id varchar(36), topic varchar(9), payload varchar(9), n integer")
    inbox = Inbox(world.engine, table=f"inbox_{world.number}")
    inbox.create()
    inbox.prune(keep_s=3600)
    bench.insert(id=identity, topic="t", payload="x", n=1)
    bench.relay(layout_of("", {"id": "id", "topic": "topic", "body": "payload", "order": "n"})).run_once()
    (target,) = bench.broker.topics["t"]
    for is_new in (True, False):
        inbox.prune(keep_s=0.001)
        with world.engine.begin() as connection, inbox.receive(connection, target.headers) as is_first:
            assert is_first is is_new


def test_another_relay_waits_while_one_sends(server_world):
    """A second relay gets no rows while the first one holds the lock, which ends with its connection."""
    bench = Bench(server_world, "id varchar(36), topic varchar(9), payload varchar(9), n integer")
    bench.insert(id=str(uuid.uuid4()), topic="t", payload="x", n=1)
    layout = layout_of("", {"id": "id", "topic": "topic", "body": "payload", "order": "n"})
    first, second = bench.relay(layout).table, bench.relay(layout).table
    taken = first.take(GROUP, (), 10)
    assert second.take(GROUP, (), 10) is None
    first.drop(taken)
    again = second.take(GROUP, (), 10)
    assert again.rows == taken.rows
    second.settle(again, again.rows, [])
    assert bench.rows() == 0


def test_server_takes_an_outbox_from_a_frozen_relay(server_world):
    """The lock ends after the time for which a relay may hold it, and the connection keeps no setting of it."""
    bench = Bench(server_world, "id varchar(36), topic varchar(9), payload varchar(9), n integer")
    bench.insert(id=str(uuid.uuid4()), topic="t", payload="x", n=1)
    layout = layout_of("", {"id": "id", "topic": "topic", "body": "payload", "order": "n"})
    engine = server_world.new_engine(pool_size=1, max_overflow=0)
    frozen = OutboxTable(server_world.new_engine(), GROUP, bench.table, layout, hold_s=1)
    other = OutboxTable(engine, GROUP, bench.table, layout)
    sql = {
        "postgresql": "SELECT current_setting('idle_in_transaction_session_timeout')",
        "mariadb": "SELECT @@SESSION.wait_timeout",
    }[server_world.kind]
    with engine.connect() as connection:
        before = connection.execute(text(sql)).scalar_one()
    taken = frozen.take(GROUP, (), 10)
    found = []
    wait_until(lambda: found.append(other.take(GROUP, (), 10)) or found[-1], "the lock")
    other.drop(found[-1])
    frozen.drop(taken)
    with engine.connect() as connection:
        assert connection.execute(text(sql)).scalar_one() == before


def test_outbox_of_another_database_is_no_obstacle(mariadb):
    """Tables of one name in two databases of a server have a lock each."""
    columns = "id varchar(36), topic varchar(9), payload varchar(9), n integer"
    layout = layout_of("", {"id": "id", "topic": "topic", "body": "payload", "order": "n"})
    bench = Bench(mariadb, columns)
    here = OutboxTable(mariadb.engine, GROUP, bench.table, layout)
    there = OutboxTable(create_engine(mariadb.server.fresh_database()), GROUP, bench.table, layout)
    for engine in (mariadb.engine, there._engine):
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE IF NOT EXISTS {bench.table} ({columns})"))
            connection.execute(text(f"INSERT INTO {bench.table} VALUES ('1', 't', 'x', 1)"))
    taken = [table.take(GROUP, (), 10) for table in (here, there)]
    assert all(taken)
    here.drop(taken[0])
    there.drop(taken[1])
    there._engine.dispose()


def test_row_far_behind_with_the_id_of_a_sent_one_is_not_removed(world):
    """The number of removed rows shows a row with that id which was not read."""
    bench = Bench(world, "id varchar(36), topic varchar(9), payload varchar(9), n integer")
    for number in range(6):
        bench.insert(id=str(number % 5), topic="t", payload="x", n=number)
    layout = layout_of("", {"id": "id", "topic": "topic", "body": "payload", "order": "n"})
    with pytest.raises(ConfigError, match="one value in 2 rows, 1 of which were sent"):
        bench.relay(layout, limits=RelayLimits(row_max=1)).run_once()
    assert bench.rows() == 6


@pytest.mark.parametrize(("ids", "what"), [((None,), "NULL"), (("7", "7"), "'7' twice")])
def test_rows_that_no_id_tells_apart_are_not_sent(world, ids, what):
    """A row whose id is that of another one would be removed unsent with it, and one without an id never."""
    bench = Bench(world, "id varchar(36), topic varchar(9), payload varchar(9), n integer")
    for number, identity in enumerate(ids):
        bench.insert(id=identity, topic="t", payload="x", n=number)
    relay = bench.relay(layout_of("", {"id": "id", "topic": "topic", "body": "payload", "order": "n"}))
    with pytest.raises(ConfigError, match=f"column 'id' of {bench.table} has {what}"):
        relay.run_once()
    assert (bench.rows(), bench.broker.topics) == (len(ids), {})


def test_layout_error_names_the_mistake():
    """The error about a layout names the mistake; a column's name goes into SQL, so it must be a plain one."""
    for name, changes, text_of in (
        ("oracle", {}, "debezium, eventuate, masstransit"),
        ("debezium", {"colour": "x"}, "no key 'colour'"),
        ("", {"id": "id"}, "name the column of 'topic'"),
        ("debezium", {"order": "id; DROP TABLE x"}, "is not a column name"),
    ):
        with pytest.raises(ConfigError, match=text_of):
            layout_of(name, changes)
