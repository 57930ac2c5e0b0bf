"""The logs of a group are lost and made again, while its checkpoint topic stays: a drill of docs/disaster.md."""

from __future__ import annotations

import pytest
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers
from txcore_kafka.options import parse_url, topic_settings

from txcore import Message
from txcore.records import ParkCode

SENT = 2_000


@pytest.fixture
def topic(kit):
    """A topic, after a checkpoint that no new log soon reaches with its end markers, and that has an undecided half."""
    topic = kit.topic()
    kit.producer(Answers()).send_many([(Message(topic, b"before"), COMMIT)] * SENT)
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.stop_checkers()
    kit.orphan(Message(topic, b"gone"))
    listener = Answers(UNKNOWN)
    kit.sweep(kit.checker(listener, check_max=1000), lambda: bool(listener.asked))
    kit.stop_checkers()
    return topic


def lose(kit, *lost):
    """Delete logs, make them anew, and append another undecided half."""
    for name in (names := {f"txc.{kit.group}.{each}" for each in lost}):
        kit.delete(name)
    kit.until(lambda: not names & kit.admin.list_topics().topics.keys(), "the deletion")
    if "half" not in lost:  # a group that has its half topic is not made anew: an administrator makes the rest
        settings = topic_settings(parse_url(kit.address()), kit.group)
        for name in names:
            kit.make_topic(name, 2, **settings[name])
    kit.history.unjudged = "logs were deleted"
    kit.adopt(kit.connect())


def truncated(caplog):
    """Return the logs whose new beginning a checker has reported, and the levels of these reports."""
    found = [record for record in caplog.records if record.getMessage() == "log.truncated"]
    return {record.txcore["log"] for record in found}, {record.levelname for record in found}


@pytest.mark.parametrize("lost", [["half", "op"], ["half"]], ids="+".join)
def test_checkpoint_beyond_a_logs_new_end_hides_no_half(kit, topic, caplog, lost):
    """A running checker reads logs that begin anew from there, warns, and parks an undecided half that is gone."""
    (gone,) = kit.operator().pending()
    lose(kit, *lost)
    kit.orphan(Message(topic, b"after"))
    checker = kit.checker(Answers(COMMIT))
    kit.sweep(checker, lambda: b"after" in kit.bodies(topic) and bool(kit.operator().parked()))
    (parked,) = kit.operator().parked()
    assert (parked.transaction_id, parked.code) == (gone.transaction_id, ParkCode.LOST)
    assert len(kit.bodies(topic)) == SENT + 1
    assert (set(lost), {"WARNING"}) == truncated(caplog)


def test_checkpoint_beyond_the_new_end_of_the_ops_holds_no_decision_back(kit, topic, caplog):
    """A running checker reads the ops that begin anew, warns, and decides the halves that are there."""
    lose(kit, "op")
    kit.orphan(Message(topic, b"after"))
    kit.sweep(kit.checker(Answers(COMMIT)), lambda: len(kit.bodies(topic)) == SENT + 2)
    assert {b"before", b"gone", b"after"} == set(kit.bodies(topic))
    assert kit.operator().parked() == []
    assert ({"op"}, {"WARNING"}) == truncated(caplog)
