"""When a broker counts as down, and a partition as failing, by a clock that the test advances."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from txcore_conformance.kit import Observed, wait_until

from txcore import Checker, Limits
from txcore.checker.contact import ANSWER_MAX_S, ASK_AFTER_S, FAILING_S, KEPT_S, QUESTIONS_MAX, Contact, Failures
from txcore.errors import BackendUnavailableError, ClosedError
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.port import failed
from txcore.runtime import instrumentation as names


class HandClock:
    """A clock that stops until it is advanced."""

    now_s = 100.0

    def elapsed_s(self):
        return self.now_s


class Broker:
    """Keeps the questions, which the test answers."""

    def __init__(self):
        self.asked = []
        self.changes = []

    def ping(self):
        self.asked.append(Future())
        return self.asked[-1]


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def contact(clock, broker):
    return Contact(clock, broker.ping, broker.changes.append)


def pass_time(contact, clock, seconds):
    """Let the loop turn four times a second."""
    for _ in range(round(seconds * 4)):
        clock.now_s += 0.25
        contact.look()


def test_a_silent_broker_is_down_within_ten_seconds_and_up_with_its_answer(contact, clock, broker):
    """The last answer came just before a question was due: the longest time until the silence shows."""
    pass_time(contact, clock, ASK_AFTER_S + ANSWER_MAX_S + 0.5)
    assert contact.trouble.startswith("no answer for 8 s")
    assert ASK_AFTER_S + ANSWER_MAX_S + 0.5 < 10
    broker.asked[0].set_result(None)
    contact.look()
    assert contact.trouble == ""
    assert [True, False] == [bool(each) for each in broker.changes]


def test_a_broker_that_refuses_is_down_with_the_reason_and_one_report(contact, clock, broker):
    """An error is no answer, however soon it comes, and a short outage is none."""
    pass_time(contact, clock, ASK_AFTER_S)
    broker.asked[0].set_exception(BackendUnavailableError("connection refused"))
    pass_time(contact, clock, ANSWER_MAX_S - 0.25)
    assert contact.trouble == ""
    pass_time(contact, clock, 20.0)
    assert contact.trouble.endswith("s: connection refused")
    assert 1 == len(broker.changes)


def test_a_checker_that_hears_answers_to_its_work_asks_nothing(contact, clock, broker):
    """A question is asked only when nothing else was heard."""
    for _ in range(20):
        pass_time(contact, clock, ASK_AFTER_S / 2)
        contact.heard()
    assert [] == broker.asked


def test_a_loop_that_did_not_turn_calls_no_broker_down(contact, clock, broker):
    """The age of a question counts, not the time since the last answer: a busy loop asks late."""
    clock.now_s += 60.0
    contact.look()
    assert 1 == len(broker.asked)
    assert contact.trouble == ""


def test_questions_without_an_end_are_few(contact, clock, broker):
    """A backend that settles nothing gets no more than `QUESTIONS_MAX` questions."""
    pass_time(contact, clock, 600.0)
    assert QUESTIONS_MAX == len(broker.asked)


def test_a_closed_backend_is_a_reason(clock, broker):
    """A question that cannot even be asked is not answered."""

    def refuse():
        raise ClosedError("this backend is closed")

    contact = Contact(clock, refuse, broker.changes.append)
    pass_time(contact, clock, 10.0)
    assert contact.trouble.endswith("this backend is closed")


def test_a_partition_fails_after_failures_without_a_success(clock):
    """One quick failure is none; a success ends it; without more of them it is over."""
    failures = Failures(clock)
    failures.failed(3, "refused")
    assert {} == failures.lately()
    clock.now_s += FAILING_S
    failures.failed(3, "refused again")
    assert {3: "refused again"} == failures.lately()
    failures.worked(3)
    assert {} == failures.lately()
    failures.failed(3, "silent", clock.now_s - 5.0)
    assert {3: "silent"} == failures.lately()
    clock.now_s += KEPT_S + 0.1
    assert {} == failures.lately()
    failures.failed(3, "much later")
    assert {} == failures.lately()


class BrokenLog(MemoryBackend):
    """A backend on which one partition's op log takes no marks for a while."""

    broken: int | None = 1

    def mark(self, group, partition, op, claim=None):
        if partition == self.broken:
            return failed(BackendUnavailableError("this log has no leader"))
        return super().mark(group, partition, op, claim)


def test_a_running_checker_names_the_partition_whose_log_takes_nothing():
    """The other partition is claimed meanwhile, and the failing one as soon as its log takes the claim."""
    backend = BrokenLog(MemoryBroker())
    backend.ensure_group("g", 2).result(1)
    with Checker(backend, "g", listener=Silent(), limits=Limits(retry_s=0.05)) as checker:
        assert {1: "this log has no leader"} == wait_until(lambda: checker.stats().failing, "the failure")
        assert {0} == {each.partition for each in checker.stats().partitions if each.is_claimed}
        backend.broken = None
        wait_until(lambda: not checker.stats().failing, "its end")
        wait_until(lambda: all(each.is_claimed for each in checker.stats().partitions), "both claims")
        assert checker.stats().broker == ""


def test_a_running_checker_reports_its_broker_down_and_up_once():
    """No half waits and nothing is written meanwhile: the checker asks by itself."""
    broker, observed = MemoryBroker(), Observed()
    with Checker(MemoryBackend(broker), "g", listener=Silent(), plugins=[observed]) as checker:
        wait_until(lambda: checker.partitions, "ownership")
        broker.down = True
        wait_until(lambda: checker.stats().broker, "the broker to be missed")
        broker.down = False
        wait_until(lambda: not checker.stats().broker, "its return")
    (down,) = observed.named(names.BROKER_DOWN)
    assert down["reason"].endswith("the broker is down")
    assert [{}] == observed.named(names.BROKER_UP)


class Silent:
    """A listener that is never asked."""

    topics = None

    def check_local_transaction(self, half):
        raise AssertionError("no half was written")
