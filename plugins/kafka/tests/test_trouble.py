"""A broker that is killed, frozen or absent, a client that dies, a fork: items end in time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
import weakref
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from txcore_conformance import raw
from txcore_conformance.kit import Recorder, error_of
from txcore_kafka.producing import MANY_COUNT

import txcore
from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, OutcomeUnknownError
from txcore.records import Checkpoint, LogKind, OpKind, Position, Status

DURABLE, REFUSED, UNKNOWN = Status.DURABLE, Status.REFUSED, Status.UNKNOWN
NOWHERE = "kafka://127.0.0.1:1"
ALLOWANCE_S = 4.0
"""Time, in seconds, that a busy machine may add to a bound."""


def lasts_s(call):
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s


def kill_client(client):
    """Raise a fatal error inside the driver's client."""
    library = ctypes.CDLL(loaded_librdkafka())
    library.rd_kafka_test_fatal_error.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    handle = ctypes.cast(id(client) + object.__basicsize__, ctypes.POINTER(ctypes.c_void_p)).contents.value
    library.rd_kafka_test_fatal_error(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"as if out of order")


def loaded_librdkafka():
    """Return the file of the library that the driver has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(line.split()[-1] for line in maps if "librdkafka" in line)


class Fenced:
    """An admin client of a broker that was frozen so long that its controller does not assign topics to it yet."""

    def __init__(self, admin):
        self.list_topics = admin.list_topics
        self._admin = admin
        self._is_fenced = True

    def create_topics(self, topics):
        if not self._is_fenced:
            return self._admin.create_topics(topics)
        self._is_fenced = False
        answer = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR)))
        return {topic.topic: answer for topic in topics}


def test_the_harness_waits_for_a_broker_that_is_fenced(kit, monkeypatch):
    """The harness repeats the creation of a topic that a fenced broker refuses at first."""
    monkeypatch.setattr(kit.harness, "_admin", Fenced(kit.admin))
    assert kit.harness.read_topic(kit.topic()) == []


class Leaderless:
    """A consumer whose first questions find no leader, as those to a broker that was just unfenced."""

    def __init__(self, consumer):
        self._consumer = consumer
        self._refusals = [KafkaError._UNKNOWN_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def get_watermark_offsets(self, *args, **kwargs):
        if self._refusals:
            raise KafkaException(KafkaError(self._refusals.pop()))
        return self._consumer.get_watermark_offsets(*args, **kwargs)


def test_the_harness_waits_for_a_leader(kit, topic, monkeypatch):
    """The harness asks for a partition's bounds again while the partition has no leader."""
    make = kit.harness._consumer
    monkeypatch.setattr(kit.harness, "_consumer", lambda isolation: Leaderless(make(isolation)))
    assert kit.harness.read_topic(topic) == []


@pytest.mark.parametrize("client", ["_producer", "_many"])
def test_a_dead_client_is_replaced(kit, topic, client):
    """After a fatal error all items under way are settled, and the backend continues with new clients."""
    backend = kit.backend
    raw.append(kit, raw.half(kit, topic))
    raw.append(kit, *[raw.half(kit, topic) for _ in range(MANY_COUNT)])
    old = getattr(backend._producing, client)
    batch = Recorder([raw.half(kit, topic) for _ in range(500)])
    backend.append_halves(batch)
    kill_client(old)
    assert {outcome.status for outcome in batch.wait(backend, 10.0)} <= {DURABLE, UNKNOWN, REFUSED}
    kit.until(lambda: backend._producing.rebuilt_count, "new clients")
    assert getattr(backend._producing, client) is not old
    half = raw.half(kit, topic)
    kit.until(lambda: raw.statuses(raw.append(kit, half)) == [DURABLE], "the new client")
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    assert half.transaction_id in [each.transaction_id for each in raw.ops(kit)]


def test_a_forked_child_opens_its_own(kit):
    """In a forked child the parent's backend refuses calls and can be dropped, and a new one works."""
    kit.connect()
    process = kit.child("fork", kit.address(), kit.group, "-")
    output, _ = process.communicate(timeout=60)
    assert output.splitlines() == [
        "child: refused",
        "child: UsageError: this kafka backend was opened before a fork; open another one in the child",
        "child: 2 partitions",
        "child ended with 0",
        "parent: 2 partitions",
    ]


def test_opening_does_not_wait_for_the_broker():
    """Opening without a broker returns at once; the first call's Future fails in time, and closing is quick."""
    began_s = time.monotonic()
    backend = txcore.connect(f"{NOWHERE}?control_timeout_s=1&delivery_timeout_s=1")
    assert time.monotonic() - began_s < 1.0
    error = error_of(lambda: backend.ensure_group("orders"), 2 + ALLOWANCE_S)
    assert isinstance(error, BackendUnavailableError | BackendTimeoutError)
    assert lasts_s(lambda: backend.close(2.0).result(10)) < 2 + ALLOWANCE_S


