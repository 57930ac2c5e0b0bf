"""The kit's assertions, its clock, its drain and the texts of its failures."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import txcore
from txcore.testing import Kit, UndecidedError


def failure(call, *arguments, **options):
    """Return the text of the assertion that fails, with ids replaced."""
    with pytest.raises(AssertionError) as caught:
        call(*arguments, **options)
    return re.sub(r"transaction \S+ of", "transaction ID of", str(caught.value))


def test_published_messages_are_found_by_what_they_are(kit, shop):
    """Body, value, key, headers and number are compared; messages have the consumer's headers."""
    producer = kit.producer("shop", fence=shop.fence)
    shop.place(producer)
    shop.place(producer, "cake")
    assert 2 == len(kit.assert_published("orders.created"))
    (cake,) = kit.assert_published("orders.created", value={"order": 2, "item": "cake"}, key="2", count=1)
    assert cake.headers["content-type"] == "application/json"
    kit.assert_published("orders.created", headers={"content-type": b"application/json"}, count=2)
    kit.assert_published("orders.created", body='{"order":1,"item":"tea"}', key=b"1")
    kit.assert_published("orders.created", value={"order": 3}, count=0)
    kit.assert_not_published("orders.paid")


def test_failed_assertion_shows_what_is_there(kit, shop):
    """The text has the expectation, the topic's messages, other topics, and that nothing is open."""
    producer = kit.producer("shop", fence=shop.fence)
    shop.place(producer)
    assert (
        "expected at least one message in 'orders.created' with the value {'order': 2} and the key b'2', "
        "and there are none\n"
        "in 'orders.created':\n"
        "  1. key b'1', body b'{\"order\":1,\"item\":\"tea\"}', headers {'content-type': 'application/json'}\n"
        "no transaction is undecided or parked"
    ) == failure(kit.assert_published, "orders.created", value={"order": 2}, key="2")
    assert ("expected 2 messages in 'orders.created', and there is 1\nin 'orders.created':\n") in failure(
        kit.assert_published, "orders.created", count=2
    )
    assert (
        "expected at least one message in 'orders.paid', and there are none\n"
        "in other topics: 'orders.created' (1)\n"
        "no transaction is undecided or parked"
    ) == failure(kit.assert_published, "orders.paid")
    assert failure(kit.assert_not_published, "orders.created").startswith(
        "expected no message in 'orders.created', and there is 1\nin 'orders.created':\n  1. key b'1'"
    )


def test_failed_assertion_shows_what_is_pending_and_why(kit, shop):
    """An open half is named with its group, topic and age, and the cure."""
    producer = kit.producer("shop", fence=shop.fence)
    with kit.crash_after("database commit"):
        shop.place(producer)
    kit.clock.advance(2)
    assert (
        "expected at least one message in 'orders.created', and there are none\n"
        "not published:\n"
        "  undecided: transaction ID of group 'shop', for 'orders.created': its transaction has not ended, as after a "
        "crash, and no checker has asked yet; kit.drain() lets one decide (2 s old)"
    ) == failure(kit.assert_published, "orders.created")


def test_failed_assertion_shows_the_message_table(kit, shop):
    """Rows that no relay has sent are counted."""
    shop.place(kit.producer("shop", fence=shop.fence, mode="table"))
    text = failure(kit.assert_published, "orders.created")
    assert text.endswith("not published:\n  in the message table of group 'shop': 1; kit.drain() relays them")
    assert 1 == kit.drain().relayed
    kit.assert_published("orders.created", count=1)


def test_six_seconds_later_the_checker_asks(kit, shop):
    """The clock moves by the test's hand only, and no test sleeps."""
    began_s = time.monotonic()
    producer = kit.producer("shop", fence=shop.fence)
    checker = kit.checker("shop", fence=shop.fence)
    with kit.crash_after("database commit"):
        shop.place(producer)
    assert (0, 1) == ((report := checker.run_once()).committed, report.pending)
    kit.clock.advance(5)
    assert (0, 1) == ((report := checker.run_once()).committed, report.pending)
    kit.clock.advance(1)
    assert (1, 0) == ((report := checker.run_once()).committed, report.pending)
    kit.assert_published("orders.created", count=1)
    assert time.monotonic() - began_s < 5


