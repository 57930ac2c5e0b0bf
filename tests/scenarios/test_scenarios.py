"""The twenty scenarios that people who run transactional messages have met, one test each."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import zlib
from dataclasses import replace

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, FAST, ROLLBACK, UNKNOWN, Answers, Observed

from txcore import (
    BusyError,
    CheckPolicy,
    ConfigError,
    EndState,
    Limits,
    Message,
    MessageRejectedError,
    TransactionProducer,
    TransactionStateError,
    UsageError,
    connect,
    instrumentation,
    wire,
)
from txcore.memory import Fate, Faults
from txcore.records import OpKind

BY_HANDLE = """
import sys, txcore
backend = txcore.connect(sys.argv[1])
producer = txcore.TransactionProducer(backend, sys.argv[2])
print(producer.attach(sys.argv[3]).commit().state.value)
backend.close(5).result(10)
"""


def _in_another_process(kit, handle):
    command = [sys.executable, "-c", BY_HANDLE, kit.harness.url, kit.group, handle]
    return EndState[subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()]


def _ids(kit, topic):
    return [delivered.headers[wire.HEADER_ID] for delivered in kit.delivered(topic)]


def test_d01_same_commit_twice_delivers_once(world):
    """In one process the second is ALREADY_DONE; by a handle one delivery where the store can tell, else equal ids."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    handle = transaction.handle()
    assert [EndState.ACCEPTED, EndState.ALREADY_DONE] == [transaction.commit().state, transaction.commit().state]
    assert [b"body"] == world.bodies(topic)
    again = world.timed_producer().attach(handle).commit().state
    if world.promises.resolution_is_unique:
        assert EndState.ALREADY_DONE is again
        assert 1 == len(world.bodies(topic))
    else:
        world.history.causes[transaction.transaction_id] = 1
        assert {wire.target_id(transaction.transaction_id, 0)} == set(_ids(world, topic))


def test_d01_same_commit_in_two_processes_delivers_once(sqlite):
    """On a store with unique resolutions the other process is told that it is done."""
    topic = sqlite.topic()
    transaction = sqlite.producer().begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    handle = transaction.handle()
    assert EndState.ACCEPTED is transaction.commit().state
    assert EndState.ALREADY_DONE is _in_another_process(sqlite, handle)
    assert [b"body"] == sqlite.bodies(topic)


@pytest.mark.parametrize("answer", [ROLLBACK, COMMIT])
def test_d02_late_end_against_the_check_is_refused(world, answer):
    """The check decided, the producer's clock stood still: CONFLICT where the store can tell, else TOO_LATE."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    world.pass_time(15, world.timed_checker(Answers(answer)))
    late = transaction.commit() if answer is ROLLBACK else transaction.rollback()
    can_tell = world.promises.resolution_is_unique and world.promises.atomic_release
    assert late.state in ({EndState.CONFLICT, EndState.TOO_LATE} if can_tell else {EndState.TOO_LATE})
    assert ([b"body"] if answer is COMMIT else []) == world.bodies(topic)
    assert OpKind[answer.value] == world.journey(transaction.transaction_id).final


def test_d02_a_store_that_can_tell_says_conflict(strong):
    """A producer that does not know how late it is gets CONFLICT from the store, before anything is delivered."""
    topic = strong.topic()
    transaction = strong.half(Message(topic, b"body"))
    transaction._core.give_way_s = float("inf")  # A paused machine whose clock did not run.
    strong.clock.advance(7)
    strong.sweep(strong.timed_checker(Answers(ROLLBACK)))
    assert EndState.CONFLICT is transaction.commit().state
    assert [] == strong.bodies(topic)


def test_d02_a_contradicting_op_is_reported(plain):
    """Where the store cannot refuse the second end, the checker raises an alert, and the first one holds."""
    topic = plain.topic()
    half = raw.half(plain, topic)
    raw.append(plain, half)
    raw.release(plain, raw.commit(half), raw.rollback(half))
    observed = Observed()
    plain.sweep(plain.timed_checker(Answers(ROLLBACK), plugins=[observed]))
    assert [OpKind.COMMIT] == [fields["first"] for fields in observed.named(instrumentation.OP_CONFLICT)]
    assert 1 == len(plain.bodies(topic))
    plain.history.unjudged = "the contradiction is made on purpose"


def test_d03_slow_local_transaction_is_delivered_once(world, timed):
    """UNKNOWN at the first check, committed later: one delivery, at most one further check, none after it."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    listener = timed(world, UNKNOWN)
    checker = world.timed_checker(listener)
    world.pass_time(8, checker)
    assert 1 == len(listener.times)
    listener.answer = COMMIT  # The local transaction commits now, and its producer says so.
    assert EndState.TOO_LATE is transaction.commit().state
    world.pass_time(5, checker)
    assert [b"body"] == world.bodies(topic)
    assert len(listener.times) <= 2
    world.pass_time(200, checker, step_s=10)
    assert len(listener.times) <= 2
    world.history.committed(transaction.transaction_id)


