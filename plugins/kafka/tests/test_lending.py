"""A waiting caller may poll the client itself; the poll thread pauses and takes over again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import Recorder
from txcore_kafka import poll_lending

import txcore
from txcore.message import CheckPolicy
from txcore.records import Status

POLICY = CheckPolicy(immunity_s=60.0)
PATIENCE_S = 20.0


class Threads(Recorder):
    """A batch that remembers the threads on which its items were settled."""

    def __init__(self, items):
        super().__init__(items)
        self.threads = set()

    def settle(self, index, outcome):
        self.threads.add(threading.get_ident())
        super().settle(index, outcome)

    def is_settled(self):
        return self._is_done.is_set()


class Committing(txcore.TransactionListener):
    def execute_local_transaction(self, message, arg):
        return txcore.LocalTransactionState.COMMIT


class AsyncCommitting(txcore.AsyncTransactionListener):
    async def execute_local_transaction(self, message, arg):
        return txcore.LocalTransactionState.COMMIT


@pytest.fixture
def polls(kit, monkeypatch):
    """The threads that polled the client, in order."""
    seen, poll = [], kit.backend._producing._poll

    def watched(timeout_s):
        seen.append(threading.current_thread())
        poll(timeout_s)

    monkeypatch.setattr(kit.backend._producing, "_poll", watched)
    return seen


def test_waiters_are_notified_after_the_poll(kit, topic, monkeypatch):
    """No waiter is notified within the driver's poll, during which it would only wait for Python's lock."""
    backend, settled_in = kit.backend, []
    raw.append(kit, raw.half(kit, topic))  # the topic is known from now on
    client, is_polling = backend._producing._producer, threading.Event()

    class Watched:
        def __getattr__(self, name):
            return getattr(client, name)

        def __len__(self):
            return len(client)

        def poll(self, timeout_s):
            is_polling.set()
            try:
                return client.poll(timeout_s)
            finally:
                is_polling.clear()

    class Batch(Recorder):
        def settle(self, index, outcome):
            settled_in.append(is_polling.is_set())
            super().settle(index, outcome)

    monkeypatch.setattr(backend._producing, "_producer", Watched())
    batch = Batch([raw.half(kit, topic) for _ in range(20)])
    backend.append_halves(batch)
    assert raw.statuses(batch.wait(backend, PATIENCE_S)) == [Status.DURABLE] * 20
    assert settled_in == [False] * 20


def test_an_error_after_one_batchs_reports_ends_none_of_the_others(kit, topic, caplog):
    """An error raised by one batch's settle is logged, and the other batches of the same poll get their outcomes."""

    class Faulty(Recorder):
        def settle(self, index, outcome):
            raise RuntimeError("a caller's bug")

    raw.append(kit, raw.half(kit, topic))
    batches = [Faulty([raw.half(kit, topic)]), *(Recorder([raw.half(kit, topic)]) for _ in range(9))]
    for batch in batches:
        kit.backend.append_halves(batch)
    for batch in batches[1:]:
        assert raw.statuses(batch.wait(kit.backend, PATIENCE_S)) == [Status.DURABLE]
    kit.until(lambda: "a caller's bug" in caplog.text, "a word of it")
    assert raw.statuses(raw.append(kit, raw.half(kit, topic))) == [Status.DURABLE]


def test_outcomes_come_on_the_thread_that_polls(kit, topic, monkeypatch):
    """All outcomes are settled on the calling thread while it polls."""
    monkeypatch.setattr(poll_lending, "LENT_AGAIN_S", 60.0)
    raw.append(kit, raw.half(kit, topic))  # the topic is known now
    kit.backend.poll(0.0, comes_again=True)
    batch = Threads([raw.half(kit, topic) for _ in range(100)])
    kit.until(lambda: not kit.backend._producing._lending.polling.locked(), "the poll thread to pause")
    kit.backend.poll(0.0, comes_again=True)
    kit.backend.append_halves(batch)
    assert kit.backend.poll(PATIENCE_S, batch.is_settled)
    assert {Status.DURABLE} == {each.status for each in batch.outcomes}
    assert {threading.get_ident()} == batch.threads


@pytest.mark.parametrize("comes_again", [False, True])
def test_the_poll_thread_takes_over_when_no_caller_polls_any_more(kit, topic, comes_again):
    """The poll thread settles items after a caller stopped polling, even if the caller announced to come again."""
    raw.append(kit, raw.half(kit, topic))
    for _ in range(20):
        kit.backend.poll(0.001, comes_again=comes_again)
        batch = Recorder([raw.half(kit, topic)])
        kit.backend.append_halves(batch)
        assert raw.statuses(batch.wait(kit.backend, PATIENCE_S)) == [Status.DURABLE]


def test_a_lone_caller_polls_itself(kit, topic, polls, monkeypatch):
    """A single caller does most polls itself; the poll thread pauses while the caller comes again in time."""
    monkeypatch.setattr(poll_lending, "LENT_IDLE_S", 60.0)
    producer = txcore.TransactionProducer(kit.backend, kit.group, listener=Committing(), policy=POLICY)
    for _ in range(200):
        producer.send_message_in_transaction(txcore.Message(topic, b"x"))
    own = sum(thread is threading.current_thread() for thread in polls)
    assert own > len(polls) / 2


