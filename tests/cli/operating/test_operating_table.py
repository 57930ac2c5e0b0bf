"""`txcore table`: messages that wait for a relay are counted; parked ones are listed and sent again."""

from __future__ import annotations

import signal
import uuid

import pytest
from sqlalchemy import text

import txcore as library
from txcore.ids import id_text


@pytest.fixture
def put(world):
    """Return a function that puts a message into the table and returns its transaction's id."""
    world.fence.create()
    producer = library.TransactionProducer(world.kit.backend, world.kit.group, fence=world.fence, mode="table")

    def one(topic=""):
        with producer.transaction(world.engine) as tx:
            tx.publish(library.Message(topic or world.topic, b"body", b"key"))
        return id_text(tx.transaction_id)

    return one


@pytest.fixture
def relay(world):
    return library.Relay(
        world.kit.backend, world.kit.group, world.engine, limits=library.RelayLimits(tries_max=1), plugins=()
    )


def test_stats_counts_waiting_and_parked_messages(world, put, relay):
    """The counts are printed as text and as JSON."""
    assert world("table", "stats").output == "0 messages to be sent; 0 parked\n"
    put()
    assert world.json("table", "stats")["waiting"] == 1
    assert "1 message to be sent, the oldest for " in world("table", "stats").output
    relay.run_once()
    empty = {"waiting": 0, "parked": 0, "oldest_age_s": 0.0, "dropped": 0, "reason": ""}
    empty |= {"later": 0, "cancelled": 0, "next_due_s": None}
    stats = world.json("table", "stats")
    assert 0 <= stats.pop("relay_seen_s") < 60
    assert stats == empty


@pytest.mark.parametrize(("tries_max", "waiting", "parked"), [(2, 1, 0), (1, 0, 1)], ids=["waiting", "parked"])
def test_stats_and_top_name_the_last_error(world, put, tries_max, waiting, parked):
    """Both have the reason in the row, as text that fits 80 columns and as JSON: of a row that waits or is parked."""
    put("a-topic-that-is-not-there")
    limits = library.RelayLimits(tries_max=tries_max)
    library.Relay(world.kit.backend, world.kit.group, world.engine, limits=limits).run_once()
    (group,) = world.json("top")
    for found in (world.json("table", "stats"), group["table"]):
        assert (found["waiting"], found["parked"]) == (waiting, parked)
        assert "a-topic-that-is-not-there" in found["reason"]
    for ran in (world("table", "stats"), world("top", "--once")):
        assert "last error: " in ran.output
        assert "a-topic-that-is-not-there" in ran.output
        assert ran.width <= 80


def test_top_counts_the_messages_in_the_table(world, put):
    """The view has the number and the age; without a database it has no word about the table."""
    put()
    ran = world("top", "--once")
    assert "message table: 1 message to be sent, the oldest for " in ran.output
    assert ran.width <= 80
    without = world.here("top", "--once", "--broker", world.broker_url, "--group", world.kit.group)
    assert (without.status, "message table" in without.output) == (0, False)


def test_top_works_without_a_message_table(world):
    """A fence that was made without the table does not stop the view."""
    with world.engine.begin() as connection:
        connection.execute(text("DROP TABLE txcore_tx_msg"))
    try:
        assert (world("top", "--once").errors, world.json("top")[0]["table"]) == ("", None)
    finally:
        world.fence.create()


def test_parked_message_is_listed_and_sent_again(world, put, relay):
    """The list has topic, tries and reason; a second resume finds nothing."""
    identity = put("no-topic")
    relay.run_once()
    (shown,) = world.json("table", "parked")
    assert (shown["transaction_id"], shown["index"], shown["topic"], shown["tries"]) == (
        identity,
        0,
        "no-topic",
        1,
    )
    assert shown["reason"]
    listed = world("table", "parked")
    assert (listed.status, identity in listed.output, "no-topic" in listed.output) == (0, True, True)
    world.kit.harness.create_topic("no-topic")
    assert world("table", "resume", identity).output == f"{identity}: 1 message to be sent again\n"
    assert relay.run_once().sent == 1
    assert world("table", "resume", identity).status == 1
    assert world("table", "parked").output == "nothing is parked in the message table\n"


