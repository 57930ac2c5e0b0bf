"""Sources of answers: the fence through its circuit, Python listeners by name, and the plan of a configuration."""

from __future__ import annotations

import asyncio
import threading

import pytest

from txcore import BackendNotInstalledError, ConfigError, HalfView, Limits, LocalTransactionState, Message
from txcore.clock import SystemClock, system_randomness
from txcore.config import DatabaseSection, load
from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import IdFactory
from txcore.sidecar import resources as resources_module
from txcore.sidecar.answers import open_answers
from txcore.sidecar.fences import GuardedFence, open_engine
from txcore.sidecar.figures import Figures
from txcore.sidecar.listeners import TimedListener, load_listeners
from txcore.sidecar.plan import plans_of
from txcore.sidecar.resources import Resources, Shared
from txcore.sidecar.source_circuit import SourceCircuit

HALF = HalfView(bytes(16), "orders", (Message("t", b"x"),), 0, 0)
MODULE = """
import txcore
COMMIT = txcore.LocalTransactionState.COMMIT

class Plain(txcore.TransactionListener):
    topics = ("a",)
    def check_local_transaction(self, half):
        return COMMIT

class Asynchronous(txcore.AsyncTransactionListener):
    async def check_local_transaction(self, half):
        return COMMIT

class Needy(Plain):
    def __init__(self, connection):
        pass

class Nested:
    made = Plain()

plain = Plain()
several = [Plain(), Plain]
empty = []
number = 7
"""


class HandFence:
    """A fence whose database is up, locked or down."""

    is_async = False

    def __init__(self):
        self.state = "up"
        self.checks = self.peeks = 0
        self.forced = []

    def check(self, transaction_ids, group, databases=None):
        self.checks += 1
        answers = {"up": FenceReading(FenceAnswer.COMMIT)}
        return dict.fromkeys(transaction_ids, answers.get(self.state, FenceReading(FenceAnswer.NO_ANSWER, self.state)))

    def peek(self, transaction_ids):
        self.peeks += 1
        answer = (
            FenceReading(FenceAnswer.NO_ANSWER, "gone") if self.state == "down" else FenceReading(FenceAnswer.ABSENT)
        )
        return dict.fromkeys(transaction_ids, answer)

    def force(self, transaction_id, group, database=b""):
        self.forced.append((transaction_id, group))


@pytest.fixture
def guarded(clock, no_jitter):
    circuit = SourceCircuit("database shop", clock, no_jitter, failures_max=1, first_s=2.0)
    latencies = []
    fence = GuardedFence(HandFence(), circuit, clock, latencies.append, 1.0)
    fence.latencies = latencies
    return fence


def test_a_fence_that_answers_is_timed(guarded):
    """One check asks the database once, and its latency is recorded."""
    assert FenceAnswer.COMMIT is guarded.check([b"a", b"b"], "g")[b"b"].answer
    assert (1, 0, [0.0]) == (guarded.fence.checks, guarded.fence.peeks, guarded.latencies)


def test_locked_ids_do_not_open_the_circuit(guarded):
    """A locked id does not open the circuit, because the next half may well have an answer."""
    guarded.fence.state = "locked"
    reading = guarded.check([b"a"], "g")[b"a"]
    assert FenceReading(FenceAnswer.NO_ANSWER, "locked", 0.0) == reading
    assert ("", 1, []) == (guarded.circuit.reason, guarded.fence.peeks, guarded.latencies)


def test_a_database_that_is_down_is_asked_once_and_then_left_alone(guarded, clock):
    """Every half gets the time of its next question; after the pause one question probes the database."""
    guarded.fence.state = "down"
    assert FenceReading(FenceAnswer.NO_ANSWER, "down", 2.0) == guarded.check([b"a"], "g")[b"a"]
    reading = guarded.check([b"b"], "g")[b"b"]
    assert (FenceAnswer.NO_ANSWER, 2.0, 1) == (reading.answer, reading.retry_after_s, guarded.fence.checks)
    assert "database shop is down (gone)" in reading.reason
    clock.advance(2)
    guarded.fence.state = "up"
    assert FenceReading(FenceAnswer.COMMIT) == guarded.check([b"b"], "g")[b"b"]
    assert "" == guarded.circuit.reason


