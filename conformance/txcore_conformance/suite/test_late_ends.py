"""Late and repeated ends: a late producer gives way, the first final op holds, and each caller gets the result."""

from __future__ import annotations

from typing import Any

import pytest

from txcore import EndState, Message, UsageError
from txcore.records import OpKind, Status
from txcore.runtime import instrumentation
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Kit, Observed, patient_policy


def _after_immunity(kit: Kit, topic: str, **options: Any) -> Any:
    """Return a prepared transaction that is so late that its producer must give way."""
    transaction = kit.orphan(Message(topic, b"body"), **options)
    core = transaction._core  # noqa: SLF001 - only its reading of the clock says when it is late
    kit.until(lambda: core.give_way_s is not None and core.context.clock.elapsed_s() > core.give_way_s)
    return transaction


@pytest.mark.requires("no:atomic_release")
def test_a_late_commit_gives_way_and_asks_for_a_check(kit: Kit, topic: str) -> None:
    """After the immunity `commit` publishes nothing, returns TOO_LATE and writes a NUDGE; the checker delivers once."""
    transaction = _after_immunity(kit, topic)
    assert EndState.TOO_LATE is transaction.commit().state
    assert [] == kit.bodies(topic)
    assert [OpKind.NUDGE] == [op.kind for _, op in kit.journey(transaction.transaction_id).ops]
    listener = Answers(COMMIT)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    assert (1, [b"body"]) == (len(listener.asked), kit.bodies(topic))


@pytest.mark.requires("atomic_release", "resolution_is_unique")
def test_a_late_commit_need_not_give_way_where_the_store_arbitrates(kit: Kit, topic: str) -> None:
    """After the immunity `commit` delivers without a check: the store would refuse it after another decision."""
    transaction = _after_immunity(kit, topic)
    assert EndState.ACCEPTED is transaction.commit().state
    assert [OpKind.COMMIT] == [op.kind for _, op in kit.journey(transaction.transaction_id).ops]
    listener = Answers(ROLLBACK)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    assert (0, [b"body"]) == (len(listener.asked), kit.bodies(topic))


@pytest.mark.requires("no:atomic_release")
def test_a_nudged_half_is_delivered_once(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """Committed halves of a fence whose late producers asked for a check are delivered once each."""
    transactions = []
    producer = kit.hasty_producer(fence=fence)
    for number in range(10):
        transaction = producer.begin()
        transaction.publish(Message(topic, b"%d" % number))
        with engine.connect() as connection:
            connection.begin()
            transaction.prepare(connection)
            connection.commit()
        kit.history.committed(transaction.transaction_id)
        transactions.append(transaction)
    core = transactions[-1]._core  # noqa: SLF001
    kit.until(lambda: core.context.clock.elapsed_s() > (core.give_way_s or 0))
    assert {EndState.TOO_LATE} == {transaction.commit().state for transaction in transactions}
    kit.sweep(kit.checker(fence=fence))
    kit.history.at_rest = True
    assert [b"%d" % number for number in range(10)] == sorted(kit.bodies(topic))


def test_a_nudge_makes_the_check_come_before_the_interval(kit: Kit, topic: str) -> None:
    """A half that waits for its next check is checked at once when its producer gives way."""
    transaction = _after_immunity(kit, topic)
    listener = Answers(UNKNOWN)
    checker = kit.checker(listener, check_max=5, interval_s=3_600.0)
    kit.sweep(checker, lambda: len(listener.asked) >= 1)
    listener.answer = COMMIT
    transaction.commit()
    kit.sweep(checker)
    assert [b"body"] == kit.bodies(topic)


def test_a_commit_after_the_checkers_rollback_is_not_delivered(kit: Kit, topic: str) -> None:
    """After a check's ROLLBACK a late COMMIT by handle is refused, before delivery if the store keeps ends unique."""
    transaction = kit.orphan(Message(topic, b"body"))
    handle = transaction.handle()
    kit.sweep(kit.checker(Answers(ROLLBACK)))
    state = kit.producer().attach(handle).commit().state
    assert state in {EndState.CONFLICT, EndState.TOO_LATE}
    assert [] == kit.bodies(topic)
    assert OpKind.ROLLBACK == kit.journey(transaction.transaction_id).final


def test_a_contradicting_end_is_reported_by_the_checker(kit: Kit, topic: str) -> None:
    """A ROLLBACK after a COMMIT changes nothing: the store refuses it, or the checker raises an alert."""
    half = raw.half(kit, topic, body=b"body")
    raw.append(kit, half)
    raw.release(kit, raw.commit(half))
    (late,) = raw.release(kit, raw.rollback(half))
    observed = Observed()
    checker = kit.checker(Answers(ROLLBACK), plugins=[observed])
    kit.sweep(checker)
    assert [b"body"] == kit.bodies(topic)
    if kit.promises.resolution_is_unique:
        assert (Status.SUPERSEDED, OpKind.COMMIT) == (late.status, late.decision)
        return
    kit.sweep(checker, lambda: bool(observed.named(instrumentation.OP_CONFLICT)))
    (fields,) = observed.named(instrumentation.OP_CONFLICT)
    assert (half.transaction_id, OpKind.COMMIT, OpKind.ROLLBACK) == (
        fields["transaction_id"],
        fields["first"],
        fields["second"],
    )
    kit.history.unjudged = "this store cannot refuse the second end (R7)"


def test_an_end_after_a_discard_decides_the_parked_half(kit: Kit, topic: str) -> None:
    """A producer's commit after a discard returns TOO_LATE; after a resume the listener's COMMIT delivers once."""
    transaction = kit.orphan(Message(topic, b"body"))
    checker = kit.checker(Answers(UNKNOWN), check_max=1)
    kit.sweep(checker)
    checker.stop()
    assert EndState.TOO_LATE is transaction.commit().state
    assert [] == kit.bodies(topic)
    kit.operator().resume(transaction.transaction_id, "it committed after all")
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert [b"body"] == kit.bodies(topic)


def test_an_end_for_an_id_never_prepared_is_never_delivered(kit: Kit, topic: str) -> None:
    """The checker finishes its work after an op without a half, and delivers nothing for that op."""
    stray = raw.half(kit, topic, body=b"stray")
    raw.release(kit, raw.rollback(stray))
    kit.history.unjudged = "the op without a half is made on purpose (S5)"
    kit.orphan(Message(topic, b"good"))
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert [b"good"] == kit.bodies(topic)
    assert [] == kit.operator().pending()


def test_a_handle_of_another_group_is_refused(kit: Kit, topic: str) -> None:
    """The error of `attach` names the groups; a damaged handle is refused too."""
    transaction = kit.orphan(Message(topic, b"body"))
    from txcore import TransactionProducer  # noqa: PLC0415

    handle = transaction.handle()
    foreign = TransactionProducer(kit.backend, f"{kit.group}-other", policy=patient_policy(kit.backend))
    with pytest.raises(UsageError, match=kit.group):
        foreign.attach(handle)
    for damaged in (handle[:-4], "A" + handle[1:], "", "no handle", handle[: len(handle) // 2]):
        if damaged != handle:
            with pytest.raises(UsageError):
                kit.producer().attach(damaged)