def test_parked_message_is_dropped_with_its_reason(world, put, relay):
    """The row keeps operator, time and reason; a second drop finds nothing."""
    identity = put("neither-is-this")
    relay.run_once()
    assert world("table", "drop", identity).status == 2
    assert "say why" in world("table", "drop", identity, "--why", "").sentence
    ran = world("table", "drop", identity, "--why", "a test order", "--by", "ann")
    assert (ran.status, ran.output) == (0, f"{identity}: 1 message dropped\n")
    assert world("table", "stats").output == "0 messages to be sent; 0 parked, 1 dropped\n"
    assert world.json("table", "parked") == []
    (shown,) = world.json("table", "parked", "--dropped")
    assert (shown["transaction_id"], shown["reason"].startswith("dropped by ann at ")) == (identity, True)
    assert world("table", "drop", identity, "--why", "again").status == 1
    world.kit.harness.create_topic("neither-is-this")
    assert relay.run_once().sent == 0


def test_delayed_message_is_cancelled_until_it_is_due(world, put, relay):
    """The answer is printed, and repeated; a message that was sent is too late, an unknown one is not found."""
    sent, unknown = put(), str(uuid.UUID(int=1 << 126))
    relay.run_once()
    producer = library.TransactionProducer(world.kit.backend, world.kit.group, fence=world.fence)
    with producer.transaction(world.engine) as tx:
        tx.publish(library.Message(world.topic, b"body", delay_s=7000))
    identity = str(tx.transaction_id)
    assert "; 1 later, the next in " in world("table", "stats").output
    assert "say why" in world("cancel", identity, "--why", "").sentence
    for _ in range(2):
        ran = world("cancel", identity, "--why", "paid by phone", "--by", "ann")
        assert (ran.status, ran.output) == (0, f"{identity}: CANCELLED\n")
    assert world("table", "stats").output == "0 messages to be sent; 0 parked, 1 cancelled\n"
    ran = world("cancel", sent, unknown, identity, "--why", "x", "--json")
    assert ran.status == 1
    assert [f'"{each}"' in ran.output for each in ("TOO_LATE", "NOT_FOUND", "CANCELLED")] == [True] * 3


def test_group_must_be_named(world):
    """The command requires a group, because the table may hold messages of several groups."""
    ran = world.here("table", "stats", "--database", world.database_url)
    assert (ran.status, "--group" in ran.sentence) == (2, True)


def test_relay_once_sends_the_waiting_messages_and_ends(world, put):
    """`--once` sends the waiting messages and ends, as for a cron job."""
    put()
    put()
    ran = world("relay", "--once")
    assert (ran.status, ran.output, len(world.bodies())) == (0, "2 messages sent, 0 refused, 0 parked\n", 2)
    assert world.json("relay", "--once") == {"sent": 0, "refused": 0, "parked": 0}


def test_relay_runs_until_a_signal_stops_it(world, put):
    """SIGTERM stops the relay after its current batch."""
    process = world.start("relay")
    put()
    world.until(world.bodies)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, "1 message sent" in output) == (0, True)


def test_relay_sends_from_an_outbox_table_of_another_library(world):
    """The relay reads another library's table, whose columns are given by name."""
    with world.engine.begin() as connection:
        connection.execute(text("CREATE TABLE events (id text, kind text, body text, n integer)"))
        connection.execute(
            text("INSERT INTO events VALUES (:id, :topic, 'hello', 1)"), {"id": str(uuid.uuid4()), "topic": world.topic}
        )
    columns = [part for each in ("id=id", "topic=kind", "body=body", "order=n") for part in ("--column", each)]
    assert world("relay", "--once", "--table", "events", *columns).output.startswith("1 message sent")
    assert world.bodies() == [b"hello"]
    assert "no key 'colour'" in world("relay", "--once", "--table", "events", "--column", "colour=x").sentence
