"""The statistics of a running checker, and the bounds that the sidecar sets."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

import pytest
from txcore_conformance.kit import Answers, Observed, wait_until

from txcore import (
    Checker,
    CheckPolicy,
    CheckPostponedError,
    Limits,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    port,
)
from txcore.checker.partition_owner import LOOK_SHARE
from txcore.checker.partition_state import PartitionState
from txcore.clock import SystemClock
from txcore.errors import BackendUnavailableError
from txcore.fence import FenceAnswer, FenceReading
from txcore.memory import MemoryBackend, MemoryBroker, MemoryClaim
from txcore.records import ClaimEvent, ClaimEventKind
from txcore.runtime import instrumentation as names


class Postponing(TransactionListener):
    """A listener that postpones each check, and names the time left, until it may be asked."""

    def __init__(self, clock, *, until_s):
        self.clock = clock
        self.until_s = until_s
        self.asked = 0

    def check_local_transaction(self, half):
        self.asked += 1
        left_s = self.until_s - self.clock.now_s
        if left_s > 0:
            raise CheckPostponedError("the callback is down", retry_after_s=left_s)
        return LocalTransactionState.COMMIT


class PostponingFence:
    """A fence that knows when its database may be asked again."""

    is_async = False

    def __init__(self, clock, *, until_s):
        self.inner = Postponing(clock, until_s=until_s)

    def check(self, transaction_ids, group):
        try:
            self.inner.check_local_transaction(None)
        except CheckPostponedError as error:
            reading = FenceReading(FenceAnswer.NO_ANSWER, str(error), error.retry_after_s)
        else:
            reading = FenceReading(FenceAnswer.COMMIT)
        return dict.fromkeys(transaction_ids, reading)

    def __getattr__(self, name):
        raise AssertionError(f"{name} is the producer's")


def orphan(broker, clock, *, immunity_s=6.0, fenced=False, count=1):
    """Leave halves without an end, as a killed producer does."""
    producer = TransactionProducer(
        MemoryBackend(broker), "g", clock=clock, partition_count=1, policy=CheckPolicy(immunity_s=immunity_s)
    )
    for _ in range(count):
        transaction = producer.begin()
        transaction.publish(Message("t", b"body"))
        transaction._core.fenced = fenced
        transaction.prepare()


def make_checker(broker, clock, **settings):
    limits = settings.pop("limits", None) or Limits(poll_s=0.001, idle_poll_s=0.001, retry_s=0.01)
    return Checker(MemoryBackend(broker), "g", clock=clock, limits=limits, **settings)


def test_a_postponed_check_waits_as_long_as_requested(running_clock):
    """The checker asks again only after the requested delay, counts no check until then, and gets the answer."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock)
    running_clock.advance(10)
    listener = Postponing(running_clock, until_s=running_clock.now_s + 100)
    checker = make_checker(broker, running_clock, listener=listener, policy=CheckPolicy(interval_s=1, check_max=1))
    checker.run_once()
    assert 1 == listener.asked
    for _ in range(9):
        running_clock.advance(10)
        checker.run_once()
    assert 1 == listener.asked
    running_clock.advance(20)
    checker.run_once()
    checker.run_once()
    assert (2, [b"body"]) == (listener.asked, [each.body for each in broker.topics["t"]])
    checker.stop()


def test_a_fence_may_say_when_to_ask_again(running_clock):
    """A fence may name the delay as a listener does; its database gets no calls until then."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock, fenced=True)
    running_clock.advance(10)
    fence = PostponingFence(running_clock, until_s=running_clock.now_s + 50)
    checker = make_checker(broker, running_clock, fence=fence)
    for _ in range(4):
        checker.run_once()
        running_clock.advance(10)
    assert 1 == fence.inner.asked
    running_clock.advance(20)
    checker.run_once()
    checker.run_once()
    assert [b"body"] == [each.body for each in broker.topics["t"]]
    checker.stop()


def test_immunity_can_be_lengthened_by_the_checker(running_clock):
    """The checker may lengthen a half's immunity and never shortens it."""
    for own_s, at_least_s, first_check_s in ((6.0, 20.0, 20.0), (30.0, 20.0, 30.0)):
        broker = MemoryBroker(clock=running_clock)
        orphan(broker, running_clock, immunity_s=own_s)
        listener = Postponing(running_clock, until_s=0.0)
        limits = Limits(poll_s=0.001, idle_poll_s=0.001, immunity_min_s=at_least_s)
        checker = make_checker(broker, running_clock, listener=listener, limits=limits)
        checker.run_once()
        running_clock.advance(first_check_s - 2)
        checker.run_once()
        assert 0 == listener.asked
        running_clock.advance(3)
        checker.run_once()
        assert 1 == listener.asked
        checker.stop()


