"""Stopping and closing are bounded and idempotent, and no reported result is missing afterwards."""

from __future__ import annotations

import threading
import time

import pytest

from txcore import ClosedError, EndState, Message
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers, Kit, patient_policy


def test_a_closed_producer_refuses_new_work(kit: Kit, topic: str) -> None:
    """A closed producer raises ClosedError for new work, but ends a transaction that was prepared before."""
    with kit.producer(Answers(local=COMMIT)) as producer:
        transaction = producer.begin()
        transaction.publish(Message(topic, b"body"))
        transaction.prepare()
    producer.close()
    for call in (
        producer.begin,
        lambda: producer.transaction(None),
        lambda: producer.send_message_in_transaction(Message(topic, b"")),
        lambda: producer.send_many([]),
    ):
        with pytest.raises(ClosedError):
            call()
    assert EndState.ACCEPTED is transaction.commit().state
    assert [b"body"] == kit.bodies(topic)


def test_a_producer_on_a_closed_backend_sends_nothing(kit: Kit, topic: str) -> None:
    """A producer on a closed backend fails before it calls its listener, and no half is stored."""
    from txcore import HalfRefusedError, TransactionProducer  # noqa: PLC0415

    backend = kit.open()
    listener = Answers(local=COMMIT)
    producer = TransactionProducer(backend, kit.group, listener=listener, policy=patient_policy(backend))
    kit.wait(backend.close(kit.timeout_s))
    with pytest.raises((HalfRefusedError, ClosedError)):
        producer.send_message_in_transaction(Message(topic, b"body"))
    assert [] == listener.executed
    assert [] == kit.operator().pending()


def test_closing_under_load_loses_no_accepted_transaction(kit: Kit, topic: str) -> None:
    """Every transaction that `commit` reports as ACCEPTED before or while the backend closes is delivered."""
    from txcore import TransactionProducer, TxcoreError  # noqa: PLC0415

    backend = kit.open()
    producer = TransactionProducer(backend, kit.group, policy=patient_policy(backend))
    accepted: list[bytes] = []

    def work(name: int) -> None:
        for number in range(10_000):
            body = b"%d-%05d" % (name, number)
            transaction = producer.begin()
            transaction.publish(Message(topic, body))
            try:
                transaction.prepare()
                if transaction.commit().state is EndState.ACCEPTED:
                    accepted.append(body)
            except TxcoreError:
                return

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    kit.until(lambda: len(accepted) > 100)
    kit.wait(backend.close(kit.timeout_s))
    for thread in threads:
        thread.join(kit.timeout_s)
        assert not thread.is_alive()
    assert set(accepted) <= set(kit.bodies(topic))


def test_a_checker_stops_in_bounded_time_and_twice(kit: Kit, topic: str) -> None:
    """A checker stops in bounded time, also when stopped twice; the next checker has no half to check."""
    kit.orphan(Message(topic, b"body"))
    checker = kit.checker(Answers(COMMIT))
    checker.start()
    kit.until(lambda: kit.bodies(topic) == [b"body"])
    began_s = time.monotonic()
    checker.stop()
    checker.stop()
    assert time.monotonic() - began_s < kit.timeout_s
    listener = Answers(COMMIT)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    assert ([], [b"body"]) == (listener.asked, kit.bodies(topic))


def test_a_checker_with_a_stuck_listener_stops_in_time(kit: Kit, topic: str) -> None:
    """A listener that never returns does not delay `stop` beyond its deadline, and uses no check."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    may_return = threading.Event()
    listener = Answers(lambda: may_return.wait(60) and UNKNOWN)
    checker = kit.checker(listener)
    checker.start()
    kit.until(lambda: listener.asked)
    began_s = time.monotonic()
    checker.stop(kit.timeout_s)
    assert time.monotonic() - began_s < kit.timeout_s
    may_return.set()
    assert [] == kit.journey(identity).ops


def test_a_stopped_checker_may_be_started_again(kit: Kit, topic: str) -> None:
    """A checker that was stopped can be started again, and finishes new halves."""
    checker = kit.checker(Answers(COMMIT))
    for number in range(2):
        kit.orphan(Message(topic, b"%d" % number))
        checker.start()
        kit.until(lambda number=number: len(kit.bodies(topic)) == number + 1)  # type: ignore[misc]
        checker.stop()
    kit.history.at_rest = True
    assert [b"0", b"1"] == sorted(kit.bodies(topic))