def test_d04_crash_between_target_and_op_is_one_logical_message(world):
    """The op never arrives: the checker publishes again under the same id, or the store did both or neither."""

    class OpIsLost(Faults):
        def fate(self, what, *_):
            return Fate.LOST if what == "op" else Fate.DONE

    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    world.harness.broker.faults = OpIsLost()
    assert EndState.UNKNOWN is transaction.commit().state
    world.harness.broker.faults = Faults()
    world.history.committed(transaction.transaction_id)
    world.history.causes[transaction.transaction_id] = 0 if world.promises.atomic_release else 1
    world.pass_time(15, world.timed_checker(Answers(COMMIT)))
    world.history.at_rest = True
    assert {wire.target_id(transaction.transaction_id, 0)} == set(_ids(world, topic))


def test_d05_without_a_listener_nothing_is_counted(world):
    """Ten times the whole budget without a service to ask: not discarded, nothing counted; then it is delivered."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    listener = Answers(ConnectionError("nobody there"))
    checker = world.timed_checker(listener, check_max=3)
    world.pass_time(10 * 3 * 30, checker, step_s=15)
    assert len(listener.asked) > 3
    assert ([], []) == (world.journey(transaction.transaction_id).ops, world.operator().parked())
    listener.answer = COMMIT
    world.pass_time(70, checker, step_s=10)
    assert [b"body"] == world.bodies(topic)


def test_d06_immunity_and_count_are_kept(world, timed):
    """Immunity 600 s and at most 3 checks: the first after 600 s, three in all, then parked."""
    topic = world.topic()
    policy = CheckPolicy(immunity_s=600, interval_s=60, check_max=3)
    transaction = world.half(Message(topic, b"body", check_policy=policy))
    listener = timed(world, UNKNOWN)
    checker = world.timed_checker(listener)
    checker.run_once()  # Without a broker's clock immunity counts from here.
    world.pass_time(590, checker, step_s=59)
    assert [] == listener.times
    world.pass_time(600, checker, step_s=5)
    moments = [moment for _, moment in listener.times]
    assert 3 == len(moments)
    assert 600 <= moments[0] < 610
    assert all(60 <= later - earlier < 70 for earlier, later in itertools.pairwise(moments))
    assert [transaction.transaction_id] == [parked.transaction_id for parked in world.operator().parked()]


def test_d07_one_pending_half_delays_no_other(world, timed):
    """One half stays UNKNOWN for an hour; those that come meanwhile are asked as soon as their immunity is over."""
    topic = world.topic()
    world.half(Message(topic, b"stuck"))
    listener = timed(world, COMMIT, by_body={b"stuck": UNKNOWN})
    checker = world.timed_checker(listener, check_max=1_000)
    born = {}
    for number in range(12):
        world.pass_time(300, checker, step_s=60)
        born[b"%d" % number] = world.now_s
        world.half(Message(topic, b"%d" % number))
        world.pass_time(8, checker)
    asked = {body: moment for body, moment in listener.times if body != b"stuck"}
    assert born.keys() == asked.keys()
    assert all(6 <= moment - born[body] < 8 for body, moment in asked.items())
    assert sorted(born) == sorted(world.bodies(topic))


def test_d08_an_exception_for_one_half_lets_the_others_proceed(world):
    """The handler fails for one half at every round; all others are delivered in the first."""
    topic = world.topic()
    for number in range(20):
        world.half(Message(topic, b"%02d" % number))
    listener = Answers(COMMIT, by_body={b"07": ZeroDivisionError("a bug in the handler")})
    checker = world.timed_checker(listener)
    world.pass_time(10, checker)
    assert [b"%02d" % number for number in range(20) if number != 7] == sorted(world.bodies(topic))
    listener.by_body.clear()
    world.pass_time(70, checker, step_s=10)
    world.history.at_rest = True
    assert 20 == len(world.bodies(topic))


@pytest.mark.parametrize("silence", [None, RuntimeError("no"), "blocks"], ids=["None", "raises", "blocks"])
def test_d09_no_answer_is_asked_again_with_back_off(strong, timed, silence):
    """None, an exception and silence count nothing; the pauses between questions grow."""
    topic = strong.topic()
    transaction = strong.half(Message(topic, b"body"))
    may_return = threading.Event()
    listener = timed(strong, (lambda: may_return.wait(30) and UNKNOWN) if silence == "blocks" else silence)
    observed = Observed()
    limits = replace(FAST, retry_s=1.0, retry_max_s=64.0, check_deadline_s=0.1)
    checker = strong.timed_checker(listener, plugins=[observed], check_max=2, limits=limits)
    strong.pass_time(60, checker)
    may_return.set()
    moments = [moment for _, moment in listener.times]
    assert 3 <= len(moments) <= 12
    assert len(observed.named(instrumentation.CHECK_NO_ANSWER)) == len(moments)
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert pauses[-1] > 2 * pauses[0]
    assert ([], []) == (strong.journey(transaction.transaction_id).ops, strong.operator().parked())


def test_d10_a_foreign_listener_is_not_asked(world):
    """Two services in one group: what the asked one did not declare is neither asked, counted nor discarded there."""
    orders, bills = world.topic("orders"), world.topic("bills")
    identity = world.half(Message(bills, b"bill")).transaction_id
    listener, observed = Answers(ROLLBACK), Observed()
    listener.topics = [orders]
    checker = world.timed_checker(listener, check_max=2, plugins=[observed])
    world.pass_time(600, checker, step_s=20)
    assert ([], [], []) == (listener.asked, world.journey(identity).ops, world.operator().parked())
    (fields, *_) = observed.named(instrumentation.CHECK_WRONG_LISTENER)
    assert (world.group, [bills]) == (fields["group"], fields["topics"])
    checker.stop()
    theirs = Answers(COMMIT)
    theirs.topics = [bills]
    world.sweep(world.timed_checker([listener, theirs]))
    assert [b"bill"] == world.bodies(bills)


def test_d11_a_restarted_producer_that_sent_nothing_is_asked(world):
    """The service that left the half is gone; its successor answers without having sent anything."""
    topic = world.topic()
    first = world.timed_producer(Answers(local=UNKNOWN))
    first.send_message_in_transaction(Message(topic, b"body"))
    first.close()
    successor = Answers(COMMIT)
    world.timed_producer(successor)
    world.pass_time(15, world.timed_checker(successor))
    assert [b"body"] == world.bodies(topic)


@pytest.mark.parametrize("offset_s", [3_600.0, -3_600.0], ids=["an hour ahead", "an hour behind"])
def test_d12_a_producers_wrong_clock_changes_no_check(world, timed, skewed, offset_s):
    """The first check comes after the immunity, neither earlier nor never, whatever the producer's wall says."""
    topic = world.topic()
    listener = timed(world, COMMIT)
    checker = world.timed_checker(listener)
    checker.run_once()
    world.half(Message(topic, b"body"), clock=skewed(world, offset_s))
    checker.run_once()
    began_s = world.now_s
    world.pass_time(20, checker, step_s=0.5)
    ((_, moment),) = listener.times
    assert 5.9 <= moment - began_s < 8
    assert [b"body"] == world.bodies(topic)


