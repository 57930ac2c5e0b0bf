"""Many callers and many processes at one file: waiting for the lock, sharing transactions, dying in the middle."""

from __future__ import annotations

import contextlib
import queue
import re
import sqlite3
import threading
import time
from collections import Counter
from functools import partial

import pytest
from txcore_sqlite import store, writer
from txcore_sqlite.consumer import read_topic

from txcore import wire
from txcore.errors import BackendTimeoutError, BusyError, OutcomeUnknownError
from txcore.records import LogKind, OpKind, Status


def test_callers_that_wait_share_one_transaction(kit, opened, clock):
    """Batches queued while the lock is held are committed in at most two transactions, as their times show."""
    clock.tick_ms = 1
    backend = opened(clock=clock, busy_timeout_s=20.0)
    with kit.lock():
        batches = [kit.Recorder([kit.half(), kit.half()]) for _ in range(20)]
        for batch in batches:
            backend.append_halves(batch)
    for batch in batches:
        batch.wait()
    records = kit.log(backend, LogKind.HALF)
    assert len(records) == 40
    assert 1 <= len({record.appended_ms for record in records}) <= 2


def test_a_caller_that_a_signal_interrupts_keeps_no_lock(kit, opened, monkeypatch):
    """A caller is interrupted when it wakes the writer; its work is committed with that of the next caller."""
    backend = opened()
    with monkeypatch.context() as patched:
        patched.setattr(backend._writer._queue.not_empty, "notify", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.append_halves(kit.Recorder([kit.half()]))
    batch = kit.Recorder([kit.half()])
    backend.append_halves(batch)
    batch.wait()
    assert len(kit.log(backend, LogKind.HALF)) == 2


def interrupted(*_):
    raise KeyboardInterrupt


def test_callers_that_shared_a_transaction_share_the_next_one(kit, opened, clock, monkeypatch):
    """The first caller to return waits for the second, and for no other; a single caller does not wait long."""
    clock.tick_ms = 1
    backend = opened(clock=clock)
    kit.append(backend, kit.half())
    backend._writer._last_size = 2
    with monkeypatch.context() as patient:
        patient.setattr(writer, "COMPANY_S", 60.0)
        batches = [kit.Recorder([kit.half()]), kit.Recorder([kit.half()])]
        for batch in batches:
            backend.append_halves(batch)
        for batch in batches:
            batch.wait()
    assert len({record.appended_ms for record in kit.log(backend, LogKind.HALF)[1:]}) == 1
    for _ in range(3):
        assert kit.append(backend, kit.half())[0].status is Status.DURABLE


def test_the_writer_never_waits_longer_for_company_than_it_means_to(opened):
    """The writer's queue ends a wait whose timeout is over before the wait begins, as on a busy machine."""
    waiting = type(opened()._writer._queue)()  # another queue of the same type: the writer reads its own one

    def wait():
        for _ in range(60_000):
            waiting.put(None)
            waiting.get_nowait()
            with contextlib.suppress(queue.Empty):
                waiting.get(timeout=3e-6)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_small_transaction_has_few_statements(kit, opened):
    """The writer inserts with one statement for each table: each statement gives up the interpreter lock."""
    backend = opened()
    halves = [kit.half() for _ in range(13)]
    kit.append(backend, *halves)
    kit.release(backend, kit.end(kit.half()))
    statements = []
    backend._writer._connection.set_trace_callback(statements.append)
    kit.append(backend, *[kit.half() for _ in range(13)])
    kit.release(backend, *[kit.end(half) for half in halves])
    tables = Counter(re.search(r"INTO (\w+)", each)[1] for each in statements if each.startswith("INSERT"))
    assert {name: tables[name] for name in tables if name != "log"} == dict.fromkeys(
        ("half", "resolved", "target", "op"), 1
    )


def test_a_lock_that_stays_taken_refuses(kit, opened):
    """A transaction that cannot begin within busy_timeout_s is certainly not stored; later transactions are stored."""
    backend = opened(busy_timeout_s=0.1)
    half = kit.half()
    with kit.lock():
        (appended,) = kit.append(backend, half)
        (released,) = kit.release(backend, kit.end(half))
        mark = kit.mark(backend, OpKind.TICK, b"")
        with pytest.raises(BusyError):
            backend.ensure_group("another").result(5)
    for outcome in (appended, released, mark):
        assert outcome.status is Status.REFUSED
        assert isinstance(outcome.error, BusyError)
    assert released.missing == ()
    assert [kit.log(backend, kind) for kind in (LogKind.HALF, LogKind.OP)] == [[], []]
    assert kit.append(backend, half)[0].status is Status.DURABLE


def test_each_item_waits_for_the_lock_as_long_as_it_may(kit, opened, clock):
    """Only the oldest caller is refused after its timeout; a younger one is stored after the lock is released."""
    clock.elapsed_s = lambda: clock.now_ms / 1000
    backend = opened(clock=clock, busy_timeout_s=60)
    old, young = kit.Recorder([kit.half()]), kit.Recorder([kit.half()])
    with kit.lock():
        first = kit.Recorder([kit.half()])
        backend.append_halves(first)
        clock.now_ms += 50_000
        backend.append_halves(old)
        clock.now_ms += 20_000
        assert first.wait()[0].status is Status.REFUSED
        backend.append_halves(young)
        clock.now_ms += 45_000
        assert old.wait()[0].status is Status.REFUSED
        assert young.outcomes == [None]
    assert young.wait()[0].status is Status.DURABLE


def test_one_impossible_batch_does_not_hurt_those_beside_it(kit, opened):
    """A batch that cannot be turned into rows is refused; other batches of its transaction are stored."""
    backend = opened(busy_timeout_s=20.0)
    impossible = kit.half()
    impossible.body = 17
    batches = [kit.Recorder([kit.half()]), kit.Recorder([impossible]), kit.Recorder([kit.half()])]
    with kit.lock():
        for batch in batches:
            backend.append_halves(batch)
    statuses = [batch.wait()[0].status for batch in batches]
    assert statuses == [Status.DURABLE, Status.REFUSED, Status.DURABLE]
    assert len(kit.log(backend, LogKind.HALF)) == 2


class FailingConnection(sqlite3.Connection):
    """A connection whose next COMMITs fail with the given codes, or wait for an event before they continue."""

    codes: list
    gate: threading.Event | None

    def execute(self, statement, *parameters):
        if statement == "COMMIT":
            if self.codes:
                error = sqlite3.OperationalError("as set by the test")
                error.sqlite_errorcode = self.codes.pop()
                raise error
            if self.gate is not None:
                self.gate.wait(20)
        return super().execute(statement, *parameters)


@pytest.fixture
def failing(monkeypatch):
    connection = type("Connection", (FailingConnection,), {"codes": [], "gate": None})
    monkeypatch.setattr(store.sqlite3, "connect", partial(sqlite3.connect, factory=connection))
    return connection


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, Status.UNKNOWN),
        (sqlite3.SQLITE_IOERR, Status.UNKNOWN),
        (sqlite3.SQLITE_FULL, Status.REFUSED),
        (sqlite3.SQLITE_BUSY, Status.REFUSED),
    ],
)
def test_a_failed_commit_is_unknown_unless_it_is_certain(kit, opened, failing, code, status):
    """A COMMIT that failed while syncing is UNKNOWN; one without room or lock is REFUSED. The writer continues."""
    backend = opened()
    half = kit.half(topics=("a", "b"))
    failing.codes.append(code)
    (appended,) = kit.append(backend, half)
    failing.codes.append(code)
    (released,) = kit.release(backend, kit.end(half))
    assert (status, status) == (appended.status, released.status)
    assert ((0, 1) if status is Status.UNKNOWN else ()) == released.missing
    assert isinstance(appended.error, OutcomeUnknownError) == (status is Status.UNKNOWN)
    assert kit.append(backend, half)[0].status is Status.DURABLE
    assert kit.release(backend, kit.end(half))[0].status is Status.DURABLE


