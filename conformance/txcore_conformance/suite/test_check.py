"""The check-back: the checker asks about silent producers' halves and finishes them; only answers count."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from txcore import Message, wire
from txcore.records import Half, HalfRecord, OpKind, Status
from txcore.runtime import instrumentation
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, FAST, ROLLBACK, UNKNOWN, Answers, Kit, Observed


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK], ids=["commit", "rollback"])
def test_an_orphan_is_finished_by_the_listeners_answer(kit: Kit, topic: str, answer: Any) -> None:
    """The checker asks once about a half without an end, journals the answer, then finishes the half."""
    identity = kit.orphan(Message(topic, b"body", b"key")).transaction_id
    listener = Answers(answer)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    journey = kit.journey(identity)
    assert [OpKind.DECIDED, OpKind[answer.value]] == [op.kind for _, op in journey.ops]
    assert ([b"body"] if answer is COMMIT else []) == kit.bodies(topic)
    assert [identity] == [half.transaction_id for half in listener.asked]


def test_the_listener_sees_the_whole_half(kit: Kit, topic: str) -> None:
    """`check_local_transaction` gets id, group, every message unchanged, and the number of checks."""
    other = kit.topic("other")
    messages = (Message(topic, b"\x00\xff", b"key", {"a": "1", "b": b"\x00"}), Message(other, b""))
    identity = kit.orphan(*messages).transaction_id
    listener = Answers(UNKNOWN)
    checker = kit.checker(listener, check_max=50, interval_s=0.1)
    kit.sweep(checker, lambda: len(listener.asked) >= 2)
    listener.answer = ROLLBACK
    kit.sweep(checker)
    first, second = listener.asked[:2]
    assert (identity, kit.group, messages) == (first.transaction_id, first.group, first.messages)
    assert (0, 1) == (first.check_times, second.check_times)


def test_unknown_is_asked_again_until_it_is_known(kit: Kit, topic: str) -> None:
    """Each UNKNOWN uses one check and is journaled; a later COMMIT delivers once."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    listener: Answers = Answers(lambda: UNKNOWN if len(listener.asked) < 3 else COMMIT)
    kit.sweep(kit.checker(listener, check_max=5))
    kit.history.at_rest = True
    ops = [op for _, op in kit.journey(identity).ops]
    assert [OpKind.CHECKED, OpKind.CHECKED, OpKind.DECIDED, OpKind.COMMIT] == [op.kind for op in ops]
    assert [1, 2] == [op.count for op in ops[:2]]
    assert [b"body"] == kit.bodies(topic)


