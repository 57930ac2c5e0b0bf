"""`txcore show --targets`: what the target topics hold of one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import sys

import pytest

pytest.importorskip("pyarrow")

from txcore import LocalTransactionState


def squeezed(text):
    """Return the text on one line."""
    return " ".join(text.split())


def test_each_message_is_shown_in_its_topic(world):
    """A message has its position and time; one that was not sent is missing."""
    world.finished()
    identity = world.finished()
    ran = world("show", identity, "--targets")
    assert (ran.status, ran.errors) == (0, "")
    assert f"target {world.topic}/0@" in squeezed(ran.output)
    assert "DIFFERS" not in ran.output
    (shown,) = world.json("show", identity, "--targets")["targets"]
    assert (0, True) == (shown["index"], shown["is_as_half"])
    assert shown["place"] in ran.output
    assert "targets" not in world.json("show", identity)
    for unsent in (world.pending(), world.finished(LocalTransactionState.ROLLBACK)):
        assert "no target in its topic" in world("show", unsent, "--targets").output
        assert [] == world.json("show", unsent, "--targets")["targets"]


@pytest.fixture
def statement(world):
    """Return a function that runs one statement in the broker's file."""
    if not world.broker_url.startswith("sqlite:"):
        pytest.skip("the broker's file is changed by hand")
    path = world.broker_url.partition(":///")[2].partition("?")[0]

    def run(sql):
        with contextlib.closing(sqlite3.connect(path)) as broker, broker:
            broker.execute(sql)

    return run


def test_an_altered_target_is_marked(world, statement):
    """The message of the half and that of the topic differ in one byte."""
    identity = world.finished()
    statement("UPDATE target SET body = CAST(replace(body, 'parcel', 'parceL') AS BLOB)")
    assert "DIFFERS FROM THE HALF" in squeezed(world("show", identity, "--targets").output)
    (shown,) = world.json("show", identity, "--targets")["targets"]
    assert not shown["is_as_half"]


def test_a_topic_that_cannot_be_read_is_named(world, statement):
    """The page still has the rest of the journey."""
    identity = world.finished()
    statement("ALTER TABLE target RENAME TO hidden")
    try:
        ran = world("show", identity, "--targets")
        shown = world.json("show", identity, "--targets")
    finally:
        statement("ALTER TABLE hidden RENAME TO target")
    assert (ran.status, ran.errors) == (0, "")
    assert "its topic was not read: " in squeezed(ran.output)
    assert "next nothing: it is finished" in squeezed(ran.output)
    assert [world.topic] == [*shown["unread_topics"]]


def test_without_arrow_it_says_what_to_install(world, monkeypatch):
    """The readers are those of the audit."""
    identity = world.pending()
    for name in [name for name in sys.modules if name.startswith(("txcore_spark", "pyarrow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = world("show", identity, "--targets")
    assert ran.status
    assert 'pip install "txcore[spark]"' in ran.sentence.replace("\n", " ")
