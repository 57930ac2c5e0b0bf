"""The shared parts of this folder's tests: files, backends, halves, batches, a clock, a second process."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from txcore_conformance.children import Children
from txcore_sqlite import Options, SqliteBackend

from txcore import wire
from txcore.clock import SystemClock
from txcore.ids import IdFactory
from txcore.port import SettlesEach
from txcore.records import Half, HalfRecord, LogKind, Op, OpKind, Resolution, TargetMessage

GROUP = "orders"


class Recorder(SettlesEach):
    """A batch that keeps each item's outcome and refuses a second one."""

    def __init__(self, items):
        self.items = items
        self.outcomes = [None] * len(items)
        self._left = len(items)
        self._done = threading.Event()
        self._lock = threading.Lock()

    def settle(self, index, outcome):
        with self._lock:
            assert self.outcomes[index] is None, "settled twice"
            self.outcomes[index] = outcome
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def wait(self, timeout_s=20.0):
        assert self._done.wait(timeout_s), f"{self._left} items were never settled"
        return self.outcomes


class FakeClock:
    """A wall clock that a test sets; the elapsed time is the machine's own."""

    def __init__(self):
        self.now_ms = 1_000_000
        self.tick_ms = 0

    def wall_ms(self):
        self.now_ms += self.tick_ms
        return self.now_ms

    def elapsed_s(self):
        return time.monotonic()

    def boot_id(self):
        return "test"


class Kit:
    """Makes records and sends them."""

    GROUP = GROUP
    Recorder = Recorder

    def __init__(self, path):
        self.path = path
        self.children = Children(Path(__file__).with_name("child.py"))
        self.child = self.children.start
        self._ids = IdFactory(SystemClock(), random.Random(7))

    def half(self, *, topics=("created",), body=b"payload", partition=0, generation=0, key=b"k", headers=None, of=None):
        identity = of.transaction_id if of else self._ids.new()
        messages = [TargetMessage(topic, key, body, dict(headers or {})) for topic in topics]
        half = Half(1, identity, GROUP, partition, generation, 5, 6000, 0, 0, False, "producer", messages)
        return HalfRecord(GROUP, partition, identity, generation, wire.encode_half(half), messages)

    def op(self, half, kind, *, generation=None, token=b""):
        return Op(kind, half.transaction_id, half.generation if generation is None else generation, "by", 5, token)

    def end(self, half, kind=OpKind.COMMIT, *, token=b"", generation=None, parked=b""):
        targets = range(len(half.messages)) if kind is OpKind.COMMIT else ()
        return Resolution(half, self.op(half, kind, generation=generation, token=token), targets, parked, "by")

    def append(self, backend, *halves):
        batch = Recorder(halves)
        backend.append_halves(batch)
        return batch.wait()

    def release(self, backend, *resolutions, claim=None):
        batch = Recorder(resolutions)
        backend.release(batch, claim)
        return batch.wait()

    def mark(self, backend, kind, token, *, partition=0, claim=None):
        op = Op(kind, self._ids.new(), 0, "checker", 5, token)
        return backend.mark(GROUP, partition, op, claim).result(20)

    def log(self, backend, kind, partition=0):
        reader = backend.read(GROUP, kind, partition)
        records = []
        while batch := reader.read(100):
            records += batch
        reader.close()
        return records

    def ops(self, backend, partition=0):
        return [
            (OpKind(op.kind), op.transaction_id)
            for record in self.log(backend, LogKind.OP, partition)
            for op in wire.decode_ops(record.body)
        ]

    def lock(self):
        """Return a connection that holds the file's write lock until it is closed."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10)
        connection.execute("BEGIN IMMEDIATE")
        return closing(connection)

    @staticmethod
    def until(condition, timeout_s=20.0):
        """Return the first true value of *condition*."""
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while True:
            value = condition()
            if value:
                return value
            assert time.monotonic() < deadline, "the condition did not come true in time"
            pause.wait(0.005)


@pytest.fixture
def kit(tmp_path):
    kit = Kit(tmp_path / "broker.db")
    yield kit
    kit.children.reap()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def opened(kit):
    """Open backends on the test's file, and close them at the end of the test."""
    backends = []

    def opened(*, clock=None, **options):
        backend = SqliteBackend(kit.path, Options(**options), clock=clock)
        backends.append(backend)
        backend.ensure_group(GROUP, 4).result(20)
        return backend

    yield opened
    for backend in backends:
        backend.close(5).result(20)


@pytest.fixture
def backend(opened):
    return opened()
