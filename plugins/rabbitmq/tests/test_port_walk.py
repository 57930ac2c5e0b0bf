"""Walks the backend port on a real RabbitMQ, named by TXCORE_RABBITMQ_URL (`rabbitmq://...`).

Two tests need to stop and kill the broker: TXCORE_RABBITMQ_CONTROL names a command that takes `kill9`, `start`,
`pause` and `cont`.
"""

import contextlib
import logging
import os
import subprocess
import threading
import time
import uuid

import pika
import pytest
from txcore_rabbitmq import parse_url
from txcore_rabbitmq.backend import RabbitmqBackend
from txcore_rabbitmq.codec import is_missing, translate
from txcore_rabbitmq.options import log_name

from txcore.clock import SystemClock, system_randomness
from txcore.errors import (
    BackendUnavailableError,
    ClosedError,
    ConfigError,
    DataLossError,
    MessageRejectedError,
)
from txcore.ids import IdFactory, id_text
from txcore.port import Backend
from txcore.records import (
    Checkpoint,
    ClaimEventKind,
    Half,
    HalfRecord,
    LogKind,
    Op,
    OpKind,
    ParkCode,
    Parked,
    Position,
    Resolution,
    Status,
    TargetMessage,
)
from txcore.wire import VERSION, decode_half, decode_ops, decode_parked, encode_half, encode_parked

URL = os.environ.get("TXCORE_RABBITMQ_URL", "")
CONTROL = os.environ.get("TXCORE_RABBITMQ_CONTROL", "")
pytestmark = pytest.mark.skipif(not URL, reason="test_port_walk needs a RabbitMQ: set TXCORE_RABBITMQ_URL")
needs_control = pytest.mark.skipif(not CONTROL, reason="needs TXCORE_RABBITMQ_CONTROL to kill or stop the broker")

WAIT_S = 15.0
_log = logging.getLogger("walk")
new_id = IdFactory(SystemClock(), system_randomness()).new


class CountingBatch:
    """Counts settles, so that a second one for an item shows."""

    def __init__(self, items):
        self.items = items
        self.outcomes = [[] for _ in items]
        self._left = len(items)
        self._done = threading.Event()
        self._lock = threading.Lock()

    def settle(self, index, outcome):
        self.outcomes[index].append(outcome)
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def wait(self, timeout_s=WAIT_S):
        assert self._done.wait(timeout_s), f"{self._left} of {len(self.items)} items were not settled"
        assert [1] * len(self.items) == [len(outcomes) for outcomes in self.outcomes]
        return [outcomes[0] for outcomes in self.outcomes]


def url(**options):
    separator = "&" if "?" in URL else "?"
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return URL + (separator + query if query else "")


@pytest.fixture
def group():
    return f"walk-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def backend(group):
    backend: Backend = RabbitmqBackend(url())
    yield backend
    backend.close(5.0).result(10.0)


@pytest.fixture
def control_channel():
    """A plain connection of the test's own, to declare and read targets."""
    options = parse_url(URL)
    credentials = pika.PlainCredentials(options.user, options.password)
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(options.host, options.port, options.vhost, credentials, heartbeat=0)
    )
    yield connection.channel()
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


@pytest.fixture
def queue(control_channel, group):
    name = f"{group}.target"
    control_channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    yield name
    with contextlib.suppress(pika.exceptions.AMQPError):  # the broker may have been killed meanwhile
        control_channel.queue_delete(name)


def make_half(group, *messages, transaction_id=None, generation=0, partition=0):
    transaction_id = transaction_id or new_id()
    record = Half(
        VERSION, transaction_id, group, partition, generation, 0, 6000, 30000, 15, False, "walk", list(messages)
    )
    return HalfRecord(group, partition, transaction_id, generation, encode_half(record), list(messages))


def message(topic, body=b"hello", key=None, **headers):
    return TargetMessage(topic, key, body, headers)


def op(kind, half, **fields):
    return Op(int(kind), half.transaction_id, half.generation, by="walk", **fields)


def append(backend, *halves):
    batch = CountingBatch(halves)
    backend.append_halves(batch)
    return batch.wait()


