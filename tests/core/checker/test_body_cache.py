"""Bodies of halves: a waiting half holds none, the newest ones are cached, and the others are read again."""

from __future__ import annotations

import random
import tracemalloc
from types import SimpleNamespace

import pytest

from txcore import Checker, CheckPolicy, LocalTransactionState, Message, TransactionListener, TransactionProducer, wire
from txcore.checker.body_cache import ENTRY_BYTES, Bodies
from txcore.checker.context import CheckContext
from txcore.checker.limits import Limits
from txcore.checker.log_reader import LogReader
from txcore.checker.tenure import Tenure
from txcore.errors import BackendUnavailableError
from txcore.ids import IdFactory
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.memory.reading import MemoryReader
from txcore.records import Half, LogKind, LogRecord, TargetMessage
from txcore.runtime.instrumentation import Reporter

STATE = LocalTransactionState


class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return STATE.UNKNOWN

    def check_local_transaction(self, half):
        return STATE.COMMIT


@pytest.fixture
def fetches(monkeypatch):
    """The positions of every request to read halves again."""
    asked = []
    fetch = MemoryReader.fetch

    def counted(self, positions):
        asked.append(list(positions))
        return fetch(self, positions)

    monkeypatch.setattr(MemoryReader, "fetch", counted)
    return asked


def waiting(clock, count, body=b"x"):
    broker = MemoryBroker(clock=clock)
    backend = MemoryBackend(broker)
    producer = TransactionProducer(
        backend, "g", listener=Listener(), clock=clock, partition_count=1, policy=CheckPolicy(immunity_s=10)
    )
    producer.send_many([(Message("t", body), None)] * count)
    return broker, backend


def check(backend, clock, limits, runs=2):
    clock.advance(20)
    checker = Checker(backend, "g", listener=Listener(), clock=clock, limits=limits)
    for _ in range(runs):
        checker.run_once()
    checker.stop()


class TestBodies:
    def test_the_newest_are_kept(self):
        """Older bodies make room for newer ones."""
        bodies = Bodies(2 * (ENTRY_BYTES + 10))
        for position in range(3):
            bodies.keep((0, position), bytes([position]) * 10)
        assert [None, b"\1" * 10, b"\2" * 10] == [bodies.get((0, position)) for position in range(3)]

    def test_a_place_is_kept_once(self):
        """A body that is read again takes no more room."""
        bodies = Bodies(2 * (ENTRY_BYTES + 10))
        for _ in range(9):
            bodies.keep((0, 1), b"x" * 10)
        bodies.keep((1, 1), b"y" * 10)
        assert (b"x" * 10, b"y" * 10) == (bodies.get((0, 1)), bodies.get((1, 1)))

    def test_what_is_larger_than_all_room_is_not_kept(self):
        """A body that is larger than all room displaces no other."""
        bodies = Bodies(ENTRY_BYTES + 10)
        bodies.keep((0, 1), b"x" * 10)
        bodies.keep((0, 2), b"y" * 11)
        assert (b"x" * 10, None) == (bodies.get((0, 1)), bodies.get((0, 2)))


class TestReadingAgain:
    def test_halves_due_together_are_read_again_in_one_request(self, running_clock, fetches):
        """Halves that are due together are read again in one request to the broker."""
        broker, backend = waiting(running_clock, 50)
        check(backend, running_clock, Limits(body_bytes_max=1))
        assert 50 == len(fetches[0])
        assert 50 == len(broker.topics["t"])

    def test_what_was_read_lately_is_not_read_again(self, running_clock, fetches):
        """A body that fits into the room is kept and not read again."""
        broker, backend = waiting(running_clock, 50)
        check(backend, running_clock, Limits())
        assert ([], 50) == (fetches, len(broker.topics["t"]))

    def test_a_log_that_cannot_be_read_puts_all_of_them_back(self, running_clock, monkeypatch):
        """When the log cannot be read, the due halves count no check and are tried again."""
        broker, backend = waiting(running_clock, 50)
        fetch = MemoryReader.fetch

        def broken(self, positions):
            monkeypatch.setattr(MemoryReader, "fetch", fetch)
            raise BackendUnavailableError("not now")

        monkeypatch.setattr(MemoryReader, "fetch", broken)
        check(backend, running_clock, Limits(body_bytes_max=1, retry_s=0.001), runs=4)
        assert 50 == len(broker.topics["t"])

    def test_another_half_at_a_known_position_is_not_taken_for_it(self, running_clock, monkeypatch):
        """A half's messages are not delivered when its known position holds another half's record."""
        broker, backend = waiting(running_clock, 2)
        fetch = MemoryReader.fetch

        def other(self, positions):
            first = broker.log("g", LogKind.HALF, 0)[0]
            future = fetch(self, positions)
            for record in future.result().values():
                record.body = first.body
            return future

        monkeypatch.setattr(MemoryReader, "fetch", other)
        check(backend, running_clock, Limits(body_bytes_max=1))
        assert 1 == len(broker.topics["t"])


class Log:
    """An endless half log that makes its records while it is read."""

    def __init__(self, size):
        self.clock = SimpleNamespace(elapsed_s=lambda: 1.0, wall_ms=lambda: 1_000)
        self.ids = IdFactory(self.clock, random.Random(1))
        self.position = 0
        self.body = b"x" * size

    def read(self, count_max):
        records = []
        for _ in range(count_max):
            self.position += 1
            messages = [TargetMessage("t", None, self.body, {})]
            half = Half(1, self.ids.new(), "g", 0, 0, 0, 6_000, 0, 0, fenced=False, by="p", messages=messages)
            records.append(LogRecord(self.position, wire.encode_half(half), 1_700_000_000_000 + self.position))
        return records


@pytest.mark.parametrize("size", [300, 20_000])
def test_a_waiting_half_costs_few_bytes_whatever_its_body(size):
    """A waiting half costs at most 600 bytes, besides the room for the bodies that were read lately."""
    log, count, room = Log(size), 4_000, 100_000
    capabilities = SimpleNamespace(server_time=True, clock_skew_max_s=0.0)
    backend = SimpleNamespace(capabilities=capabilities, read=lambda *_: log)
    context = CheckContext(
        backend=backend,
        group="g",
        clock=log.clock,
        randomness=random.Random(1),
        claim=None,
        policy=CheckPolicy(),
        limits=Limits(body_bytes_max=room),
        report=Reporter("test"),
        by="c",
    )
    logs = LogReader(tenure := Tenure(context, 0), None)
    logs.read_halves()  # allocates what is allocated only once
    tracemalloc.start()
    try:
        for _ in range(count // 1_000):
            logs.read_halves()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 5_000 == tenure.state.pending_count
    assert taken - room < 600 * count