def test_close_is_bounded_and_settles_everything(kit, opened, failing):
    """While a COMMIT hangs, close returns in time: the item under way is UNKNOWN, items that wait are REFUSED."""
    backend = opened()
    gate = failing.gate = threading.Event()
    under_way, waiting = kit.Recorder([kit.half()]), kit.Recorder([kit.half()])
    backend.append_halves(under_way)
    kit.until(lambda: backend._writer._flight)
    backend.append_halves(waiting)
    began_s = time.monotonic()
    backend.close(0.2).result(10)
    assert time.monotonic() - began_s < 5
    (unknown,) = under_way.wait(0)
    assert unknown.status is Status.UNKNOWN
    assert isinstance(unknown.error, BackendTimeoutError)
    assert waiting.wait(0)[0].status is Status.REFUSED
    gate.set()
    backend._writer._thread.join(20)
    assert under_way.outcomes == [unknown]


def test_threads_share_a_backend(kit, backend):
    """Many threads that share a backend get DURABLE for every item, and all ops and targets are stored."""
    halves = [[kit.half(partition=number % 4) for _ in range(25)] for number in range(16)]

    def work(mine):
        for half in mine:
            assert kit.append(backend, half)[0].status is Status.DURABLE
            assert kit.release(backend, kit.end(half))[0].status is Status.DURABLE

    threads = [threading.Thread(target=work, args=(mine,)) for mine in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [len(kit.ops(backend, partition)) for partition in range(4)] == [100] * 4
    assert len(read_topic(kit.path, "created")) == 400


def test_processes_share_a_file(kit, backend):
    """Several processes write at once; no record is lost, stored twice, or out of order in its log."""
    children = [kit.child("batches", kit.path, number) for number in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    for number in range(3):
        ids = [wire.decode_half(record.body).transaction_id for record in kit.log(backend, LogKind.HALF, number)]
        assert len(ids) == 300
        assert sorted(ids) == sorted(identity for _, identity in kit.ops(backend, number))
        expected = {f"{wire.id_text(identity)}:0" for identity in ids}
        assert expected == {received.headers["txcore-id"] for received in read_topic(kit.path, f"topic{number}")}
    positions = [received.position for received in read_topic(kit.path, "shared")]
    assert len(positions) == 900
    assert sorted(set(positions)) == positions


def test_processes_that_disagree_get_one_decision(kit, backend):
    """Two processes end the same halves in opposite ways: each half has one end, and targets only if it is COMMIT."""
    kit.append(backend, *[kit.half() for _ in range(100)])
    children = [kit.child("contest", kit.path, kind) for kind in ("COMMIT", "ROLLBACK")]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    wins = [int(child.communicate(timeout=60)[0]) for child in children]
    ends = Counter(kind for kind, _ in kit.ops(backend))
    assert sum(wins) == 100
    assert wins == [ends[OpKind.COMMIT], ends[OpKind.ROLLBACK]]
    assert len({identity for _, identity in kit.ops(backend)}) == 100
    assert len(read_topic(kit.path, "created")) == ends[OpKind.COMMIT]


@pytest.mark.parametrize("count", [20, 200])
def test_a_killed_writer_leaves_all_it_reported_and_no_part_of_a_release(kit, opened, count):
    """After kill -9 every transaction reported DURABLE is stored, and each op has its target and each target its op."""
    child = kit.child("stream", kit.path)
    reported = {child.stdout.readline().strip() for _ in range(count)}
    child.kill()
    reported |= {line for line in child.communicate(timeout=20)[0].split("\n") if len(line) == 32}
    backend = opened()
    with kit.lock() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    halves = {wire.decode_half(record.body).transaction_id.hex() for record in kit.log(backend, LogKind.HALF)}
    ended = {identity.hex() for _, identity in kit.ops(backend)}
    delivered = {received.headers["txcore-id"][:36].replace("-", "") for received in read_topic(kit.path, "created")}
    assert count <= len(reported)
    assert reported <= ended <= halves
    assert ended == delivered
    assert kit.append(backend, kit.half())[0].status is Status.DURABLE


def test_a_forked_child_must_open_its_own(kit):
    """A backend that was started before a fork refuses calls in the child, and still works in the parent."""
    child = kit.child("fork", kit.path)
    output = child.communicate(timeout=30)[0].split("\n")
    assert "child: this sqlite backend was opened before a fork; open another one in the child" in output
    assert {"own: durable", "parent: durable"} <= set(output)
    assert child.returncode == 0