def test_clock_moves_by_hours_in_no_time(kit, shop):
    """A message's own immunity of an hour is drained as fast."""
    producer = kit.producer("shop", fence=shop.fence)
    policy = txcore.CheckPolicy(immunity_s=3_600)
    transaction = producer.begin()
    with kit.crash_after("half"), shop.engine.begin() as connection:
        transaction.publish(txcore.Message("t", b"x", check_policy=policy))
        transaction.prepare(connection)
    began_s = time.monotonic()
    assert 3_600 <= kit.drain().moved_s < 3_700
    assert time.monotonic() - began_s < 5


def test_drain_without_work_moves_little(kit, shop):
    """Nothing is open, so no immunity is waited for."""
    shop.place(kit.producer("shop", fence=shop.fence))
    report = kit.drain()
    assert (0, 0, 0, 0) == (report.committed, report.rolled_back, report.parked, report.relayed)
    assert report.moved_s < 1
    assert Kit().drain().moved_s == 0


class Answering(txcore.TransactionListener):
    """A listener whose checks have the given answers, and then the last of them for ever."""

    topics = None

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    def execute(self, transaction, message, arg):
        return txcore.LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


UNKNOWN, COMMIT = txcore.LocalTransactionState.UNKNOWN, txcore.LocalTransactionState.COMMIT


def send(kit, listener):
    kit.producer("shop", listener=listener).send_message_in_transaction(txcore.Message("orders.created", b"x"))


def test_listener_is_asked_until_it_knows(kit):
    """UNKNOWN is asked again after the interval, by a moved clock."""
    listener = Answering(UNKNOWN, UNKNOWN, COMMIT)
    send(kit, listener)
    report = kit.drain()
    assert (1, 3) == (report.committed, listener.asked)
    assert 66 <= report.moved_s < 70


def test_listener_that_never_knows_has_its_half_parked(kit):
    """After `check_max` answers the half is parked: the report counts it, an assertion names it."""
    send(kit, Answering(UNKNOWN))
    assert 1 == kit.drain().parked
    text = failure(kit.assert_published, "orders.created")
    assert "parked: transaction ID of group 'shop', for 'orders.created': 15 checks were answered UNKNOWN" in text


def test_failing_listener_is_forgiven_twice(kit):
    """An answer that comes after two failures counts."""
    send(kit, Answering(ConnectionError("down"), ConnectionError("down"), COMMIT))
    assert 1 == kit.drain().committed


def test_listener_without_an_answer_is_an_error_that_names_it(kit):
    """A half that no check can decide ends the drain, with the reason of the last check."""
    listener = Answering(ConnectionError("the ledger is down"))
    send(kit, listener)
    with pytest.raises(UndecidedError) as caught:
        kit.drain()
    assert 3 == listener.asked
    (left,) = caught.value.transactions
    assert ("shop", ("orders.created",)) == (left.group, left.topics)
    assert "ConnectionError('the ledger is down')" in left.reason
    assert str(caught.value).startswith("the kit cannot decide everything:\n  undecided: transaction")


def test_postponed_check_is_an_error_with_its_text(kit):
    """A listener that postpones for ever is asked after the time it names, three times."""
    listener = Answering(txcore.CheckPostponedError("the bank is closed", retry_after_s=3_600))
    send(kit, listener)
    with pytest.raises(UndecidedError, match="the bank is closed"):
        kit.drain()
    assert kit.clock.now_s - 1_000 >= 7_200


def test_listener_of_other_topics_is_named(kit):
    """The reason is that of the checker."""
    listener = Answering(COMMIT)
    listener.topics = ("orders.paid",)
    send(kit, listener)
    with pytest.raises(UndecidedError, match="no listener here takes these topics"):
        kit.drain()


def test_group_without_a_source_is_an_error_that_says_what_to_give(kit):
    """A producer with neither fence nor listener needs a checker that the test names."""
    transaction = kit.producer("shop").begin()
    transaction.publish(txcore.Message("orders.created", b"x"))
    transaction.prepare()
    with pytest.raises(UndecidedError, match=re.escape("kit.checker('shop', fence=…)")):
        kit.drain()
    kit.checker("shop", listener=Answering(COMMIT))
    assert 1 == kit.drain().committed


def test_service_with_its_own_objects_uses_the_url(kit, shop):
    """A service that connects by itself is tested too: the same broker, and crashes work."""
    with txcore.connect(kit.url) as backend:
        producer = txcore.TransactionProducer(backend, "shop", fence=shop.fence, clock=kit.clock)
        with kit.crash_after("database commit"):
            shop.place(producer)
    kit.checker("shop", fence=shop.fence)
    assert 1 == kit.drain().committed
    kit.assert_published("orders.created", count=1)