def test_send_many_polls_itself(kit, topic, polls):
    """The thread that calls `send_many` polls the client itself, so that two threads need not share Python's lock."""
    producer = txcore.TransactionProducer(kit.backend, kit.group, listener=Committing(), policy=POLICY)
    results = producer.send_many((txcore.Message(topic, b"x"), None) for _ in range(5_000))
    # On a busy machine an acknowledgement may come after the delivery timeout: then UNKNOWN is right.
    states = Counter(result.end.state.value for result in results)
    assert states.total() == 5_000
    assert {"ACCEPTED"} <= set(states) <= {"ACCEPTED", "UNKNOWN"}
    assert threading.current_thread() in polls
    producer.send_message_in_transaction(txcore.Message(topic, b"x"))


def test_all_styles_at_once_are_served(kit, topic):
    """Single callers, batches and tasks on one backend all end: a caller that stops polling hands the work on."""
    producer = txcore.TransactionProducer(kit.backend, kit.group, listener=Committing(), policy=POLICY)
    message, until_s = txcore.Message(topic, b"x"), time.monotonic() + 3.0

    def alone():
        while time.monotonic() < until_s:
            assert producer.send_message_in_transaction(message).end.state is txcore.EndState.ACCEPTED

    def many():
        while time.monotonic() < until_s:
            producer.send_many((message, None) for _ in range(50))

    async def tasks():
        asynchronous = txcore.AsyncTransactionProducer(
            kit.backend, kit.group, listener=AsyncCommitting(), policy=POLICY
        )

        async def one():
            while time.monotonic() < until_s:
                result = await asynchronous.send_message_in_transaction(message)
                assert result.end.state is txcore.EndState.ACCEPTED

        await asyncio.gather(one(), one())

    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    works = [alone, alone, many, lambda: asyncio.run(tasks())]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def test_a_closed_backend_lends_nothing(kit, topic):
    """`poll` of a closed backend returns False at once."""
    raw.append(kit, raw.half(kit, topic))
    kit.backend.close().result(PATIENCE_S)
    assert not kit.backend.poll(PATIENCE_S)


def test_a_caller_that_does_not_stay_leaves_the_work_to_the_poll_thread(kit, topic, monkeypatch):
    """A caller that polls with no timeout leaves the work to the poll thread, which then settles the items."""
    monkeypatch.setattr(poll_lending, "LENT_IDLE_S", 60.0)
    raw.append(kit, raw.half(kit, topic))
    for _ in range(3):
        kit.backend.poll(0.001)  # as a single caller; no item is under way, so the poll thread would wait for it
        kit.until(lambda: not kit.backend._producing._lending.polling.locked(), "the poll thread to pause")
        batch = Recorder([raw.half(kit, topic)])
        kit.backend.append_halves(batch)
        assert kit.backend.poll(0.0)
        assert raw.statuses(batch.wait(kit.backend, PATIENCE_S)) == [Status.DURABLE]


def test_work_that_is_not_lent_now_is_not_left_undone(kit, topic, monkeypatch):
    """Items are settled although the work could not be lent to their caller, as another thread was polling."""
    monkeypatch.setattr(poll_lending, "LENT_AGAIN_S", 60.0)
    raw.append(kit, raw.half(kit, topic))
    producer = kit.backend._producing
    for _ in range(20):
        with producer._lending.polling:
            batch = Recorder([raw.half(kit, topic)])
            kit.backend.append_halves(batch)
            assert not kit.backend.poll(0.0, comes_again=True)
        assert raw.statuses(batch.wait(kit.backend, PATIENCE_S)) == [Status.DURABLE]


@pytest.fixture
def kept(kit, topic, monkeypatch):
    """The lock of the poll, which a borrower has acquired that does nothing more."""
    monkeypatch.setattr(poll_lending, "KEPT_S", 0.01)
    raw.append(kit, raw.half(kit, topic))
    lock = kit.backend._producing._lending.polling
    assert lock.acquire(timeout=PATIENCE_S)
    return lock


def test_a_lock_that_an_interrupted_borrower_kept_is_replaced(kit, topic, kept):
    """The poll thread takes the work back from a borrower that ended without releasing the lock."""
    kit.until(lambda: kit.backend._producing._lending.polling is not kept, "another lock")
    batch = Recorder([raw.half(kit, topic)])
    kit.backend.append_halves(batch)
    assert raw.statuses(batch.wait(kit.backend, PATIENCE_S)) == [Status.DURABLE]


def test_callers_that_ask_again_do_not_keep_an_interrupted_borrowers_lock(kit, kept):
    """The poll thread takes the work back though other callers borrow it again and again, and wait in vain."""
    producer = kit.backend._producing

    def replaced():
        producer.poll(0.001, lambda: False, comes_again=True)
        return producer._lending.polling is not kept

    kit.until(replaced, "another lock")


def test_an_exception_of_a_signal_reaches_the_borrower(kit, topic, monkeypatch):
    """It is raised while the borrower polls, the lock is free afterwards, and the other reports are handled."""
    raw.append(kit, raw.half(kit, topic))
    producer = kit.backend._producing

    def interrupted(_timeout_s):
        raise TimeoutError("a task's time limit")

    with monkeypatch.context() as patched:
        patched.setattr(producer, "_poll", interrupted)
        with pytest.raises(TimeoutError, match="time limit"):
            producer.poll(PATIENCE_S, lambda: False, comes_again=False)
    batch = Recorder([raw.half(kit, topic)])
    kit.backend.append_halves(batch)
    assert raw.statuses(batch.wait(kit.backend, PATIENCE_S)) == [Status.DURABLE]