def test_stats_show_the_pending_halves_and_their_age(running_clock):
    """The stats list no partition before the checker joins, and then each partition with its oldest half."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock, immunity_s=1_000, count=3)
    checker = make_checker(broker, running_clock, listener=Postponing(running_clock, until_s=0.0))
    assert (False, ()) == (checker.stats().is_running, checker.stats().partitions)
    running_clock.advance(40)
    checker.run_once()
    (partition,) = checker.stats().partitions
    assert checker.stats().is_running
    assert (0, True, 3, 0) == (partition.partition, partition.is_claimed, partition.pending, partition.in_hand)
    assert 40 == pytest.approx(partition.oldest_age_s, abs=1)
    assert 1 > partition.checkpoint_age_s
    assert 3 == checker.counts["halves"]
    checker.stop()
    assert not checker.stats().is_running
    assert 3 == checker.counts["halves"], "kept after the stop"


def test_stats_of_very_many_halves_do_not_look_at_each_every_time(running_clock, monkeypatch):
    """Frequent calls of `stats` look at each half only now and then, and the oldest age still grows."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock, immunity_s=1_000, count=3)
    checker = make_checker(broker, running_clock, listener=Postponing(running_clock, until_s=0.0))
    running_clock.advance(40)
    checker.run_once()
    looks, look = [], PartitionState.pending.fget

    def long_look(state):
        looks.append(running_clock.now_s)
        running_clock.advance(0.1)
        return look(state)

    monkeypatch.setattr(PartitionState, "pending", property(long_look))
    ages_s = []
    for _ in range(40):
        running_clock.advance(0.1)
        ages_s.append(checker.stats().partitions[0].oldest_age_s)
    assert 1 == len(looks)
    assert 40 == pytest.approx(ages_s[0], abs=2)
    assert 4 == pytest.approx(ages_s[-1] - ages_s[0], abs=0.2)
    running_clock.advance(0.1 * LOOK_SHARE)
    checker.stats()
    assert 2 == len(looks)
    checker.stop()


def test_stats_of_a_running_checker_show_its_loop():
    """A started checker turns its loop by itself and is running; after its stop it is not."""
    checker = Checker(MemoryBackend(MemoryBroker()), "g", listener=Postponing(None, until_s=0.0))
    checker.start()
    stats = checker.stats()
    assert stats.is_running
    assert 5 > stats.turned_s
    assert 0 == stats.stuck_calls
    checker.stop()
    assert not checker.stats().is_running


def test_a_checkers_log_lines_name_their_group(running_clock, caplog):
    """Each log line of a checker names its group, because one process may run many groups."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock)
    running_clock.advance(10)
    checker = make_checker(broker, running_clock, listener=Postponing(running_clock, until_s=1e9))
    with caplog.at_level(logging.WARNING, "txcore.checker"):
        checker.run_once()
    checker.stop()
    assert {"g"} == {record.txcore["group"] for record in caplog.records}
    assert {"check.no_answer"} == {record.message for record in caplog.records}


class Counting(TransactionListener):
    """A listener that counts the calls under way; each waits for a third one, for at most *alone_s*."""

    def __init__(self, alone_s=0.05):
        self.alone_s = alone_s
        self.changed = threading.Condition()
        self.under_way = self.most = self.asked = 0

    def check_local_transaction(self, half):
        with self.changed:
            self.asked += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.under_way > 2, self.alone_s)
            self.under_way -= 1
        return LocalTransactionState.COMMIT


def test_calls_at_once_are_bounded(running_clock):
    """A checker asks about at most `calls_max` halves at once, and really about so many."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock, count=12)
    running_clock.advance(10)
    listener = Counting()
    checker = make_checker(broker, running_clock, listener=listener, limits=Limits(calls_max=2))
    wait_until(lambda: checker.run_once() and listener.asked == 12, "all answers")
    checker.stop()
    assert listener.most == 2