@pytest.mark.parametrize("is_first", [True, False])
def test_checker_that_the_service_runs_is_a_spare(kit, shop, is_first):
    """Beside the kit's checker, made before it or after it, it decides nothing, and `drain` does."""
    with txcore.connect(kit.url) as backend:
        producer = txcore.TransactionProducer(backend, "shop", fence=shop.fence)
        if is_first:
            kit.checker("shop", fence=shop.fence)
        with txcore.Checker(backend, "shop", fence=shop.fence) as own:
            kit.checker("shop", fence=shop.fence)
            with kit.crash_after("database commit"):
                shop.place(producer)
            assert 1 == kit.drain().committed
            assert 0 == own.counts["commit"]
    kit.assert_published("orders.created", count=1)


@pytest.mark.parametrize("has_relay", [False, True])
def test_table_of_a_service_with_its_own_producer_is_drained(kit, shop, has_relay):
    """The kit knows the fence by its checker, so it shows and relays what waits in that fence's message table."""
    producer = txcore.TransactionProducer(kit.backend, "shop", fence=shop.fence, mode="auto", clock=kit.clock)
    kit.checker("shop", fence=shop.fence)
    if has_relay:
        kit.relay("shop", shop.engine)
    kit.broker.down = True
    shop.place(producer)
    kit.broker.down = False
    assert "in the message table of group 'shop': 1" in failure(kit.assert_published, "orders.created")
    assert 1 == kit.drain().relayed
    kit.assert_published("orders.created", count=1)


def test_cancelled_check_is_an_answer_that_is_missing(kit):
    """A listener whose check is cancelled is named, as any other that gives no answer."""

    class Cancelled(txcore.AsyncTransactionListener):
        async def execute(self, transaction, message, arg):
            return txcore.LocalTransactionState.UNKNOWN

        async def check_local_transaction(self, half):
            raise asyncio.CancelledError

    async def main():
        async with kit.async_producer("shop", listener=Cancelled()) as producer:
            await producer.send_message_in_transaction(txcore.Message("orders.created", b"tea"))
        with pytest.raises(UndecidedError, match="cancelled"):
            await kit.drain_async()

    asyncio.run(main())


def test_broker_that_is_down_is_named(kit, shop):
    """Neither drain nor a failed assertion waits for a broker that a test has stopped."""
    producer = kit.producer("shop", fence=shop.fence)
    kit.checker("shop", fence=shop.fence)
    shop.place(producer)
    kit.broker.down = True
    assert "more may be open: the memory broker is down" in failure(kit.assert_published, "orders.paid")
    with pytest.raises(txcore.BackendUnavailableError, match="down"):
        kit.drain()
    kit.broker.down = False


def test_checker_of_the_kit_has_no_thread(kit, shop):
    """A thread would run on a clock that stays where it is."""
    with pytest.raises(txcore.TransactionStateError, match="no thread"):
        kit.checker("shop", fence=shop.fence).start()


def test_table_of_an_asynchronous_engine_needs_a_relay(kit, shop):
    """The error names the call."""
    kit.async_producer("shop", fence=txcore.AsyncSqlFence(sqlalchemy_async(shop)), mode="table")
    with pytest.raises(txcore.UsageError, match=r"kit\.(relay|drain_async)"):
        kit.drain()


def sqlalchemy_async(shop):
    return create_async_engine(shop.url)


def test_fixtures_are_loaded_by_name(pytester_run):
    """A project loads them in its conftest.py, and nothing else does."""
    test = (
        "def test_it(txcore_kit, txcore_backend, txcore_clock):\n"
        "    assert txcore_kit.backend is txcore_backend\n"
        "    assert txcore_kit.clock is txcore_clock\n"
    )
    assert "1 passed" in pytester_run(test, 'pytest_plugins = ["txcore.testing.pytest"]\n')
    assert "fixture 'txcore_kit' not found" in pytester_run(test, "")


@pytest.fixture
def pytester_run(tmp_path, outside):
    """Run pytest in an empty folder, and return its output."""

    def run(test, conftest, *arguments):
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_it.py").write_text(test)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout + done.stderr

    return run


def test_kit_needs_no_extra():
    """Without SQLAlchemy and pytest the kit is imported, and drains halves that a listener decides."""
    program = (
        "import sys; sys.modules['sqlalchemy'] = sys.modules['pytest'] = None\n"
        "from txcore.testing import Kit\n"
        "with Kit() as kit: print(kit.drain().moved_s)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ("", "0.0\n") == (done.stderr, done.stdout)
