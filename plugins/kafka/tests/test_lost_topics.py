"""The logs of a group are lost and made again, while its checkpoint topic stays: a drill of docs/disaster.md."""

from __future__ import annotations

import pytest
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers

from txcore import Message
from txcore.records import ParkCode

SENT = 2_000


@pytest.mark.parametrize("lost", [["half", "op"], ["half"]], ids="+".join)
def test_checkpoint_beyond_a_logs_new_end_hides_no_half(kit, lost):
    """A running checker reads logs that begin anew from there, and parks an undecided half that is gone as LOST."""
    topic = kit.topic()
    # So many that the markers of the log's end do not soon reach the checkpoint in the new log.
    kit.producer(Answers()).send_many([(Message(topic, b"before"), COMMIT)] * SENT)
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.stop_checkers()
    gone = kit.orphan(Message(topic, b"gone")).transaction_id
    listener = Answers(UNKNOWN)
    kit.sweep(kit.checker(listener, check_max=1000), lambda: bool(listener.asked))
    kit.stop_checkers()
    for name in (names := {f"txc.{kit.group}.{each}" for each in lost}):
        kit.delete(name)
    kit.until(lambda: not names & kit.admin.list_topics().topics.keys(), "the deletion")

    kit.history.unjudged = "logs were deleted"
    kit.adopt(kit.connect())
    kit.orphan(Message(topic, b"after"))
    checker = kit.checker(Answers(COMMIT))
    kit.sweep(checker, lambda: b"after" in kit.bodies(topic) and bool(kit.operator().parked()))
    (parked,) = kit.operator().parked()
    assert (parked.transaction_id, parked.code) == (gone, ParkCode.LOST)
    assert len(kit.bodies(topic)) == SENT + 1
