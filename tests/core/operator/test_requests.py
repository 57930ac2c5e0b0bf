"""The operators' decisions in a group, read back from its logs."""

from __future__ import annotations

from txcore.memory import MemoryBackend
from txcore.operator import requests
from txcore.operator.operator import Operator
from txcore.records import Op, OpKind


def decisions_in(broker):
    entries, count = requests.read_decisions(Operator(MemoryBackend(broker), "g"))
    assert len(entries) == count
    return [(each.what, each.by, each.reason) for each in reversed(entries)]


def test_a_forced_end_is_listed_from_its_request_to_its_execution(broker, orphan, checker):
    """The steps of a forced end are listed in the order of the log, even if clocks differ; other ends are left out."""
    identity = orphan()
    Operator(MemoryBackend(broker), "g", by="ann").rollback(identity, "it is void")
    checker.run_once()
    steps = decisions_in(broker)
    assert ("asked for ROLLBACK", "ann", "it is void") == steps[0]
    assert ["decided ROLLBACK", "executed ROLLBACK"] == [what for what, _, _ in steps[1:]]
    assert "ann: it is void" == steps[1][2]


def test_a_resume_is_listed_with_its_reason(broker, running_clock, orphan, checker):
    """A resume is listed with the operator and the reason that its half names."""
    identity = orphan()
    for _ in range(3):
        checker.run_once()
        running_clock.advance(5)
    Operator(MemoryBackend(broker), "g", by="bo").resume(identity, "it knows: now")
    assert [("resumed", "bo", "it knows: now")] == decisions_in(broker)


def test_the_newest_are_kept_and_all_are_counted(monkeypatch):
    """The newest requests are kept, in whatever order the logs hold them, and all are counted."""
    monkeypatch.setattr(requests, "KEPT_MAX", 3)
    newest = requests._Newest()
    for at_ms in (5, 1, 9, 7, 3, 8):
        newest.take_op(
            Op(OpKind.FORCE, bytes([at_ms] * 16), 0, "ann", at_ms, decision=OpKind.COMMIT, forced=1, reason="why")
        )
    newest.take_op(Op(OpKind.COMMIT, bytes(16), 0, "p:1", 10))
    assert (6, [9, 8, 7]) == (newest.count, [each.at_ms for each in newest.entries])
