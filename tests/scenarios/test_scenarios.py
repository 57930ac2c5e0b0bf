"""The scenarios from other systems with transactional messages: D1 to D10, one test or more for each."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, FAST, ROLLBACK, UNKNOWN, Answers, Observed

from txcore import CheckPolicy, EndState, Message, wire
from txcore.memory import Fate, Faults
from txcore.records import OpKind
from txcore.runtime import instrumentation


def _ids(kit, topic):
    return [delivered.headers[wire.HEADER_ID] for delivered in kit.delivered(topic)]


def test_d01_same_commit_twice_delivers_once(world):
    """A second commit is ALREADY_DONE; by a handle it delivers no copy, or one with the same id."""
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


def test_d01_same_commit_in_two_processes_delivers_once(sqlite, in_another_process):
    """On a store with unique resolutions the other process gets ALREADY_DONE."""
    topic = sqlite.topic()
    transaction = sqlite.producer().begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    handle = transaction.handle()
    assert EndState.ACCEPTED is transaction.commit().state
    assert EndState.ALREADY_DONE is in_another_process(sqlite, handle)
    assert [b"body"] == sqlite.bodies(topic)


@pytest.mark.parametrize("answer", [ROLLBACK, COMMIT])
def test_d02_late_end_against_the_check_is_refused(world, answer):
    """An end after the check's decision is CONFLICT where the store refuses before delivery, else TOO_LATE."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    world.pass_time(15, world.timed_checker(Answers(answer)))
    late = transaction.commit() if answer is ROLLBACK else transaction.rollback()
    store_refuses = world.promises.resolution_is_unique and world.promises.atomic_release
    assert (EndState.CONFLICT if store_refuses else EndState.TOO_LATE) is late.state
    assert ([b"body"] if answer is COMMIT else []) == world.bodies(topic)
    assert OpKind[answer.value] == world.journey(transaction.transaction_id).final


def test_d02_a_contradicting_op_is_reported(plain):
    """Where the store cannot refuse a second end, the first one holds and the checker raises an alert."""
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
    """A half that commits after an UNKNOWN check is delivered once, with at most one further check."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    listener = timed(world, UNKNOWN)
    checker = world.timed_checker(listener)
    world.pass_time(8, checker)
    assert 1 == len(listener.times)
    listener.answer = COMMIT  # The local transaction commits now, and its producer reports it.
    promises = world.promises
    is_arbitrated = promises.atomic_release and promises.resolution_is_unique
    assert (EndState.ACCEPTED if is_arbitrated else EndState.TOO_LATE) is transaction.commit().state
    world.pass_time(5, checker)
    assert [b"body"] == world.bodies(topic)
    assert len(listener.times) <= 2
    world.pass_time(200, checker, step_s=10)
    assert len(listener.times) <= 2
    world.history.committed(transaction.transaction_id)


def test_d04_crash_between_target_and_op_is_one_logical_message(world):
    """If the op is lost, the checker publishes again under the same id, or the store did both or neither."""

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
    """While no service answers, no check is counted and the half is not discarded; later it is delivered."""
    topic = world.topic()
    transaction = world.half(Message(topic, b"body"))
    listener = Answers(ConnectionError("no server there"))
    checker = world.timed_checker(listener, check_max=3)
    world.pass_time(10 * 3 * 30, checker, step_s=15)
    assert len(listener.asked) > 3
    assert ([], []) == (world.journey(transaction.transaction_id).ops, world.operator().parked())
    listener.answer = COMMIT
    world.pass_time(70, checker, step_s=10)
    assert [b"body"] == world.bodies(topic)


def test_d06_immunity_and_count_are_kept(world, timed):
    """With an immunity of 600 s and 3 checks, the first check is after 600 s, and the third one parks the half."""
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
    """While one half stays UNKNOWN for an hour, the others are asked about as soon as their immunity is over."""
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
    """While the handler fails for one half in each round, all others are delivered in the first round."""
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
    """A None, an exception or silence counts no check, and the pauses between the questions grow."""
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
    """A listener is not asked about a topic that it did not declare, and the half is neither counted nor discarded."""
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
