"""The kit of a conformance test: one group on one backend, its connections and its history.

A `Kit` opens connections, makes topics, producers and checkers for its group, records the facts that only the test
knows (`history`) and closes everything at the end. A test's orphaned halves come from a *hasty* producer, whose
immunity is a fraction of a second, so that no test waits for the real one.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from txcore import (
    AsyncTransactionProducer,
    Checker,
    CheckPolicy,
    Event,
    HalfView,
    Limits,
    LocalTransactionState,
    Message,
    Operator,
    Transaction,
    TransactionListener,
    TransactionProducer,
    hookimpl,
)
from txcore.errors import ClosedError, TxcoreError
from txcore.fence import Fence
from txcore.history.journey import Journey
from txcore.ids import TransactionId
from txcore.port import Backend, SettlesEach
from txcore.records import Capabilities, Half, Op, OpKind, Outcome
from txcore_conformance import oracle
from txcore_conformance.harness import Delivered, Harness
from txcore_conformance.oracle import History

T = TypeVar("T")
COMMIT: Final = LocalTransactionState.COMMIT
ROLLBACK: Final = LocalTransactionState.ROLLBACK
UNKNOWN: Final = LocalTransactionState.UNKNOWN
PARTITION_COUNT: Final = 2
CLOSE_TIMEOUT_S: Final = 10.0
FAST: Final = Limits(
    poll_s=0.001,
    idle_poll_s=0.01,
    retry_s=0.02,
    retry_max_s=0.1,
    read_back_s=1.0,
    check_deadline_s=2.0,
    refusals_max=2,
    checkpoint_interval_s=0.0,
)


def patient_policy(backend: Backend) -> CheckPolicy:
    """Return a policy that gives a local transaction the default time, also on a slow backend."""
    return CheckPolicy(immunity_s=CheckPolicy().immunity_s + backend.capabilities.release_time_max_s)


def wait_until(
    condition: Callable[[], T], what: str | Callable[[], str], timeout_s: float = 60.0, *, pause_s: float = 0.02
) -> T:
    """Return the first true value of *condition*, evaluated each *pause_s*; fail with *what* after *timeout_s*.

    A function *what* returns the sentence about what there is instead.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline_s:
            text = f"{what} did not come true" if isinstance(what, str) else what()
            raise AssertionError(f"{text} within {timeout_s:g} s")
        time.sleep(pause_s)
    return value


class Recorder(SettlesEach):
    """A batch that stores each item's outcome and records a second one; implements `port.Batch`."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.outcomes: list[Outcome | None] = [None] * len(items)
        self.twice: list[int] = []
        self._left = len(items)
        self._is_done = threading.Event()
        self._lock = threading.Lock()

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        with self._lock:
            if self.outcomes[index] is not None:
                self.twice.append(index)
                return
            self.outcomes[index] = outcome
            self._left -= 1
            if not self._left:
                self._is_done.set()

    def wait(self, backend: Backend, timeout_s: float) -> list[Outcome]:
        """Return the outcomes once every item is settled."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_done.is_set():
            assert time.monotonic() < deadline_s, f"{self._left} of {len(self.items)} items were never settled"
            if backend.capabilities.polled:
                backend.poll(0.01)
            else:
                self._is_done.wait(0.01)
        assert not self.twice, f"{len(self.twice)} items were settled more than once, item {self.twice[0]} among them"
        return [outcome for outcome in self.outcomes if outcome is not None]


class Answers(TransactionListener):
    """A listener that returns the set answers, by body or for all, and records the halves that it was asked about.

    An answer may be an exception, which is raised, or any other object, which is returned.
    """

    def __init__(
        self, answer: Any = UNKNOWN, *, local: Any = UNKNOWN, by_body: Mapping[bytes, Any] | None = None
    ) -> None:
        self.answer = answer
        self.local = local
        self.by_body = dict(by_body or {})
        self.asked: list[HalfView] = []
        self.executed: list[Message] = []

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Answer `local`, or *arg* if there is one."""
        self.executed.append(message)
        return _given(self.local if arg is None else arg)

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Answer by the first message's body, otherwise `answer`."""
        self.asked.append(half)
        return _given(self.by_body.get(half.messages[0].body, self.answer))