def test_d13_another_connection_or_process_ends_the_half(sqlite):
    """A handle works on another connection and in another process; each message is delivered once."""
    topic = sqlite.topic()
    transactions = []
    for number in range(2):
        transaction = sqlite.producer().begin()
        transaction.publish(Message(topic, b"%d" % number))
        transaction.prepare()
        transactions.append(transaction)
    other = TransactionProducer(sqlite.open(), sqlite.group)
    assert EndState.ACCEPTED is other.attach(transactions[0].handle()).commit().state
    assert EndState.ACCEPTED is _in_another_process(sqlite, transactions[1].handle())
    assert [b"0", b"1"] == sorted(sqlite.bodies(topic))


@pytest.mark.parametrize(
    ("start", "key"),
    [
        (lambda: CheckPolicy(immunity_s="6s"), "immunity_s"),
        (lambda: CheckPolicy(interval_s=0), "interval_s"),
        (lambda: CheckPolicy(check_max=1.5), "check_max"),
        (lambda: CheckPolicy(immunity_ms=6_000), "immunity_ms"),
        (lambda: Limits(poll_s="5ms"), "poll_s"),
        (lambda: Limits(retry_max_s=-1), "retry_max_s"),
        (lambda: Limits(batch_count_max=0), "batch_count_max"),
        (lambda: Limits(poll_ms=5), "poll_ms"),
        (lambda: connect("memory://d14?profil=strong"), "profil"),
        (lambda: connect("memory://d14?auto_create=perhaps"), "auto_create"),
        (lambda: connect("sqlite:///never-made.db?lease=1"), "lease"),
        (lambda: connect("sqlite:///never-made.db?lease_s=5ms"), "lease_s"),
        (lambda: connect("sqlite:///never-made.db?lease_s=1&lease_s=2"), "lease_s"),
        (lambda: connect("sqlite:///never-made.db?body_size_max=1MB"), "body_size_max"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_d14_a_wrong_setting_stops_the_start_and_is_named(start, key):
    """An unknown key or a wrong unit fails at once with the key's name."""
    with pytest.raises((ConfigError, TypeError), match=key) as raised:
        start()
    if isinstance(raised.value, ConfigError):
        assert key == raised.value.key


def test_d15_binary_body_survives_fifteen_rounds(world):
    """Compressed bytes that are asked about fifteen times arrive unchanged."""
    topic = world.topic()
    body = zlib.compress(bytes(range(256)) * 99)
    world.half(Message(topic, body, b"\x00\xff", {"raw": b"\xfe"}))
    listener = Answers(lambda: UNKNOWN if len(listener.asked) <= 15 else COMMIT)
    world.pass_time(600, world.timed_checker(listener, check_max=20), step_s=15)
    (delivered,) = world.delivered(topic)
    assert (body, b"\x00\xff", b"\xfe") == (delivered.body, delivered.key, delivered.headers["raw"])
    assert 16 == len(listener.asked)


def test_d16_a_discarded_half_is_listed_and_resumed_once(world):
    """Resume and COMMIT deliver once; a second resume finds it pending and delivers no second time."""
    topic = world.topic()
    identity = world.half(Message(topic, b"body")).transaction_id
    listener = Answers(UNKNOWN)
    checker = world.timed_checker(listener, check_max=2)
    world.pass_time(100, checker, step_s=10)
    operator = world.operator()
    assert [identity] == [parked.transaction_id for parked in operator.parked()]
    operator.resume(identity, "the database was restored")
    with pytest.raises(TransactionStateError):
        operator.resume(identity, "once more")
    listener.answer = COMMIT
    world.pass_time(10, checker)
    world.history.at_rest = True
    assert [b"body"] == world.bodies(topic)
    assert ([], []) == (operator.parked(), operator.pending())


def test_d17_an_overload_of_ends_holds_new_halfs_back(strong):
    """While ends are stuck the producer refuses new halfs with BusyError; afterwards every reported commit is there."""
    topic = strong.topic()
    producer = strong.timed_producer(unsettled_max=4, busy_timeout_s=0.05)
    transactions = []
    for number in range(4):
        transaction = producer.begin()
        transaction.publish(Message(topic, b"%d" % number))
        transaction.prepare()
        transactions.append(transaction)
    waiting = producer.begin()
    waiting.publish(Message(topic, b"waiting"))
    results = []
    backend, may_go = strong.backend, threading.Event()
    release = backend.release

    def stuck(batch, claim=None):
        assert may_go.wait(strong.timeout_s)
        release(batch, claim)

    backend.release = stuck
    threads = [threading.Thread(target=lambda each=each: results.append(each.commit())) for each in transactions]
    for thread in threads:
        thread.start()
    strong.until(lambda: producer._slots._value == 0)
    with pytest.raises(BusyError):
        waiting.prepare()
    may_go.set()
    for thread in threads:
        thread.join(strong.timeout_s)
    backend.release = release
    assert [EndState.ACCEPTED] * 4 == [result.state for result in results]
    assert [b"0", b"1", b"2", b"3"] == sorted(strong.bodies(topic))


def test_d18_a_half_near_retention_is_carried_forward(plain):
    """Long before retention takes it, a copy with the same id is appended; it is decided once."""
    topic = plain.topic()
    identity = plain.half(Message(topic, b"body")).transaction_id
    listener = Answers(UNKNOWN)
    checker = plain.timed_checker(listener, check_max=1_000)
    plain.pass_time(1_500, checker, step_s=20)
    journey = plain.journey(identity)
    partition = journey.partition
    assert {(identity, 0)} == {(half.transaction_id, half.generation) for half in journey.halves}
    assert journey.half.count > 0
    plain.history.unjudged = "retention took the first copies"
    listener.answer = COMMIT
    plain.pass_time(40, checker, step_s=10)
    assert [b"body"] == plain.bodies(topic)
    finals = [op.kind for op in raw.ops(plain, partition=partition) if op.kind in {OpKind.COMMIT, OpKind.ROLLBACK}]
    assert [OpKind.COMMIT] == finals


def test_d19_an_end_for_a_foreign_or_unknown_id_is_never_delivered(plain):
    """A handle of another group is refused; an op without a half is reported by the checker."""
    topic = plain.topic()
    transaction = plain.half(Message(topic, b"theirs"))
    other = TransactionProducer(plain.backend, f"{plain.group}-other")
    with pytest.raises(UsageError, match=plain.group):
        other.attach(transaction.handle())
    stray = raw.half(plain, topic, body=b"stray")
    raw.release(plain, raw.rollback(stray))
    observed = Observed()
    checker = plain.timed_checker(Answers(ROLLBACK), plugins=[observed])
    plain.pass_time(120, checker, step_s=5)
    assert 1 == sum(fields["count"] for fields in observed.named(instrumentation.OP_WITHOUT_HALF))
    assert [] == plain.bodies(topic)
    plain.history.unjudged = "the op without a half is made on purpose"


@pytest.mark.parametrize("header", ["x-delay", "Delay", "X-Delay-Ms", "__STARTDELIVERTIME", "Nats-Schedule"])
def test_d20_a_message_that_asks_for_delay_is_refused_by_name(strong, header):
    """Nothing runs and nothing is stripped: the header is named; there is no option for delay either."""
    listener = Answers(local=COMMIT)
    producer = strong.timed_producer(listener)
    with pytest.raises(MessageRejectedError, match=header):
        producer.send_message_in_transaction(Message(strong.topic(), b"", None, {header: "5000"}))
    with pytest.raises(TypeError, match="delay_s"):
        Message("topic", b"", delay_s=5)
    assert ([], []) == (listener.executed, strong.operator().pending())