def test_an_operators_word_passes_the_circuit(guarded):
    """An operator's forced end passes the open circuit, because it is meant for a database that is down."""
    guarded.fence.state = "down"
    guarded.check([b"a"], "g")
    guarded.force(b"a", "g")
    assert [(b"a", "g")] == guarded.fence.forced


def test_real_fence_works_through_a_real_circuit(shop, no_jitter):
    """The answers of the table pass the circuit; a missing table opens it."""
    latencies = []
    circuit = SourceCircuit("database", SystemClock(), no_jitter, failures_max=1, first_s=20)
    guarded = GuardedFence(shop.fence, circuit, SystemClock(), latencies.append, 1.0)
    identity = IdFactory(SystemClock(), system_randomness()).new()
    assert FenceAnswer.ROLLBACK is guarded.check([identity], "g")[identity].answer
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE txcore_tx")
    reading = guarded.check([identity], "g")[identity]
    assert FenceAnswer.NO_ANSWER is reading.answer
    assert 15 < reading.retry_after_s
    assert 1 == len(latencies)
    assert "fence table is missing" in circuit.reason


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("shop.db", "does not know this database URL"),
        ("nosuchdatabase://h/x", "does not know this database URL"),
        ("sqlite+aiosqlite:///shop.db", "is an asynchronous driver"),
        ("sqlite://", "in memory"),
    ],
)
def test_a_database_url_that_cannot_serve_is_a_mistake(url, words):
    """The error names the key before any connection is made."""
    with pytest.raises(ConfigError, match=words) as raised:
        open_engine(url, DatabaseSection())
    assert "url" == raised.value.key


def test_a_databases_missing_driver_is_named(monkeypatch):
    """The error names the extra that installs the missing driver."""
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(BackendNotInstalledError, match=r"txcore\[postgresql\]"):
        open_engine("postgresql+psycopg://h/x", DatabaseSection())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the working directory."""
    name = f"listeners_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    return name


@pytest.mark.parametrize(("attribute", "count"), [("plain", 1), ("Plain", 1), ("several", 2), ("Nested.made", 1)])
def test_a_listener_is_found_by_name(module, attribute, count):
    """The name leads to an object, a class, a list, or an attribute of either."""
    found = load_listeners(f"{module}:{attribute}")
    assert [LocalTransactionState.COMMIT] * count == [each.check_local_transaction(HALF) for each in found]


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("missing", "AttributeError"),
        ("Needy", "cannot be made without arguments: TypeError"),
        ("number", "is of type int and has no check_local_transaction"),
        ("empty", "is empty"),
    ],
)
def test_non_listener_is_refused_by_name(module, attribute, words):
    """The error has the name that was given."""
    with pytest.raises(ConfigError, match=words) as raised:
        load_listeners(f"{module}:{attribute}")
    assert "listener" == raised.value.key
    assert f"{module}:{attribute}" in str(raised.value)


def test_a_module_that_fails_says_how():
    """The error has the reason why the module cannot be imported, such as a missing module."""
    with pytest.raises(ConfigError, match="no_such_module:x cannot be imported: ModuleNotFoundError"):
        load_listeners("no_such_module:x")


def test_a_listener_keeps_its_topics_and_is_timed(module, clock):
    """A listener's exception reaches the checker, and its time is not recorded."""
    latencies = []
    timed = TimedListener(load_listeners(f"{module}:plain")[0], clock, latencies.append)
    assert (("a",), LocalTransactionState.COMMIT) == (timed.topics, timed.check_local_transaction(HALF))
    assert [0.0] == latencies

    class Failing:
        def check_local_transaction(self, half):
            raise LookupError("gone")

    failing = TimedListener(Failing(), clock, latencies.append)
    with pytest.raises(LookupError):
        failing.check_local_transaction(HALF)
    assert (None, [0.0]) == (failing.topics, latencies)


def write(tmp_path, text):
    (tmp_path / "txcore.toml").write_text(f'[backends.main]\nurl = "sqlite:///b.db"\n{text}')
    return load(tmp_path / "txcore.toml", environment={})


def opened(plan, resources):
    clock = SystemClock()
    return open_answers(plan, resources, Figures(clock), clock, system_randomness())