@pytest.mark.parametrize("silence", [None, "COMMIT", RuntimeError("down")], ids=["None", "a string", "an exception"])
def test_no_answer_counts_nothing(kit: Kit, topic: str, silence: Any) -> None:
    """None, a wrong type and an exception use no check and raise an alert; the checker asks again."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    listener, observed = Answers(silence), Observed()
    checker = kit.checker(listener, check_max=2, plugins=[observed])
    kit.sweep(checker, lambda: len(observed.named(instrumentation.CHECK_NO_ANSWER)) >= 4)
    assert len(listener.asked) >= 4
    assert [] == kit.journey(identity).ops
    listener.answer = COMMIT
    kit.sweep(checker)
    assert [b"body"] == kit.bodies(topic)


def test_a_blocked_listener_is_abandoned_and_delays_no_other_half(kit: Kit, topic: str) -> None:
    """A listener that never returns for one half uses no check; meanwhile the checker finishes the other halves."""
    stuck = kit.orphan(Message(topic, b"stuck")).transaction_id
    kit.orphan(Message(topic, b"free"))
    may_return = threading.Event()
    listener = Answers(COMMIT, by_body={b"stuck": lambda: may_return.wait(kit.timeout_s) and UNKNOWN})
    checker = kit.checker(listener, limits=replace(FAST, check_deadline_s=0.1))
    checker.start()
    kit.until(lambda: kit.bodies(topic) == [b"free"])
    kit.until(lambda: len(listener.asked) >= 3, "the stuck half is asked again")
    assert [] == kit.journey(stuck).ops
    listener.by_body.clear()
    may_return.set()
    kit.until(lambda: sorted(kit.bodies(topic)) == [b"free", b"stuck"])
    kit.until(lambda: kit.journey(stuck).final)


def test_a_raising_listener_blocks_no_other_half(kit: Kit, topic: str) -> None:
    """The checker finishes the other due halves when a check fails, and repeats the failed check later."""
    for number in range(10):
        kit.orphan(Message(topic, b"%d" % number))
    listener = Answers(COMMIT, by_body={b"%d" % number: RuntimeError("down") for number in range(0, 10, 2)})
    checker = kit.checker(listener)
    kit.sweep(checker, lambda: len(kit.bodies(topic)) == 5)
    assert [b"1", b"3", b"5", b"7", b"9"] == sorted(kit.bodies(topic))
    listener.by_body.clear()
    kit.sweep(checker)
    kit.history.at_rest = True
    assert [b"%d" % number for number in range(10)] == sorted(kit.bodies(topic))


def test_a_half_is_not_asked_before_its_immunity(kit: Kit, topic: str) -> None:
    """A fresh half of an ordinary producer is not checked, and its producer's end is the only one."""
    transaction = kit.producer().begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    listener = Answers(ROLLBACK)
    checker = kit.checker(listener)
    report = checker.run_once()
    assert (1, []) == (report.pending, listener.asked)
    transaction.commit()
    kit.sweep(checker)
    assert [b"body"] == kit.bodies(topic)
    assert [] == listener.asked


def test_a_listener_is_not_asked_about_foreign_topics(kit: Kit, topic: str) -> None:
    """The checker does not check a half whose topic no listener declares; its alert names group and topic."""
    foreign = kit.topic("foreign")
    identity = kit.orphan(Message(foreign, b"theirs")).transaction_id
    kit.orphan(Message(topic, b"ours"))
    listener, observed = Answers(COMMIT), Observed()
    listener.topics = [topic]  # type: ignore[misc]
    checker = kit.checker(listener, plugins=[observed])
    kit.sweep(checker, lambda: kit.bodies(topic) == [b"ours"] and len(observed.named("check.wrong_listener")) >= 2)
    assert [] == kit.journey(identity).ops
    fields = observed.named("check.wrong_listener")[0]
    assert (kit.group, [foreign]) == (fields["group"], fields["topics"])
    checker.stop()
    kit.sweep(kit.checker([listener, Answers(COMMIT)]))
    assert [b"theirs"] == kit.bodies(foreign)