def release(backend, *resolutions):
    batch = CountingBatch(resolutions)
    backend.release(batch)
    return batch.wait()


def read_until(reader, is_enough, timeout_s=WAIT_S):
    records, deadline_s = [], time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        records.extend(reader.read(100))
        if is_enough(records):
            return records
        time.sleep(0.005)
    raise AssertionError(f"only {len(records)} records came within {timeout_s} s")


def read_count(reader, count, timeout_s=WAIT_S):
    return read_until(reader, lambda records: len(records) >= count, timeout_s)


def read_ops(reader, count):
    """Return *count* ops, as (position, op)."""
    flat = []

    def is_enough(records):
        flat[:] = [(record.position, found) for record in records for found in decode_ops(record.body)]
        return len(flat) >= count

    read_until(reader, is_enough)
    return flat


def mark(backend, group, kind, token=b""):
    nonce = uuid.uuid4().bytes
    outcome = backend.mark(group, 0, Op(int(kind), nonce, token=token or nonce, by="walk")).result(WAIT_S)
    assert outcome.status is Status.DURABLE
    return nonce


def await_event(claim, kind, timeout_s=WAIT_S):
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for event in claim.poll():
            if event.kind is kind:
                return event
        time.sleep(0.01)
    raise AssertionError(f"no {kind} within {timeout_s} s")


def broker(command):
    subprocess.run([*CONTROL.split(), command], check=True, timeout=60, capture_output=True)


def test_commit_publishes_the_target_then_the_op(backend, group, queue, control_channel):
    """Half acked, target in the queue with its headers, op read back behind it; half and op name the same id."""
    assert backend.ensure_group(group, 1).result(WAIT_S) == 1
    half = make_half(group, message(queue, b"\x00body", b"42", colour="red", raw=b"\xff"))
    assert append(backend, half)[0].status is Status.DURABLE

    commit = Resolution(half, op(OpKind.COMMIT, half), targets=(0,), by="walk-1", flush=True)
    assert release(backend, commit)[0].status is Status.DURABLE

    _, properties, body = control_channel.basic_get(queue, auto_ack=True)
    assert body == b"\x00body"
    assert properties.delivery_mode == 2
    assert properties.message_id == f"{id_text(half.transaction_id)}:0"
    assert (
        properties.headers
        == {
            "colour": "red",
            "raw": b"\xff",
            "txcore-id": f"{id_text(half.transaction_id)}:0",
            "txcore-group": group,
            "txcore-by": "walk-1",
            "txcore-key": "42",  # pika reads a byte string as text where it can
        }
        or properties.headers["txcore-key"] == b"42"
    )

    (half_record,) = read_count(backend.read(group, LogKind.HALF, 0), 1)
    assert half_record.position == 0
    assert decode_half(half_record.body).transaction_id == half.transaction_id
    ((_, found),) = read_ops(backend.read(group, LogKind.OP, 0), 1)
    assert (found.kind, found.transaction_id) == (OpKind.COMMIT, half.transaction_id)


def test_rollback_writes_an_op_and_no_target(backend, group, queue, control_channel):
    """A rollback leaves nothing in the target."""
    backend.ensure_group(group, 1).result(WAIT_S)
    half = make_half(group, message(queue))
    append(backend, half)
    assert release(backend, Resolution(half, op(OpKind.ROLLBACK, half)))[0].status is Status.DURABLE
    ((_, found),) = read_ops(backend.read(group, LogKind.OP, 0), 1)
    assert found.kind == OpKind.ROLLBACK
    assert control_channel.basic_get(queue)[0] is None