def test_an_asynchronous_listener_gets_an_event_loop(module, tmp_path):
    """All groups share one event loop, which closes with the last group that uses it."""
    loaded = write(
        tmp_path, f'[groups.a]\nlistener = "{module}:Asynchronous"\n[groups.b]\nlistener = "{module}:Plain"\n'
    )
    plans, resources = plans_of(loaded), Resources()
    answers, other = opened(plans["a"], resources), opened(plans["b"], resources)
    coroutine = answers.listeners[0].check_local_transaction(HALF)
    future = asyncio.run_coroutine_threadsafe(coroutine, answers.event_loop)
    assert LocalTransactionState.COMMIT is future.result(10)
    assert other.event_loop is None
    answers.close()
    other.close()
    assert answers.event_loop.is_closed()


def test_plan_follows_the_configuration(tmp_path):
    """Two readings of one file give equal plans; a changed secret gives another plan."""
    (tmp_path / "secret").write_text("one")
    text = (
        "[groups.a]\nlimits.calls_max = 3\npolicy = { immunity_s = 9, interval_s = 4, check_max = 2 }\n"
        '[groups.a.callback]\nurl = "http://h/"\nsecret_file = "secret"\n'
    )
    plan = plans_of(write(tmp_path, text))["a"]
    assert plan == plans_of(write(tmp_path, text))["a"]
    assert (3, 9.0, 1.0) == (plan.limits.calls_max, plan.limits.immunity_min_s, plan.limits.idle_poll_s)
    assert (4.0, 2, ("callback",)) == (plan.policy.interval_s, plan.policy.check_max, plan.sources)
    assert isinstance(plan.limits, Limits)
    (tmp_path / "secret").write_text("two")
    changed = plans_of(write(tmp_path, text))["a"]
    assert plan != changed
    assert "two" not in repr(changed)
    assert "sqlite:///b.db" not in repr(changed), "a broker's URL may hold a password"


def test_groups_with_one_database_share_its_engine(tmp_path):
    """The groups give the engine back when they close; a group that cannot be opened keeps nothing."""
    database = f'[databases.d]\nurl = "sqlite:///{tmp_path}/d.db"\n'
    groups = '[groups.a]\ndatabase = "d"\n[groups.b]\ndatabase = "d"\nfence_table = "other"\n'
    broken = '[groups.c]\ndatabase = "d"\nlistener = "no_such_module:x"\n'
    plans, resources = plans_of(write(tmp_path, database + groups + broken)), Resources()
    first, second = opened(plans["a"], resources), opened(plans["b"], resources)
    assert first.fence.fence.engine is second.fence.fence.engine
    assert ("txcore_tx", "other") == (first.fence.fence.table, second.fence.fence.table)
    with pytest.raises(ConfigError):
        opened(plans["c"], resources)
    first.close()
    second.close()
    assert {} == resources._engines._held


def test_shared_resource_is_opened_once_by_concurrent_users():
    """Two groups that start together wait for one connection; it closes with the last user."""
    opened, closed, circuit = [], [], threading.Event()

    def opener():
        circuit.wait(5)
        opened.append(object())
        return opened[-1]

    shared = Shared(closed.append)
    found = []
    threads = [threading.Thread(target=lambda: found.append(shared.take("k", opener))) for _ in range(4)]
    for thread in threads:
        thread.start()
    circuit.set()
    for thread in threads:
        thread.join(5)
    assert ([opened[0]] * 4, 1) == (found, len(opened))
    for _ in range(3):
        shared.give_back("k")
    assert [] == closed
    shared.give_back("k")
    assert opened == closed
    assert shared.take("k", opener) is opened[1]


def test_failed_opening_is_tried_again_by_the_next_user():
    """A failed opening leaves nothing, so the next user opens the resource again."""
    shared = Shared(lambda _: None)
    with pytest.raises(ZeroDivisionError):
        shared.take("k", lambda: 1 / 0)
    assert 5 == shared.take("k", lambda: 5)


def test_backend_that_does_not_close_delays_no_group(caplog):
    """The release of such a backend returns, and only a log line reports it."""

    class Stuck:
        def close(self, timeout_s):
            raise resources_module.TxcoreError("stuck")

    resources = Resources(close_s=0.01)
    resources._backends.take("u", Stuck)
    resources.give_back_backend("u")
    assert ["backend.close_failed"] == [record.message for record in caplog.records]