def test_a_bound_of_no_calls_is_refused():
    """`Limits` refuses a `calls_max` below 1, and the error names the key."""
    with pytest.raises(Exception, match="calls_max is a whole number from 1") as raised:
        Limits(calls_max=0)
    assert "calls_max" == raised.value.key


def test_an_idle_checker_looks_for_changes_of_ownership_less_often(clock):
    """An idle checker polls its membership less often, up to a bound, and often again after each change."""
    broker = MemoryBroker(clock=clock)
    limits = Limits(poll_s=0.005, idle_poll_s=10.0)
    checker = make_checker(broker, clock, listener=Postponing(clock, until_s=0.0), limits=limits)
    checker._join()
    membership = checker._membership
    events = iter([["assigned"], [], [], [], [], [], ["lost"], []])
    membership.poll = lambda: bool(next(events))
    flow = membership.run()
    pauses = [next(flow) for _ in range(8)]
    assert [0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.02, 0.04] == pauses
    flow.close()
    checker.stop()


class SlowMarks(MemoryBackend):
    """A backend whose marks take a second, while an unanswered half is due again after 0.01 s."""

    def mark(self, *args):
        self.broker.clock.advance(1)
        return super().mark(*args)


def test_a_sweep_asks_about_each_half_once_however_slow_the_backend(running_clock):
    """A half that is due again during a sweep waits for the next sweep, so that this one ends."""
    broker = MemoryBroker(clock=running_clock)
    orphan(broker, running_clock, count=3)
    running_clock.advance(10)

    class Silent(TransactionListener):
        asked = 0

        def check_local_transaction(self, half):
            self.asked += 1
            raise OSError("no answer")

    listener = Silent()
    limits = Limits(poll_s=0.001, idle_poll_s=0.001, retry_s=0.01)
    checker = Checker(SlowMarks(broker), "g", clock=running_clock, limits=limits, listener=listener)
    for sweeps in (1, 2):
        assert 3 == checker.run_once().pending
        assert 3 * sweeps == listener.asked
    checker.stop()


class LateAnswers(MemoryBackend):
    """A backend that reports the outcome of an op only after the op's owner has read the op back."""

    def __init__(self, broker):
        super().__init__(broker)
        self.unreported = []

    def request(self, what, apply, done, transaction_ids=()):
        super().request(what, apply, done if what != "op" else lambda outcome: self.unreported.append((done, outcome)))

    def read(self, *args):
        reader = super().read(*args)
        read = reader.read

        def read_then_tell(count):
            records = read(count)
            if not records:
                reported, self.unreported = self.unreported, []
                for done, outcome in reported:
                    done(outcome)
            return records

        reader.read = read_then_tell
        return reader


@pytest.mark.parametrize("backend_type", [MemoryBackend, LateAnswers])
@pytest.mark.parametrize("check_max", [1, 2])
def test_one_sweep_takes_every_step_of_a_judgement(backend_type, check_max, running_clock):
    """One sweep does all steps of a judgement, whether the checker sees an op's outcome or its record first."""
    for answer in (LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN):
        broker = MemoryBroker(clock=running_clock)
        orphan(broker, running_clock, count=3)
        running_clock.advance(10)
        limits = Limits(poll_s=0.001, idle_poll_s=0.001)
        policy = CheckPolicy(check_max=check_max)
        backend = backend_type(broker)
        checker = Checker(backend, "g", listener=Answers(answer), clock=running_clock, limits=limits, policy=policy)
        report = checker.run_once()
        checker.stop()
        is_commit = answer is LocalTransactionState.COMMIT
        parked = 0 if is_commit or check_max > 1 else 3
        assert (3 * is_commit, parked) == (report.committed, report.parked)
        assert 3 * is_commit == len(broker.topics.get("t", ()))


