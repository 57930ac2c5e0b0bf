"""A second copy of a target needs a cause, and each kind of cause is found in the records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from txcore_conformance.live_record import Attempt, Fault, Journal, Recording, attempts_in, causes_of, read_lines

from txcore.records import Outcome, Status

ID = b"\x01" * 16


def _attempt(actor="producer-1", started_s=100.0, settled_s=100.1, status="durable", by="", *, is_checkers=False):
    return Attempt(ID, by or f"p:{actor}", actor, started_s, settled_s, status, is_checkers)


def _causes(*attempts, faults=(), claims=None):
    return causes_of(attempts, faults, claims or {}).get(ID, [])


def test_a_successful_attempt_is_no_cause():
    assert [] == _causes(_attempt())


def test_an_attempt_without_a_recorded_end_may_come_twice():
    """A kill and the answer that is missing because of it are one cause."""
    killed = Fault("kill-producer", "producer-1", 100.05, 100.06)
    assert ["never settled"] == _causes(_attempt(settled_s=0.0, status=""), faults=[killed])


@pytest.mark.parametrize("status", ["unknown", "refused"])
def test_an_answer_that_is_not_certain_is_a_cause(status):
    assert ["ambiguous answer"] == _causes(_attempt(status=status))


def test_a_kill_right_after_the_answer_may_lose_the_queued_op():
    assert ["kill-producer"] == _causes(_attempt(), faults=[Fault("kill-producer", "producer-1", 100.5, 100.6)])


@pytest.mark.parametrize("subject", ["broker", "network"])
def test_a_fault_of_the_broker_during_an_attempt_is_a_cause(subject):
    """A fault during an attempt is a cause, because a driver may repeat a request on a new connection."""
    assert ["cut"] == _causes(_attempt(), faults=[Fault("cut", subject, 99.0, 100.05)])


def test_faults_long_before_or_after_are_no_causes():
    faults = [Fault("cut", "network", 90.0, 91.0), Fault("kill-broker", "broker", 110.0, 112.0)]
    assert [] == _causes(_attempt(), faults=faults)


def test_faults_of_another_process_are_no_causes():
    assert [] == _causes(_attempt(), faults=[Fault("pause-producer", "producer-2", 99.0, 105.0)])


def test_a_process_that_thaws_may_begin_a_decided_attempt():
    paused = Fault("pause-checker", "checker-1", 90.0, 99.0)
    attempt = _attempt("checker-1", is_checkers=True)
    assert ["pause-checker"] == _causes(attempt, faults=[paused])


def test_a_claim_during_an_attempt_is_a_takeover():
    """A claim during an attempt is a cause, because the new owner has not read the end of that attempt."""
    old = _attempt("checker-1", 100.0, 105.0, by="c:checker-1", is_checkers=True)
    new = _attempt("checker-2", 106.0, 106.1, by="c:checker-2", is_checkers=True)
    assert ["takeover"] == _causes(old, new, claims={"c:checker-2": [104.0]})


def test_a_new_owner_that_repeats_a_decided_half_has_no_cause():
    """A new owner that claimed long after the op was certain has no cause to repeat the half: that is a bug."""
    old = _attempt("checker-1", 100.0, 100.5, by="c:checker-1", is_checkers=True)
    new = _attempt("checker-2", 200.0, 200.5, by="c:checker-2", is_checkers=True)
    assert [] == _causes(old, new, claims={"c:checker-2": [150.0]})


def test_attempts_are_recorded_with_their_answers(tmp_path):
    """Only items with targets are recorded; a line that a kill cut off is left out."""

    class Inner:
        def release(self, batch, claim):
            for index, status in enumerate((Status.DURABLE, Status.DURABLE, Status.UNKNOWN)):
                batch.settle(index, Outcome(status))

    half = SimpleNamespace(transaction_id=ID)
    items = [SimpleNamespace(half=half, targets=targets, by="p:me") for targets in ((0,), (), (0, 1))]
    settled = []
    batch = SimpleNamespace(items=items, settle=lambda index, outcome: settled.append(index))
    path = tmp_path / "me.jsonl"
    journal = Journal(path)
    Recording(Inner(), journal).release(batch)
    journal.close()
    path.write_bytes(path.read_bytes() + b'["release", 17')
    attempts = attempts_in("me", read_lines(path))
    assert ([0, 1, 2], ["durable", "unknown"]) == (settled, [each.status for each in attempts])
    assert {("p:me", "me", False)} == {(each.by, each.actor, each.is_checkers) for each in attempts}
