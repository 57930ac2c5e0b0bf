"""Scenarios D11 to D20; see `test_scenarios`."""

from __future__ import annotations

import threading
import zlib

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Observed

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
)
from txcore.records import OpKind
from txcore.runtime import instrumentation


def test_d11_a_restarted_producer_that_sent_nothing_is_asked(world):
    """A successor of the service that left the half is asked about it, although it has sent no message itself."""
    topic = world.topic()
    first = world.timed_producer(Answers(local=UNKNOWN))
    first.send_message_in_transaction(Message(topic, b"body"))
    first.close()
    successor = Answers(COMMIT)
    world.timed_producer(successor)
    world.pass_time(15, world.timed_checker(successor))
    assert [b"body"] == world.bodies(topic)


@pytest.mark.parametrize("offset_s", [3_600.0, -3_600.0], ids=["an hour ahead", "an hour late"])
def test_d12_a_producers_wrong_clock_changes_no_check(world, timed, skewed, offset_s):
    """The first check comes soon after the immunity, whatever wall time the producer has."""
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


def test_d13_another_connection_or_process_ends_the_half(sqlite, in_another_process):
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
    assert EndState.ACCEPTED is in_another_process(sqlite, transactions[1].handle())
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
    """A resumed half is delivered once; a second resume is refused, because the half is pending."""
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


def test_d17_an_overload_of_ends_holds_new_halves_back(strong):
    """While ends are stuck, new halves are refused with BusyError; later each reported commit is delivered."""
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
    strong.until(lambda: not producer._places._free)
    with pytest.raises(BusyError):
        waiting.prepare()
    may_go.set()
    for thread in threads:
        thread.join(strong.timeout_s)
    backend.release = release
    assert [EndState.ACCEPTED] * 4 == [result.state for result in results]
    assert [b"0", b"1", b"2", b"3"] == sorted(strong.bodies(topic))


def test_d18_a_half_near_retention_is_carried_forward(plain):
    """A half is carried forward under its own id long before retention takes it, and is decided once."""
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
    """A message with a delay header is refused by the header's name, and so is a delay that no table could hold."""
    listener = Answers(local=COMMIT)
    producer = strong.timed_producer(listener)
    with pytest.raises(MessageRejectedError, match=header):
        producer.send_message_in_transaction(Message(strong.topic(), b"", None, {header: "5000"}))
    with pytest.raises(MessageRejectedError, match="delay_s"):
        producer.send_message_in_transaction(Message(strong.topic(), b"", delay_s=5))
    assert ([], []) == (listener.executed, strong.operator().pending())
