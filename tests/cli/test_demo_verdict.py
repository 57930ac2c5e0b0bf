"""The number of copies of one message that the demo accepts: one more for each killed attempt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from txcore_conformance.demo.supervisor import Progress
from txcore_conformance.demo.verdict import causes_of
from txcore_conformance.invariants import Facts, Invariant, Local, Promises, TargetFact, judge

from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.records import Half, Op, OpKind, Position, TargetMessage

A = b"a" * 16


def received(by, identity=A):
    """Return one copy of the message, published by the attempt *by*."""
    headers = {"txcore-id": f"{id_text(identity)}:0".encode(), "txcore-by": by.encode(), "txcore-group": b"g"}
    return SimpleNamespace(position=1, key=b"k", body=b"order", headers=headers)


def verdict(copies, *, dead=(), uncertain=0):
    """Return the invariants that the copies break."""
    progress = Progress(dead_attempts=set(dead))
    progress.uncertain[A] = uncertain
    messages = [received(by) for by in copies]
    journey = Journey(A, 0)
    message = TargetMessage("t", b"k", b"order", {})
    journey.add_half(Half(1, A, "g", 0, 0, 1, 1, 1, 1, fenced=True, by="p", messages=[message]), None)
    journey.ops.append((Position(1), Op(OpKind.COMMIT, A, by=copies[-1])))
    journey.final = OpKind.COMMIT
    targets = [TargetFact(0, "t", each.key, each.body, each.headers) for each in messages]
    causes = causes_of(messages, progress)[A]
    facts = Facts(journey, targets, Local.COMMITTED, is_acknowledged=True, duplicate_causes=causes)
    return [each.invariant for each in judge(facts, Promises(), at_rest=True)]


@pytest.mark.parametrize(
    ("copies", "dead"),
    [
        (["p:1"], []),
        (["p:1", "c:1"], ["p:1"]),
        (["p:1", "c:1", "c:2"], ["p:1", "c:1"]),
        (["p:1", "c:1", "c:2", "c:3"], ["p:1", "c:1", "c:2"]),
    ],
)
def test_each_killed_attempt_may_leave_a_copy(copies, dead):
    """A killed producer and a killed checker leave a copy each, and the last checker adds one."""
    assert [] == verdict(copies, dead=dead)


@pytest.mark.parametrize(
    ("copies", "dead"),
    [
        (["p:1", "c:1"], []),
        (["p:1", "c:1", "c:2"], ["p:1"]),
        (["p:1", "p:1", "c:1"], ["p:1"]),
        (["p:1", "c:1"], ["p:2", "c:2"]),
    ],
)
def test_a_copy_without_a_cause_is_a_violation(copies, dead):
    """A killed process that did not handle this transaction is no cause."""
    assert [Invariant.S6] == verdict(copies, dead=dead)


def test_an_uncertain_release_is_a_cause():
    """An attempt whose release was uncertain may publish the message again."""
    assert [] == verdict(["p:1", "p:1"], uncertain=1)
    assert [Invariant.S6] == verdict(["p:1", "p:1"])
