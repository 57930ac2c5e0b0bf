"""L4: a restarted checker reads in proportion to the undecided halves and `replay_max`, not to the log."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from txcore import (
    AsyncTransactionListener,
    Checker,
    CheckPolicy,
    HalfView,
    Limits,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)
from txcore.memory import KAFKA_LIKE, MemoryBackend, MemoryBroker
from txcore.records import LogKind

STATE = LocalTransactionState


class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return arg

    def check_local_transaction(self, half):
        return STATE.UNKNOWN


def made(clock, count, pending_every):
    broker = MemoryBroker(clock=clock)
    backend = MemoryBackend(broker)
    producer = TransactionProducer(
        backend, "g", listener=Listener(), clock=clock, partition_count=1, policy=CheckPolicy(immunity_s=10_000)
    )
    states = [STATE.UNKNOWN if i % pending_every == 0 else STATE.COMMIT for i in range(count)]
    producer.send_many([(Message("t", b"x"), state) for state in states])
    return broker, backend


def replayed(broker):
    """Return how many half records are at or after the stored checkpoint."""
    checkpoint = broker.checkpoints["g", 0]
    return sum(record.position >= checkpoint.half for record in broker.log("g", LogKind.HALF, 0))


def test_replay_is_bounded_by_replay_max_and_not_by_the_log(running_clock):
    """With the oldest of 3,000 halves undecided, a restart reads at most replay_max halves and the carried ones."""
    clock = running_clock
    broker, backend = made(clock, 3_000, 300)
    limits = Limits(replay_max=100, poll_s=0.0005, checkpoint_interval_s=0.0)
    checker = Checker(backend, "g", listener=Listener(), clock=clock, limits=limits)
    checker.run_once()
    checker.run_once()
    assert checker.counts["carried"] >= 9
    assert replayed(broker) <= limits.replay_max + 10
    checker.stop()


def test_a_carried_half_is_not_carried_again_until_its_copy_ages(running_clock):
    """A half is not carried again before its copy ages: distance and retention count from the newest copy."""
    clock = running_clock
    _, backend = made(clock, 1_000, 100)
    limits = Limits(replay_max=50, poll_s=0.0005)
    checker = Checker(backend, "g", listener=Listener(), clock=clock, limits=limits)
    checker.run_once()
    checker.run_once()
    once = checker.counts["carried"]
    for _ in range(5):
        checker.run_once()
    assert once == checker.counts["carried"]
    checker.stop()


def test_a_half_is_carried_before_retention_takes_it(running_clock):
    """A half is carried after half of the retention, so that a checker which is away for a while finds the copy."""
    clock = running_clock
    kept = replace(KAFKA_LIKE.capabilities, half_retention_s=1_000.0)
    backend = MemoryBackend(MemoryBroker(replace(KAFKA_LIKE, capabilities=kept), clock=clock))
    policy = CheckPolicy(immunity_s=10_000)
    producer = TransactionProducer(backend, "g", listener=Listener(), clock=clock, partition_count=1, policy=policy)
    producer.send_message_in_transaction(Message("t", b"x"), STATE.UNKNOWN)
    checker = Checker(backend, "g", listener=Listener(), clock=clock, limits=Limits(poll_s=0.0005))
    for advance_s, carried in ((400, 0), (150, 1), (400, 1), (150, 2)):
        clock.advance(advance_s)
        checker.run_once()
        assert carried == checker.counts.get("carried", 0)
    checker.stop()


def test_more_undecided_halves_than_replay_max_are_not_carried_for_ever(running_clock):
    """More undecided halves than `replay_max` are not carried again and again, because a restart reads them anyway."""
    clock = running_clock
    _, backend = made(clock, 300, 1)
    checker = Checker(backend, "g", listener=Listener(), clock=clock, limits=Limits(replay_max=50, poll_s=0.0005))
    for _ in range(5):
        clock.advance(10)
        checker.run_once()
    assert 300 > checker.counts.get("carried", 0)
    checker.stop()


def test_a_checker_awaits_an_asynchronous_listener_on_its_event_loop(running_clock):
    """An asynchronous listener answers checks on the caller's own event loop."""

    class Asynchronous(AsyncTransactionListener):
        async def check_local_transaction(self, half: HalfView):
            await asyncio.sleep(0)
            return STATE.COMMIT

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    clock = running_clock
    broker, backend = made(clock, 3, 1)
    clock.advance(20_000)
    checker = Checker(backend, "g", listener=Asynchronous(), clock=clock, event_loop=loop)
    report = checker.run_once()
    checker.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert (3, 3) == (report.committed, len(broker.topics["t"]))