class LapsingClaim(MemoryClaim):
    """A claim that is lost and assigned anew at one of its polls, as after a pause of its process."""

    polls_left = 0

    def poll(self):
        events = super().poll()
        self.polls_left -= 1
        if self.polls_left:
            return events
        return [*events, ClaimEvent(ClaimEventKind.LOST, 0), ClaimEvent(ClaimEventKind.ASSIGNED, 0)]


@pytest.mark.parametrize("polls", range(1, 6))
def test_run_once_judges_the_halves_of_a_partition_that_was_assigned_anew(running_clock, monkeypatch, polls):
    """A partition that is lost and assigned anew while `run_once` works is judged before `run_once` returns."""
    broker = MemoryBroker(clock=running_clock)
    backend, made = MemoryBackend(broker), []

    def claim(group, member):
        made.append(LapsingClaim(broker, backend.request, group, member))
        return made[-1]

    monkeypatch.setattr(backend, "claim", claim)
    orphan(broker, running_clock)
    checker = Checker(backend, "g", listener=Answers(LocalTransactionState.COMMIT), clock=running_clock)
    assert (0, 1) == ((report := checker.run_once()).committed, report.pending)
    running_clock.now_s += 10
    made[0].polls_left = polls
    report = checker.run_once()
    assert (1, 0) == (report.committed, report.pending)


class SilentClaim(MemoryClaim):
    """A claim whose broker never confirms that it was closed."""

    def close(self, timeout_s):
        super().close(timeout_s)
        return Future()


def test_stopped_checker_ends_its_calls_when_the_end_of_its_claim_is_not_confirmed(running_clock, monkeypatch):
    """A checker that gets no answer about its claim reports that, and ends the threads of its calls all the same."""
    backend = MemoryBackend(MemoryBroker())
    monkeypatch.setattr(
        backend, "claim", lambda group, member: SilentClaim(backend.broker, backend.request, group, member)
    )
    observed = Observed()
    answers = Answers(LocalTransactionState.COMMIT)
    checker = Checker(backend, "g", listener=answers, clock=running_clock, plugins=(observed,))
    checker.run_once()
    checker.stop(timeout_s=0.05)
    assert checker._pool._is_closed
    assert 1 == len(observed.named(names.CHECKER_ERROR))


@pytest.mark.parametrize("joins", [Checker.run_once, Checker.start])
def test_checker_without_an_answer_about_its_group_raises_an_error_of_txcore(joins, monkeypatch):
    """A backend that never answers about the group is reported as unavailable; the next call tries again."""
    monkeypatch.setattr(port, "GROUP_TIMEOUT_S", 0.01)
    backend = MemoryBackend(MemoryBroker())
    checker = Checker(backend, "g", listener=Answers(LocalTransactionState.COMMIT))
    with monkeypatch.context() as silent:
        silent.setattr(backend, "ensure_group", lambda *_: Future())
        with pytest.raises(BackendUnavailableError, match="no answer about group 'g'"):
            joins(checker)
    assert checker.run_once().partitions


def test_a_check_that_outlasts_the_time_to_stop_ends_later_without_an_error(monkeypatch):
    """A checker's thread that outlasts the time to stop ends after its check, without an error."""
    raised, asked, released = [], threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", raised.append)

    class Slow(TransactionListener):
        def check_local_transaction(self, half):
            asked.set()
            released.wait(10)
            return LocalTransactionState.COMMIT

    broker = MemoryBroker()
    orphan(broker, SystemClock(), immunity_s=2.1)
    checker = make_checker(broker, SystemClock(), listener=Slow())
    checker.start()
    thread = checker._thread
    assert asked.wait(20)
    checker.stop(timeout_s=0.05)
    assert thread.is_alive()
    released.set()
    thread.join(20)
    assert (False, []) == (thread.is_alive(), raised)
