"""`txcore table`: what waits for a relay, counted; what is parked there, listed and sent again."""

from __future__ import annotations

import pytest

import txcore as library
from txcore.ids import id_text


@pytest.fixture
def put(world):
    """Put a message into the table; returns its transaction's id."""
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


def test_stats_counts_what_waits_and_what_is_parked(world, put, relay):
    """For people and for programs."""
    assert world("table", "stats").output == "0 messages to be sent; 0 parked\n"
    put()
    assert world.json("table", "stats")["waiting"] == 1
    assert "1 message to be sent, the oldest for " in world("table", "stats").output
    relay.run_once()
    assert world.json("table", "stats") == {"waiting": 0, "parked": 0, "oldest_age_s": 0.0}


def test_parked_message_is_listed_and_sent_again(world, put, relay):
    """With its topic, tries and reason; a second resume finds nothing."""
    identity = put("no-such-topic")
    relay.run_once()
    (told,) = world.json("table", "parked")
    assert (told["transaction_id"], told["index"], told["topic"], told["tries"]) == (identity, 0, "no-such-topic", 1)
    assert told["reason"]
    listed = world("table", "parked")
    assert (listed.status, identity in listed.output, "no-such-topic" in listed.output) == (0, True, True)
    world.kit.harness.create_topic("no-such-topic")
    assert world("table", "resume", identity).output == f"{identity}: 1 message to be sent again\n"
    assert relay.run_once().sent == 1
    assert world("table", "resume", identity).status == 1
    assert world("table", "parked").output == "nothing is parked in the message table\n"


def test_group_must_be_named(world):
    """The table may hold messages of several."""
    ran = world.here("table", "stats", "--database", world.database_url)
    assert (ran.status, "--group" in ran.sentence) == (2, True)