def _given(answer: Any) -> LocalTransactionState:
    if isinstance(answer, BaseException):
        raise answer
    return cast("LocalTransactionState", answer() if callable(answer) else answer)


class Observed:
    """A plugin of the checker that stores its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.discards: list[str] = []

    @hookimpl
    def txcore_on_event(self, event: Event) -> None:
        """Store *event*."""
        self.events.append((event.name, event.fields))

    @hookimpl
    def txcore_on_discard(self, half: Half | None, reason: str) -> None:  # noqa: ARG002
        """Store the reason."""
        self.discards.append(reason)

    def named(self, name: str) -> list[Mapping[str, Any]]:
        """Return the fields of every event called *name*."""
        return [fields for each, fields in self.events if each == name]


class Hasty:
    """A backend that announces immediate delivery, so that a producer accepts a very short immunity."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.capabilities: Capabilities = replace(backend.capabilities, release_time_max_s=0.001)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def hasty(backend: Backend) -> Backend:
    """Return *backend* with a delivery time that allows any immunity."""
    return cast("Backend", Hasty(backend))


class Kit:
    """One group on one backend, with its connections and its history; see the module."""

    def __init__(self, harness: Harness, group: str = "") -> None:
        self.harness = harness
        self.group = group or f"group-{secrets.token_hex(5)}"
        self.history = History()
        self.url = ""  #: URL instead of the harness's own, for harnesses whose `open` takes one
        self.timeout_s = harness.timeout_s
        self._backends: list[Backend] = []
        self._checkers: list[Checker] = []
        self._first: Backend | None = None

    # -- making things ----------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """Connection of the test to its existing group."""
        if self._first is None:
            self._first = self.open()
        return self._first

    @property
    def promises(self) -> Capabilities:
        """Capabilities of the backend under test."""
        return self.backend.capabilities

    def open(self) -> Backend:
        """Return another connection to the existing group; it is closed at the end."""
        harness: Any = self.harness
        return self.enlist(harness.open(self.url) if self.url else harness.open())

    def enlist(self, backend: Backend) -> Backend:
        """Ensure the group on a connection that the caller opened, and close the connection at the end."""
        self._backends.append(backend)
        self.wait(backend.ensure_group(self.group, PARTITION_COUNT))
        return backend

    def adopt(self, backend: Backend) -> None:
        """Use a connection whose owner has made the group and closes it."""
        self._first = backend

    def topic(self, name: str = "created") -> str:
        """Create a topic that no other test uses."""
        topic = self.harness.topic(f"{name}-{secrets.token_hex(5)}")
        self.harness.create_topic(topic)
        self.history.topics.add(topic)
        return topic

    def producer(self, listener: TransactionListener | None = None, **options: Any) -> TransactionProducer:
        """Return a producer whose local transactions have the default time, also on a slow backend."""
        options = {"policy": patient_policy(self.backend)} | options
        return TransactionProducer(self.backend, self.group, listener=listener, **options)

    def async_producer(self, **options: Any) -> AsyncTransactionProducer:
        """Return such a producer for asyncio."""
        return AsyncTransactionProducer(self.backend, self.group, policy=patient_policy(self.backend), **options)

    def hasty_producer(self, listener: TransactionListener | None = None, **options: Any) -> TransactionProducer:
        """Return a producer whose halves are checked after the harness's `immunity_s`."""
        policy = CheckPolicy(immunity_s=self.harness.immunity_s)
        return TransactionProducer(hasty(self.backend), self.group, listener=listener, policy=policy, **options)

    def orphan(self, *messages: Message, **options: Any) -> Transaction:
        """Return a prepared transaction whose producer does nothing more."""
        transaction = self.hasty_producer(**options).begin()
        for message in messages:
            transaction.publish(message)
        transaction.prepare()
        return transaction

    def checker(
        self,
        listener: Any = None,
        *,
        fence: Fence | None = None,
        check_max: int = 3,
        interval_s: float = 0.001,
        limits: Limits = FAST,
        backend: Backend | None = None,
        **options: Any,
    ) -> Checker:
        """Return a checker with short intervals; it is stopped at the end."""
        policy = CheckPolicy(interval_s=interval_s, check_max=check_max)
        checker = Checker(
            backend or self.backend,
            self.group,
            listener=listener,
            fence=fence,
            policy=policy,
            limits=limits,
            **options,
        )
        self._checkers.append(checker)
        return checker

    def operator(self) -> Operator:
        """Return an operator of the group."""
        return Operator(self.backend, self.group, by="ann")

    # -- waiting and looking ------------------------------------------------------------------------------------------

    def wait(self, future: Future[T]) -> T:
        """Wait for a control call and return its result."""
        return future.result(self.timeout_s)

    def until(self, condition: Callable[[], T], what: str | Callable[[], str] = "the condition") -> T:
        """Return the first true value of *condition*."""
        return wait_until(condition, what, self.timeout_s, pause_s=0.002)

    def sweep(self, checker: Checker, condition: Callable[[], bool] | None = None) -> None:
        """Run *checker* until *condition* holds; without one, until it owns all partitions and nothing is pending."""

        def holds() -> bool:
            report = checker.run_once(self.timeout_s)
            is_done = report.partitions == PARTITION_COUNT and not report.pending
            return is_done if condition is None else condition()

        self.until(holds, "the goal of the checker")

    def journey(self, transaction_id: TransactionId) -> Journey:
        """Return the journey of one transaction in the logs, with every op that this test has queued."""
        self._write_queued_ops()
        found = oracle.journeys(self.backend, self.group)
        return found.get(transaction_id) or Journey(transaction_id, -1)

    def delivered(self, topic: str) -> Sequence[Delivered]:
        """Return the messages that consumers of *topic* see."""
        return oracle.everything_in(self.harness, topic)

    def bodies(self, topic: str) -> list[bytes]:
        """Return the bodies in *topic*."""
        return [each.body for each in self.delivered(topic)]

    # -- ending -------------------------------------------------------------------------------------------------------

    def judge(self) -> list[str]:
        """Return every broken invariant of the group, as sentences."""
        if self._first is None or self.history.unjudged:
            return []
        self._write_queued_ops()
        backend = self.open()  # The test may have closed its connection.
        violations, _ = oracle.judge_group(self.harness, backend, self.group, self.history)
        return [str(violation) for violation in violations]

    def _write_queued_ops(self) -> None:
        """Wait until each op that a backend queues for a shared record is in its log: a mark comes after it."""
        tick = Op(OpKind.TICK, secrets.token_bytes(16), 0, "kit", time.time_ns() // 1_000_000)
        for backend in {id(each): each for each in (self.backend, *self._backends)}.values():
            with contextlib.suppress(ClosedError):  # It wrote its ops before it closed.
                marks = [backend.mark(self.group, partition, tick) for partition in range(PARTITION_COUNT)]
                for mark in marks:
                    self.wait(mark)

    def stop_checkers(self) -> None:
        """Stop every checker of the test."""
        checkers, self._checkers = self._checkers, []
        for checker in checkers:
            with contextlib.suppress(ClosedError):  # The test closed the checker's backend.
                checker.stop(self.timeout_s)

    def close(self) -> None:
        """Stop and close everything."""
        try:
            self.stop_checkers()
        finally:
            for backend in self._backends:
                backend.close(CLOSE_TIMEOUT_S).result(2 * CLOSE_TIMEOUT_S)


def decide_all(checker: Checker, backend: Backend, group: str, time_max_s: float) -> None:
    """Run *checker* until it owns every partition of *group* and no half is pending there; then stop it.

    Raises:
        TimeoutError: a half was still pending after *time_max_s*.
    """
    count = backend.ensure_group(group).result(CLOSE_TIMEOUT_S)
    deadline_s = time.monotonic() + time_max_s
    try:
        while time.monotonic() < deadline_s:
            report = checker.run_once()
            if report.partitions == count and not report.pending:
                return
            time.sleep(0.002)
        raise TimeoutError(f"group {group} is not decided")
    finally:
        checker.stop()


def error_of(call: Callable[[], Any], timeout_s: float) -> TxcoreError | None:
    """Return the error that *call* raises, at once or through its Future; None if there is none."""
    try:
        result = call()
        if isinstance(result, Future):
            result.result(timeout_s)
    except TxcoreError as error:
        return error
    return None