def test_mixed_batch_settles_each_item_by_itself(backend, group, queue):
    """Unknown queue, unknown exchange, oversize body, oversize headers are refused; their neighbour is stored."""
    backend.ensure_group(group, 1).result(WAIT_S)
    batch = CountingBatch(
        [
            make_half(group, message("no-such-queue")),
            make_half(group, message("no-such-exchange/key")),
            make_half(group, message(queue, bytes(2_000_000))),
            make_half(group, message(queue, b"x", big="x" * 200_000)),
            make_half(group, message(queue), message("no-such-queue")),
            make_half(group, message(queue, b"good")),
        ]
    )
    started_s = time.monotonic()
    backend.append_halves(batch)
    handed_s = time.monotonic() - started_s
    outcomes = batch.wait()
    _log.warning(f"handed over in {handed_s * 1e3:.2f} ms, settled in {(time.monotonic() - started_s) * 1e3:.1f} ms")
    assert [*[Status.REFUSED] * 5, Status.DURABLE] == [outcome.status for outcome in outcomes]
    assert all(isinstance(outcome.error, MessageRejectedError) for outcome in outcomes[:5])
    (only,) = read_count(backend.read(group, LogKind.HALF, 0), 1)
    assert decode_half(only.body).transaction_id == batch.items[5].transaction_id