def test_the_fence_decides_alone(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """A checker with only a fence delivers committed halves; the others get a tombstone and ROLLBACK."""
    producer = kit.hasty_producer(fence=fence)
    for number in range(10):
        transaction = producer.begin()
        transaction.publish(Message(topic, b"%d" % number))
        with engine.connect() as connection:
            connection.begin()
            transaction.prepare(connection)
            if number % 2:
                connection.commit()
                kit.history.committed(transaction.transaction_id)
            else:
                connection.rollback()
                kit.history.rolled_back(transaction.transaction_id)
    kit.sweep(kit.checker(fence=fence))
    kit.history.at_rest = True
    assert [b"1", b"3", b"5", b"7", b"9"] == sorted(kit.bodies(topic))


def test_an_open_producer_transaction_holds_the_check_back(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """A check has no answer and counts nothing while the database transaction is open; after COMMIT it delivers."""
    transaction = kit.hasty_producer(fence=fence).begin()
    transaction.publish(Message(topic, b"body"))
    observed = Observed()
    checker = kit.checker(fence=fence, plugins=[observed])
    with engine.connect() as connection:
        connection.begin()
        transaction.prepare(connection)
        kit.sweep(checker, lambda: bool(observed.named(instrumentation.CHECK_NO_ANSWER)))
        assert [] == kit.journey(transaction.transaction_id).ops
        connection.commit()
    kit.history.committed(transaction.transaction_id)
    kit.sweep(checker)
    kit.history.at_rest = True
    assert [b"body"] == kit.bodies(topic)


def test_a_fenced_half_waits_for_a_checker_with_a_fence(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """A checker without the fence counts and decides nothing about a fenced half."""
    with engine.connect() as connection:
        transaction = kit.hasty_producer(fence=fence).begin()
        transaction.publish(Message(topic, b"body"))
        connection.begin()
        transaction.prepare(connection)
        connection.commit()
    listener, observed = Answers(ROLLBACK), Observed()
    blind = kit.checker(listener, plugins=[observed])
    kit.sweep(blind, lambda: bool(observed.named(instrumentation.CHECK_NO_ANSWER)))
    assert ([], []) == (listener.asked, kit.journey(transaction.transaction_id).ops)
    blind.stop()
    kit.history.committed(transaction.transaction_id)
    kit.sweep(kit.checker(fence=fence))
    assert [b"body"] == kit.bodies(topic)


def test_a_poison_record_is_parked_with_its_bytes_and_blocks_nothing(kit: Kit, topic: str) -> None:
    """A half record that cannot be decoded is parked as POISON; the checker finishes the other halves."""
    poison = HalfRecord(kit.group, 0, b"p" * 16, 0, b"\xc1 no half at all", [])
    (outcome,) = raw.append(kit, poison)
    if outcome.status is Status.REFUSED:
        pytest.skip("this backend looks into half records")
    kit.orphan(Message(topic, b"good"))
    observed = Observed()
    kit.sweep(kit.checker(Answers(COMMIT), plugins=[observed]))
    assert [b"good"] == kit.bodies(topic)
    assert 1 == len(observed.discards)
    assert ["POISON"] == [parked.code for parked in kit.operator().parked()]


def test_a_half_of_another_group_or_partition_is_parked(kit: Kit, topic: str) -> None:
    """A record in the wrong log is parked, never delivered."""
    half = raw.half(kit, topic, partition=1)
    (stored,) = raw.append(kit, HalfRecord(kit.group, 0, half.transaction_id, 0, half.body, half.messages))
    assert stored.status is Status.DURABLE
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert [] == kit.bodies(topic)
    assert ["POISON"] == [parked.code for parked in kit.operator().parked()]
    kit.history.unjudged = "a record in the wrong log has no journey of its own"


def test_a_carried_copy_keeps_count_and_identity(kit: Kit, topic: str) -> None:
    """Halves that delay the checkpoint are appended again with the same id and count, and decided once."""
    identity = kit.orphan(Message(topic, b"old")).transaction_id
    listener = Answers(UNKNOWN)
    checker = kit.checker(listener, check_max=50, interval_s=0.3, limits=replace(FAST, replay_max=5))
    kit.sweep(checker, lambda: kit.journey(identity).count >= 1)
    partition = kit.journey(identity).partition
    for _ in range(12):
        raw_half = raw.half(kit, topic, partition=partition)
        raw.append(kit, raw_half)
        raw.release(kit, raw.rollback(raw_half))
    kit.sweep(checker, lambda: len(kit.journey(identity).halves) > 1)
    copy = kit.journey(identity).halves[-1]
    assert isinstance(copy, Half)
    assert (identity, 0) == (copy.transaction_id, copy.generation)
    assert copy.count >= 1
    assert wire.encode_half(copy)
    checker.stop()
    again = Answers(COMMIT)
    kit.sweep(kit.checker(again, check_max=50))
    kit.history.at_rest = True
    assert again.asked[0].check_times >= copy.count
    assert [b"old"] == kit.bodies(topic)