def test_nothing_hangs_without_a_broker(hurt):
    """Without a broker halves, releases, marks and checkpoints end within their timeouts, and so does closing."""
    topic = hurt.topic()
    hurt.connect()  # creates the group, for which a busy machine may need longer
    backend = hurt.connect(delivery_timeout_s="1", control_timeout_s="1")
    half = raw.half(hurt, topic)
    raw.append(hurt, half, backend=backend)
    claim = backend.claim(hurt.group, "me")
    hurt.until(lambda: claim.poll(), "an assignment")  # noqa: PLW0108
    hurt.broker.kill()
    appended = Recorder([raw.half(hurt, topic) for _ in range(100)])
    released = Recorder([raw.commit(half)])
    backend.append_halves(appended)
    backend.release(released)
    mark = backend.mark(hurt.group, 0, raw.op(half, OpKind.TICK))
    checkpoint = claim.checkpoint(0, Checkpoint(Position(0), None))
    assert set(raw.statuses(appended.wait(backend, 1 + ALLOWANCE_S))) <= {UNKNOWN, REFUSED}
    assert raw.statuses(released.wait(backend, 1 + ALLOWANCE_S)) == [UNKNOWN]
    assert released.outcomes[0].missing == (0,)
    assert mark.result(1 + ALLOWANCE_S).status is UNKNOWN
    assert isinstance(checkpoint.exception(1 + ALLOWANCE_S), OutcomeUnknownError | BackendUnavailableError)
    assert isinstance(error_of(lambda: backend.ensure_group(hurt.group), 2 + ALLOWANCE_S), txcore.TxcoreError)
    assert lasts_s(lambda: backend.close(2.0).result(20)) < 2 + ALLOWANCE_S


def test_closing_on_a_frozen_broker_is_bounded(hurt):
    """Closing on a frozen broker ends in time, and the half under way is UNKNOWN."""
    topic = hurt.topic()
    backend = hurt.connect(delivery_timeout_s="30")
    raw.append(hurt, raw.half(hurt, topic), backend=backend)
    reader = backend.read(hurt.group, LogKind.HALF, 0)
    reader.read(1)
    claim = backend.claim(hurt.group, "me")
    hurt.until(lambda: claim.poll(), "an assignment")  # noqa: PLW0108
    with hurt.broker.paused():
        batch = Recorder([raw.half(hurt, topic)])
        backend.append_halves(batch)
        assert lasts_s(reader.close) < ALLOWANCE_S
        assert lasts_s(lambda: backend.close(2.0).result(20)) < 2 + ALLOWANCE_S
        assert raw.statuses(batch.wait(backend, 0.1)) == [UNKNOWN]


def test_a_confirmation_that_comes_late_writes_no_op(hurt):
    """A release that ended as UNKNOWN never writes its op, even if its target is confirmed later."""
    topic = hurt.topic()
    backend = hurt.connect(delivery_timeout_s="1.5")
    half, other = raw.half(hurt, topic), raw.half(hurt, topic)
    raw.append(hurt, half, other, backend=backend)
    with hurt.broker.paused():
        (outcome,) = raw.release(hurt, raw.commit(half), backend=backend)
        assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
    hurt.until(
        lambda: raw.statuses(raw.release(hurt, raw.rollback(other), backend=backend)) == [DURABLE], "the broker again"
    )
    assert half.transaction_id not in [each.transaction_id for each in raw.ops(hurt, backend=backend)]


def test_a_reader_continues_after_the_broker_was_killed(hurt):
    """A reader returns all later records after the broker was killed and started again."""
    topic = hurt.topic()
    backend = hurt.connect()
    halves = [raw.half(hurt, topic) for _ in range(10)]
    raw.append(hurt, *halves[:5], backend=backend)
    reader = backend.read(hurt.group, LogKind.HALF, 0)
    found = [record.body for record in hurt.until(lambda: reader.read(10))]
    hurt.broker.kill()
    hurt.broker.start()

    def appended():
        return raw.statuses(raw.append(hurt, *halves[5:], backend=backend)) == [DURABLE] * 5

    hurt.until(appended, "the broker again")

    def read():
        with contextlib.suppress(BackendUnavailableError):
            found.extend(record.body for record in reader.read(10))
        return {half.body for half in halves} <= set(found)

    hurt.until(read, "the records after the kill")
    assert found[:5] == [half.body for half in halves[:5]]
    reader.close()


def test_the_reader_reports_an_outage(hurt):
    """A reader raises BackendUnavailableError during an outage."""
    backend = hurt.connect()
    reader = backend.read(hurt.group, LogKind.HALF, 0)
    reader.read(1)
    hurt.broker.kill()
    with pytest.raises(BackendUnavailableError):
        hurt.until(lambda: reader.read(1), "the news")
    reader.close()


def test_what_the_client_did_not_take_is_not_kept_for_ever(kit, topic, monkeypatch):
    """The garbage collector frees items that the client did not accept, although the error refers to them."""

    def refuse(report, numbers, records):
        return [(number, BusyError("the client's queue is full")) for number in numbers]

    def left_over(hand_over, items):
        batch = Recorder(items)
        hand_over(batch)
        batch.wait(kit.backend, 10.0)
        return weakref.ref(batch)

    half = raw.half(kit, topic)
    raw.append(kit, half)
    monkeypatch.setattr(kit.backend._producing, "send_all", refuse)
    append, release = kit.backend.append_halves, kit.backend.release
    kept = [left_over(append, [raw.half(kit, topic)]), left_over(release, [raw.commit(half)])]

    def is_gone():
        gc.collect()
        return not any(batch() for batch in kept)

    kit.until(is_gone, "the end of what was refused")


def test_a_broker_that_is_not_there_is_named():
    """The error has its address."""
    backend = txcore.connect("kafka://127.0.0.1:1?control_timeout_s=1")
    with contextlib.closing(backend):
        error = error_of(lambda: backend.ensure_group("orders"), 10.0)
    assert str(error).startswith("Kafka at 127.0.0.1:1: ")