def test_refused_targets_leave_no_op(backend, group, queue, control_channel):
    """Unroutable and rejected targets are REFUSED and named in `missing`; no op follows; neighbours go on."""
    backend.ensure_group(group, 1).result(WAIT_S)
    exchange, full = f"{group}.exchange", f"{group}.full"
    control_channel.exchange_declare(exchange, "topic", durable=True)
    arguments = {"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}
    control_channel.queue_declare(full, durable=True, arguments=arguments)
    control_channel.basic_publish("", full, b"full now")
    try:
        unroutable = make_half(group, message(queue), message(f"{exchange}/nobody.listens"))
        rejected = make_half(group, message(full))
        good = make_half(group, message(queue))
        assert [outcome.status for outcome in append(backend, unroutable, rejected, good)] == [Status.DURABLE] * 3
        outcomes = release(
            backend,
            Resolution(unroutable, op(OpKind.COMMIT, unroutable), targets=(0, 1), flush=True),
            Resolution(rejected, op(OpKind.COMMIT, rejected), targets=(0,), flush=True),
            Resolution(good, op(OpKind.COMMIT, good), targets=(0,), flush=True),
        )
        assert [outcome.status for outcome in outcomes] == [Status.REFUSED, Status.REFUSED, Status.DURABLE]
        assert [outcome.missing for outcome in outcomes] == [(1,), (0,), ()]
        nonce = mark(backend, group, OpKind.TICK)
        ops = read_ops(backend.read(group, LogKind.OP, 0), 2)
        assert [good.transaction_id, nonce] == [found.transaction_id for _, found in ops]
    finally:
        control_channel.exchange_delete(exchange)
        control_channel.queue_delete(full)


def test_missing_exchange_kills_only_its_own_lane(backend, group, queue, control_channel):
    """An exchange that is deleted after the half was stored refuses its release and hurts no neighbour."""
    backend.ensure_group(group, 1).result(WAIT_S)
    exchange = f"{group}.gone"
    control_channel.exchange_declare(exchange, "topic", durable=True)
    doomed = [make_half(group, message(f"{exchange}/a")) for _ in range(5)]
    good = [make_half(group, message(queue)) for _ in range(5)]
    append(backend, *doomed, *good)
    control_channel.exchange_delete(exchange)
    pairs = [half for pair in zip(doomed, good, strict=True) for half in pair]
    outcomes = release(backend, *[Resolution(half, op(OpKind.COMMIT, half), targets=(0,)) for half in pairs])
    assert [outcome.status for outcome in outcomes] == [Status.REFUSED, Status.DURABLE] * 5


def test_takeover_after_a_clean_close(backend, group):
    """A claim that closes hands its partition over at once."""
    backend.ensure_group(group, 1).result(WAIT_S)
    first = backend.claim(group, "first")
    assert await_event(first, ClaimEventKind.ASSIGNED).partition == 0
    second = backend.claim(group, "second")
    time.sleep(1.0)
    assert list(second.poll()) == []
    first.close(2.0).result(5.0)
    started_s = time.monotonic()
    await_event(second, ClaimEventKind.ASSIGNED)
    _log.warning(f"takeover after close: {(time.monotonic() - started_s) * 1e3:.0f} ms")
    second.close(2.0).result(5.0)


def test_takeover_from_a_frozen_owner_is_seen_in_log_order(group, queue):
    """The frozen owner's lock goes; the new CLAIM is read back; what the old token writes later stands behind it."""
    old, new = RabbitmqBackend(url(claim_heartbeat_s=1)), RabbitmqBackend(url(claim_heartbeat_s=1))
    try:
        old.ensure_group(group, 1).result(WAIT_S)
        half = make_half(group, message(queue))
        append(old, half)
        first = old.claim(group, "first")
        await_event(first, ClaimEventKind.ASSIGNED)
        old_token = mark(old, group, OpKind.CLAIM)
        second = new.claim(group, "second")
        # Frozen: its thread answers no heartbeat for a while, then goes on as if nothing had happened.
        thaw = threading.Event()
        old._reading.call(lambda: thaw.wait(20.0))
        started_s = time.monotonic()
        await_event(second, ClaimEventKind.ASSIGNED, 20.0)
        _log.warning(f"takeover from a frozen owner: {time.monotonic() - started_s:.1f} s at heartbeat 1 s")
        new_token = mark(new, group, OpKind.CLAIM)
        reader = new.read(group, LogKind.OP, 0)
        assert [old_token, new_token] == [found.transaction_id for _, found in read_ops(reader, 2)]

        stale = Resolution(half, op(OpKind.CHECKED, half, count=1, token=old_token), flush=True)
        assert release(old, stale)[0].status is Status.DURABLE
        ((_, found),) = read_ops(reader, 1)
        assert (found.kind, found.token) == (OpKind.CHECKED, old_token)

        thaw.set()
        await_event(first, ClaimEventKind.LOST)
        first.close(2.0).result(5.0)
        second.close(2.0).result(5.0)
    finally:
        thaw.set()
        old.close(5.0).result(10.0)
        new.close(5.0).result(10.0)


def test_giving_up_unasked_leads_to_a_new_assignment(backend, group):
    """A core that stands down by itself is not left without the partition for ever."""
    backend.ensure_group(group, 1).result(WAIT_S)
    claim = backend.claim(group, "only")
    await_event(claim, ClaimEventKind.ASSIGNED)
    claim.give_up(0)
    assert await_event(claim, ClaimEventKind.ASSIGNED).partition == 0
    claim.close(2.0).result(5.0)


def test_discard_parks_before_the_op_and_resume_opens_a_generation(backend, group, queue, control_channel):
    """Park record, then DISCARD; resume appends the half again with generation 1, which then commits."""
    backend.ensure_group(group, 1).result(WAIT_S)
    half = make_half(group, message(queue))
    append(backend, half)
    parked = Parked(VERSION, half.transaction_id, 0, ParkCode.CHECKS_EXHAUSTED, "15", 15, "walk", 0, b"", half.body)
    discard = Resolution(half, op(OpKind.DISCARD, half), parked=encode_parked(parked), flush=True)
    assert release(backend, discard)[0].status is Status.DURABLE
    (record,) = read_count(backend.read(group, LogKind.PARKED, 0), 1)
    found = decode_parked(record.body)
    assert (found.transaction_id, found.half) == (half.transaction_id, half.body)

    resumed = make_half(group, message(queue), transaction_id=half.transaction_id, generation=1)
    assert append(backend, resumed)[0].status is Status.DURABLE
    commit = Resolution(resumed, op(OpKind.COMMIT, resumed), targets=(0,), flush=True)
    assert release(backend, commit)[0].status is Status.DURABLE
    halves = read_count(backend.read(group, LogKind.HALF, 0), 2)
    assert [decode_half(half.body).generation for half in halves] == [0, 1]
    ops = read_ops(backend.read(group, LogKind.OP, 0), 2)
    assert [(found.kind, found.generation) for _, found in ops] == [(OpKind.DISCARD, 0), (OpKind.COMMIT, 1)]
    assert control_channel.basic_get(queue, auto_ack=True)[0] is not None


def test_tick_stands_behind_merged_ops(backend, group, queue):
    """Ops of one batch share records; a TICK comes behind all of them, in a record of its own."""
    backend.ensure_group(group, 1).result(WAIT_S)
    halves = [make_half(group, message(queue)) for _ in range(200)]
    append(backend, *halves)
    outcomes = release(backend, *[Resolution(half, op(OpKind.ROLLBACK, half)) for half in halves])
    assert {Status.DURABLE} == {outcome.status for outcome in outcomes}
    nonce = mark(backend, group, OpKind.TICK)
    ops = read_ops(backend.read(group, LogKind.OP, 0), 201)
    assert [half.transaction_id for half in halves] + [nonce] == [found.transaction_id for _, found in ops]
    positions = [position for position, _ in ops]
    assert positions == sorted(positions)
    assert len(set(positions)) < 20
    assert positions.count(positions[-1]) == 1


def test_checkpoint_comes_back(backend, group):
    """The last checkpoint is loaded, by any number of readers, and None where there is none."""
    backend.ensure_group(group, 1).result(WAIT_S)
    assert backend.load_checkpoint(group, 0).result(WAIT_S) is None
    claim = backend.claim(group, "only")
    await_event(claim, ClaimEventKind.ASSIGNED)
    last = Checkpoint(Position(7), Position(9), b"t" * 16, b"note" * 700)
    claim.checkpoint(0, Checkpoint(None, None)).result(WAIT_S)
    claim.checkpoint(0, last).result(WAIT_S)
    assert [last, last] == [backend.load_checkpoint(group, 0).result(WAIT_S) for _ in range(2)]
    claim.close(2.0).result(5.0)


def test_reading_from_a_position_and_single_records(backend, group, queue):
    """A start is inclusive; fetch returns the asked records and no other."""
    backend.ensure_group(group, 1).result(WAIT_S)
    halves = [make_half(group, message(queue)) for _ in range(2000)]
    append(backend, *halves)
    reader = backend.read(group, LogKind.HALF, 0)
    records = read_count(reader, 2000)
    assert [half.body for half in halves] == [record.body for record in records]
    wanted = [records[index].position for index in (1999, 3, 4, 700, 1998)]
    found = reader.fetch(wanted).result(WAIT_S)
    assert {position: dict(zip(wanted, (1999, 3, 4, 700, 1998), strict=True))[position] for position in found} == {
        position: next(i for i, record in enumerate(records) if record.body == found[position].body)
        for position in wanted
    }
    late = read_count(backend.read(group, LogKind.HALF, 0, records[1500].position), 500)
    assert records[1500:] == late
    reader.close()
    with pytest.raises(ClosedError):
        reader.read(1)


def test_truncated_start_is_a_data_loss_error(group, queue):
    """A start that retention has eaten raises, from a position and from the beginning; `first` can be read."""
    backend = RabbitmqBackend(url(half_segment_bytes=200_000, half_length_bytes=400_000))
    try:
        backend.ensure_group(group, 1).result(WAIT_S)
        for _ in range(60):
            append(backend, *[make_half(group, message(queue, bytes(10_000))) for _ in range(4)])
        for start, asked in ((None, 0), (Position(5), 5)):
            reader = backend.read(group, LogKind.HALF, 0, start)
            with pytest.raises(DataLossError) as caught:
                read_count(reader, 1)
            assert caught.value.asked == asked < caught.value.first
            with pytest.raises(DataLossError):
                reader.read(1)
        first = Position(caught.value.first)
        again = backend.read(group, LogKind.HALF, 0, first)
        assert read_count(again, 1)[0].position == first
        found = again.fetch([Position(5), first]).result(WAIT_S)
        assert [first] == list(found)
    finally:
        backend.close(5.0).result(10.0)


def test_a_log_that_is_truncated_to_nothing_is_noticed(group, queue):
    """Retention may leave an empty segment: a record once seen that does not come is loss, too."""
    backend = RabbitmqBackend(url(half_segment_bytes=200_000, half_length_bytes=400_000))
    try:
        backend.ensure_group(group, 1).result(WAIT_S)
        for _ in range(6):
            append(backend, *[make_half(group, message(queue, bytes(10_000))) for _ in range(40)])
        started_s = time.monotonic()
        with pytest.raises(DataLossError) as caught:
            read_count(backend.read(group, LogKind.HALF, 0, Position(5)), 1)
        _log.warning(f"{caught.value} noticed after {time.monotonic() - started_s:.1f} s")
        # Asked for the beginning, an empty stream says nothing until something is appended.
        reader = backend.read(group, LogKind.HALF, 0)
        append(backend, make_half(group, message(queue)))
        with pytest.raises(DataLossError) as caught:
            read_count(reader, 1)
        assert caught.value.asked == 0 < caught.value.first
    finally:
        backend.close(5.0).result(10.0)


def test_group_setup_is_verified(backend, group, queue):
    """The count of an existing group is found; another one, or other settings, are refused by name."""
    with pytest.raises(ConfigError):
        read_count(backend.read(group, LogKind.HALF, 0), 1)
    assert backend.ensure_group(group, 3).result(WAIT_S) == 3
    assert backend.ensure_group(group).result(WAIT_S) == 3
    with pytest.raises(ConfigError, match="3 partitions, not 2"):
        backend.ensure_group(group, 2).result(WAIT_S)
    other = RabbitmqBackend(url(half_retention_s=3600))
    try:
        with pytest.raises(ConfigError, match="x-max-age"):
            other.ensure_group(group).result(WAIT_S)
    finally:
        other.close(5.0).result(10.0)
    greedy = RabbitmqBackend(url(body_size_max=140_000_000))  # 128 MiB was the default limit before 4.0
    try:
        with pytest.raises(ConfigError) as caught:
            greedy.ensure_group(group).result(WAIT_S)
        assert caught.value.key == "body_size_max"
        small = Resolution(make_half(group, message(queue)), None, targets=(0,))
        assert release(greedy, small)[0].status is Status.DURABLE
    finally:
        greedy.close(5.0).result(10.0)


def test_close_settles_everything_and_refuses_later_calls(group, queue):
    """Close sends queued ops, is idempotent, and ends the threads."""
    backend = RabbitmqBackend(url())
    backend.ensure_group(group, 1).result(WAIT_S)
    half = make_half(group, message(queue))
    append(backend, half)
    batch = CountingBatch([Resolution(half, op(OpKind.ROLLBACK, half))])
    backend.release(batch)
    started_s = time.monotonic()
    closed = backend.close(5.0)
    assert backend.close(5.0) is closed
    closed.result(10.0)
    _log.warning(f"closed in {(time.monotonic() - started_s) * 1e3:.0f} ms")
    assert batch.wait()[0].status is Status.DURABLE
    with pytest.raises(ClosedError):
        backend.append_halves(CountingBatch([half]))
    other = RabbitmqBackend(url())
    ((_, found),) = read_ops(other.read(group, LogKind.OP, 0), 1)
    assert found.kind == OpKind.ROLLBACK
    other.close(5.0).result(10.0)


def test_unreachable_broker_refuses_halves_in_time(group):
    """What was never sent is certain; nothing hangs."""
    backend = RabbitmqBackend("rabbitmq://127.0.0.1:9/?delivery_timeout_s=0.5")
    half = make_half(group, message("queue"))
    started_s = time.monotonic()
    outcome = append(backend, half)[0]
    assert time.monotonic() - started_s < 2.0
    assert (outcome.status, type(outcome.error)) == (Status.REFUSED, BackendUnavailableError)
    outcome = release(backend, Resolution(half, op(OpKind.COMMIT, half), targets=(0,)))[0]
    assert (outcome.status, outcome.missing) == (Status.UNKNOWN, (0,))
    backend.close(2.0).result(5.0)


@needs_control
def test_broker_killed_in_the_middle_is_unknown_and_no_acked_half_is_lost(group, queue):
    """kill -9 under load: every item is settled in time; after the restart every DURABLE half is there."""
    backend = RabbitmqBackend(url(delivery_timeout_s=2))
    backend.ensure_group(group, 1).result(WAIT_S)
    batches, stop = [], threading.Event()

    def load():
        while not stop.is_set():
            batch = CountingBatch([make_half(group, message(queue)) for _ in range(50)])
            backend.append_halves(batch)
            batches.append(batch)
            time.sleep(0.01)

    worker = threading.Thread(target=load)
    worker.start()
    time.sleep(1.0)
    broker("kill9")
    time.sleep(1.0)
    stop.set()
    worker.join()
    outcomes = [
        (half, outcome) for batch in batches for half, outcome in zip(batch.items, batch.wait(5.0), strict=True)
    ]
    counts = {status: sum(outcome.status is status for _, outcome in outcomes) for status in Status}
    broker("start")
    records = []
    reader = backend.read(group, LogKind.HALF, 0)
    last = make_half(group, message(queue))
    deadline_s = time.monotonic() + 30
    while append(backend, last)[0].status is not Status.DURABLE:
        assert time.monotonic() < deadline_s
    while not any(record.body == last.body for record in records):
        assert time.monotonic() < deadline_s
        with contextlib.suppress(BackendUnavailableError):
            records.extend(reader.read(1000))
        time.sleep(0.01)
    stored = {decode_half(record.body).transaction_id for record in records}
    unknown = [half for half, outcome in outcomes if outcome.status is Status.UNKNOWN]
    kept = sum(half.transaction_id in stored for half in unknown)
    _log.warning(f"{counts}; of {len(unknown)} unknown halves {kept} were stored")
    assert counts[Status.DURABLE] > 0
    assert counts[Status.UNKNOWN] + counts[Status.REFUSED] > 0
    for half, outcome in outcomes:
        assert outcome.status is not Status.DURABLE or half.transaction_id in stored
        assert outcome.status is not Status.REFUSED or half.transaction_id not in stored
    backend.close(5.0).result(10.0)


@needs_control
def test_release_to_a_stalled_broker_is_unknown_and_takes_effect_later(group, queue, control_channel):
    """No timeout can call back what lies in a stopped broker's socket."""
    backend = RabbitmqBackend(url(delivery_timeout_s=1))
    backend.ensure_group(group, 1).result(WAIT_S)
    half = make_half(group, message(queue))
    append(backend, half)
    warm = make_half(group, message(queue))
    release(backend, Resolution(warm, None, targets=(0,)))
    broker("pause")
    try:
        started_s = time.monotonic()
        outcome = release(backend, Resolution(half, op(OpKind.COMMIT, half), targets=(0,), flush=True))[0]
        assert time.monotonic() - started_s < 2.0
        assert (outcome.status, outcome.missing) == (Status.UNKNOWN, (0,))
    finally:
        broker("cont")
    nonce = mark(backend, group, OpKind.TICK)
    assert [nonce] == [found.transaction_id for _, found in read_ops(backend.read(group, LogKind.OP, 0), 1)]
    bodies = [control_channel.basic_get(queue, auto_ack=True)[0] is not None for _ in range(2)]
    assert bodies == [True, True], "the target that was settled UNKNOWN arrived after the stall"
    backend.close(5.0).result(10.0)


def test_a_queue_whose_node_is_down_is_not_a_missing_queue():
    """Just after a restart the broker answers 404 for queues that are there; nothing may be concluded from it."""
    down = pika.exceptions.ChannelClosedByBroker(
        404, "NOT_FOUND - home node 'a' of durable queue 'b' is down or inaccessible"
    )
    missing = pika.exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no queue 'b' in vhost '/'")
    starting = pika.exceptions.ChannelClosedByBroker(406, "PRECONDITION_FAILED - no replica on the local node")
    assert [is_missing(down), is_missing(missing)] == [False, True]
    kinds = [type(translate(error, "reading")) for error in (down, starting, missing)]
    assert kinds == [BackendUnavailableError, BackendUnavailableError, ConfigError]


def test_names_are_stable():
    """The audit and operators find the logs by these names."""
    assert log_name("orders", LogKind.HALF, 3) == "txc.orders.half.3"
