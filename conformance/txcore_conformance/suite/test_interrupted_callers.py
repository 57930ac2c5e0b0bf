"""Exceptions of a signal's handler end calls anywhere, as a task's time limit does; the next calls still work."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from txcore import (
    HalfUnknownError,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    current_transaction,
)
from txcore.results import EndState
from txcore_conformance.interrupts import Interrupts
from txcore_conformance.kit import COMMIT, ROLLBACK, Kit

INTERRUPTS = 100
CLEAN_COUNT = 5
QUIET_COUNT = 3  # calls without a new place after which all places are tried


class TimeLimitError(Exception):
    """Raised by the signal's handler, anywhere in the interrupted call."""


class Service(TransactionListener):
    """A service whose local transaction always commits; it knows the ids of those that did."""

    def __init__(self) -> None:
        self.committed: set[bytes] = set()

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        """Commit."""
        self.committed.add(current_transaction().transaction_id)
        return COMMIT

    def check_local_transaction(self, half: Any) -> LocalTransactionState:
        """Look up the id."""
        return COMMIT if half.transaction_id in self.committed else ROLLBACK


@contextmanager
def _limits() -> Iterator[list[int]]:
    """Use the timer of the suite's own limit, which continues afterwards; yields the signals that were raised."""
    raised: list[int] = []

    def expire(number: int, _frame: FrameType | None) -> None:
        raised.append(number)
        raise TimeLimitError

    handler, (left_s, again_s) = signal.signal(signal.SIGALRM, expire), signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield raised
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left_s, again_s)


def _within(limit_s: float, call: Callable[[], Any]) -> Any:
    """Call, and return its result.

    Raises:
        TimeLimitError: the call took longer.
    """
    try:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# Python ignores the handler's exception where a destructor runs, and pytest warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.needs_process  # a store in the caller's own thread is interrupted, too
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need the main thread")
def test_an_interrupted_caller_leaves_the_backend_at_work(kit: Kit, topic: str) -> None:
    """After each interrupt a call ends in time, and what committed is published; nothing else is."""
    service = Service()
    producer = kit.producer(service)
    checked = kit.hasty_producer(service)

    def send() -> Any:
        return checked.send_message_in_transaction(Message(topic, b"interrupted"))

    def send_after(body: bytes) -> Any:
        return producer.send_message_in_transaction(Message(topic, body))

    send()  # the group and the topic are known
    began_s = time.monotonic()
    send()
    usual_s = time.monotonic() - began_s
    times, interrupts = random.Random(5), 0
    with _limits() as raised:
        while interrupts < INTERRUPTS:
            try:
                _within(times.uniform(1e-6, 1.5 * usual_s), lambda: _certain(send))
            except Exception:  # confluent-kafka may raise its own error in the place of the handler's
                if len(raised) == interrupts:
                    raise
            if len(raised) > interrupts:
                interrupts = len(raised)
                _within(kit.timeout_s, lambda: _certain(lambda: send_after(b"after it")))
    _settled(kit, topic, producer, service)


def _one(producer: TransactionProducer, topic: str) -> None:
    producer.send_message_in_transaction(Message(topic, b"one"))


def _many(producer: TransactionProducer, topic: str) -> None:
    producer.send_many([(Message(topic, b"one of many"), None)] * 3)


# Python ignores the handler's exception where a destructor runs, and pytest warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.needs_process
@pytest.mark.parametrize("call", [_one, _many])
def test_an_interrupt_at_any_place_leaves_the_backend_at_work(
    kit: Kit, topic: str, call: Callable[[TransactionProducer, str], None]
) -> None:
    """An exception at each place where Python runs a handler, one per call: the next call ends in time."""
    service = Service()
    producer = kit.producer(service)
    checked = kit.hasty_producer(service)
    call(checked, topic)  # the group and the topic are known
    interrupts, quiet_count = Interrupts(TimeLimitError), 0

    def interrupted() -> None:
        with suppress(TimeLimitError, HalfUnknownError):
            interrupts.during(lambda: call(checked, topic))

    with _limits():
        while quiet_count < QUIET_COUNT:
            tried_count = len(interrupts.tried)
            _within(kit.timeout_s, interrupted)
            quiet_count = 0 if len(interrupts.tried) > tried_count else quiet_count + 1
            try:
                _within(kit.timeout_s, lambda: _certain(lambda: call(producer, topic)))
            except TimeLimitError:
                pytest.fail(f"no call ends after an interrupt in {interrupts.place}")
    _settled(kit, topic, producer, service)


def _settled(kit: Kit, topic: str, producer: TransactionProducer, service: Service) -> None:
    """Check that calls end as usual, and let the history's judge see what committed."""
    for _ in range(CLEAN_COUNT):
        ended = producer.send_message_in_transaction(Message(topic, b"clean")).end
        assert ended is not None
        assert ended.state is EndState.ACCEPTED
    kit.sweep(kit.checker(service))
    for identity in service.committed:
        kit.history.committed(identity)
        kit.history.caused(identity, "its caller was interrupted")
    kit.history.at_rest = True


def _certain(send: Callable[[], Any]) -> None:
    """Send; a half without an answer is possible, as a delivery report may be lost with the caller that takes it."""
    with suppress(HalfUnknownError):
        send()
