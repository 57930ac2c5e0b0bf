"""The streams of a group on a real broker: creating, verifying and reading them, and losses by retention."""

from __future__ import annotations

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import error_of
from txcore_rabbitmq.lanes import StreamAbsentError
from txcore_rabbitmq.names import checkpoint_name, checks_name, log_exchange, log_name, logs_name, stream_arguments
from txcore_rabbitmq.options import Options
from txcore_rabbitmq.testing import connect

from txcore import wire
from txcore.errors import ClosedError, ConfigError, DataLossError
from txcore.records import Checkpoint, LogKind, OpKind, Position, Status

SMALL = {"half_segment_bytes": 200_000, "half_length_bytes": 400_000}


def test_every_stream_is_there_with_its_arguments(kit):
    """The broker accepts another declaration of each stream with the documented arguments, so these are in force."""
    kit.wait(kit.backend.ensure_group(kit.group))
    channel = kit.channel()
    for partition in range(2):
        for name, arguments in stream_arguments(Options(), kit.group, partition).items():
            channel.queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"half_retention_s": 3_600}, "x-max-age"),
        ({"half_segment_bytes": 10_000_000}, "x-stream-max-segment-size-bytes"),
        ({"op_segment_bytes": 10_000_000}, "x-stream-max-segment-size-bytes"),
        ({"half_length_bytes": 200_000_000}, "x-max-length-bytes"),
    ],
)
def test_other_settings_of_an_existing_group_are_named(kit, options, setting):
    """Another setting for an existing group is a ConfigError with its key; the group does not change."""
    kit.wait(kit.backend.ensure_group(kit.group))
    other = kit.connect(partition_count=None, **options)
    error = error_of(lambda: other.ensure_group(kit.group), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert (error.key, setting in str(error)) == (setting, True)
    assert kit.wait(kit.backend.ensure_group(kit.group)) == 2


def test_what_is_parked_never_expires(kit):
    """The parked streams have no limit of age or length, as parked records wait for an operator."""
    kit.wait(kit.backend.ensure_group(kit.group))
    for partition in range(2):
        arguments = stream_arguments(Options(), kit.group, partition)[log_name(kit.group, LogKind.PARKED, partition)]
        assert {"x-queue-type", "x-stream-max-segment-size-bytes"} == set(arguments)
        kit.channel().queue_declare(log_name(kit.group, LogKind.PARKED, partition), durable=True, arguments=arguments)


def test_a_group_whose_parked_streams_expire_is_used_on_and_its_other_settings_are_verified(kit, caplog):
    """A group from before 0.1, whose parked streams expire, is usable with a warning; other settings are verified."""
    old = {"x-queue-type": "stream", "x-max-age": "1209600s", "x-stream-max-segment-size-bytes": 20_000_000}
    parked = [log_name(kit.group, LogKind.PARKED, partition) for partition in range(2)]
    for name in parked:
        kit.channel().queue_declare(name, durable=True, arguments=old)
    assert kit.wait(kit.backend.ensure_group(kit.group, 2)) == 2
    logged = {record.txcore["stream"] for record in caplog.records if record.message == "rabbitmq.parked_expires"}
    assert sorted(logged) == parked
    half = raw.half(kit, kit.queue())
    raw.append(kit, half)
    assert raw.release(kit, raw.discard(half))[0].status is Status.DURABLE
    for name in parked:
        kit.channel().queue_declare(name, durable=True, arguments=old)
    other = kit.connect(partition_count=None, half_retention_s=3_600)
    error = error_of(lambda: other.ensure_group(kit.group), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert error.key == "x-max-age"


def test_a_queue_in_the_place_of_a_stream_is_named(kit):
    """A classic queue with the name of one of the group's streams is a ConfigError that names it."""
    name = log_name(f"{kit.group}-x", LogKind.OP, 1)
    kit.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})
    error = error_of(lambda: kit.backend.ensure_group(f"{kit.group}-x", 2), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert name in str(error)


def test_a_group_that_was_made_in_part_is_completed(kit):
    """A group whose creation was interrupted is completed: without the half stream of partition 0 it does not exist."""
    group, options = f"{kit.group}-part", Options()
    channel = kit.channel()
    for name, arguments in stream_arguments(options, group, 1).items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    assert kit.wait(kit.backend.ensure_group(group, 2)) == 2
    channel.queue_declare(log_name(group, LogKind.HALF, 0), passive=True)


def test_a_group_without_exchanges_gets_them_with_the_next_start(kit):
    """A group from before its exchanges gets them, bound, from the next `ensure_group`; what it holds stays."""
    first = raw.half(kit, kit.queue())
    raw.append(kit, first)
    channel = kit.channel()
    for name in (logs_name(kit.group), checks_name(kit.group)):
        channel.exchange_delete(name)
    later = kit.connect()
    assert raw.statuses(raw.append(kit, raw.half(kit, kit.queue()), backend=later)) == [Status.DURABLE]
    assert raw.statuses(raw.release(kit, raw.discard(first), backend=later)) == [Status.DURABLE]
    assert kit.wait(later.load_checkpoint(kit.group, 1)) is None
    assert raw.read(kit, LogKind.HALF, lambda found: len(found) > 1, backend=later)[0].body == first.body


@pytest.mark.parametrize("kind", [LogKind.HALF, LogKind.PARKED])
def test_a_deleted_exchange_is_named_with_its_cure(kit, kind):
    """Records for a deleted exchange are refused with the name and the command that makes it; then they are stored."""
    half = raw.half(kit, kit.queue())
    assert raw.statuses(raw.append(kit, half)) == [Status.DURABLE]
    kit.channel().exchange_delete(log_exchange(kit.group, kind))

    def outcome():
        return raw.append(kit, half)[0] if kind is LogKind.HALF else raw.release(kit, raw.discard(half))[0]

    outcome()  # shows it to this connection; whether this record is stored is unknown
    refused = outcome()
    assert (refused.status, type(refused.error)) == (Status.REFUSED, StreamAbsentError)
    assert log_exchange(kit.group, kind) in str(refused.error)
    assert "txcore topics create" in str(refused.error)
    kit.connect()
    assert outcome().status is Status.DURABLE


@pytest.mark.parametrize(("group", "count"), [("", 1), ("g" * 300, 1), ("fine", 0), ("fine", 5_000)])
def test_what_no_group_can_be(kit, group, count):
    """A group's name that is empty or too long, or a number out of range, is a ConfigError."""
    assert isinstance(error_of(lambda: kit.backend.ensure_group(group, count), kit.timeout_s), ConfigError)


def test_a_record_larger_than_the_broker_takes_is_found_out_at_the_start(kit):
    """A `body_size_max` above the broker's limit is a ConfigError of `ensure_group`, and no other channel is closed."""
    group = kit.connect()
    greedy = kit.connect(partition_count=None, body_size_max=140_000_000, delivery_timeout_s=30)
    error = error_of(lambda: greedy.ensure_group(kit.group), 60.0)
    assert isinstance(error, ConfigError)
    assert error.key == "body_size_max"
    assert Status.DURABLE is raw.append(kit, raw.half(kit, kit.queue()), backend=group)[0].status


def test_ops_share_records_and_a_tick_comes_alone_after_them(kit):
    """Many ops share few records, in the order of their releases; a TICK after them has a record of its own."""
    queue = kit.queue()
    halves = [raw.half(kit, queue) for _ in range(300)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half, flush=False) for half in halves])
    nonce, _ = raw.mark(kit, OpKind.TICK)
    records = raw.read(kit, LogKind.OP, lambda found: any(nonce in record.body for record in found))
    ops = [[op.transaction_id for op in wire.decode_ops(record.body)] for record in records]
    assert [identity for record in ops for identity in record] == [half.transaction_id for half in halves] + [nonce]
    assert ops[-1] == [nonce]
    assert len(ops) < 20


def test_single_records_from_a_long_log(kit):
    """Fetch returns near and distant records of a long log."""
    queue = kit.queue()
    halves = [raw.half(kit, queue, body=b"%d" % number) for number in range(2_000)]
    raw.append(kit, *halves)
    records = raw.halves(kit, 2_000)
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    wanted = [records[index].position for index in (1_999, 3, 4, 700, 1_998)]
    found = kit.wait(reader.fetch(wanted))
    assert found == {record.position: record for record in records if record.position in wanted}
    reader.close()
    with pytest.raises(ClosedError):
        reader.read(1)


def test_positions_have_gaps_and_ascend(kit):
    """Positions ascend with gaps, as each new segment uses an offset; a reader can start at each position."""
    backend, queue = kit.connect(half_segment_bytes=100_000), kit.queue()
    for _ in range(10):
        raw.append(kit, *[raw.half(kit, queue, body=bytes(5_000)) for _ in range(10)], backend=backend)
    records = raw.read(kit, LogKind.HALF, lambda found: len(found) >= 100, backend=backend)
    positions = [record.position for record in records]
    assert positions == sorted(set(positions))
    assert positions[-1] > len(positions) - 1
    for index in (0, 20, 21, 22, 60, 99):
        reader = backend.read(kit.group, LogKind.HALF, 0, positions[index])
        first = kit.until(lambda reader=reader: reader.read(1))
        assert first[0].position == positions[index]
        reader.close()


def test_a_truncated_start_is_data_loss_with_the_first_position_left(kit):
    """A reader whose start was truncated raises DataLossError with the first position left."""
    backend, queue = kit.connect(**SMALL), kit.queue()
    for _ in range(60):
        raw.append(kit, *[raw.half(kit, queue, body=bytes(10_000)) for _ in range(4)], backend=backend)
    for start, asked in ((None, 0), (Position(5), 5)):
        reader = backend.read(kit.group, LogKind.HALF, 0, start)
        with pytest.raises(DataLossError) as caught:
            kit.until(lambda reader=reader: reader.read(1))
        assert caught.value.asked == asked < caught.value.first
        with pytest.raises(DataLossError):
            reader.read(1)
    first = Position(caught.value.first)
    again = backend.read(kit.group, LogKind.HALF, 0, first)
    assert kit.until(lambda: again.read(1))[0].position == first
    assert list(kit.wait(again.fetch([Position(5), first]))) == [first]


def test_a_log_that_was_truncated_to_nothing_is_noticed(kit):
    """A reader whose start record never arrives raises DataLossError, as retention may leave no records."""
    backend, queue = kit.connect(**SMALL), kit.queue()
    for _ in range(6):
        raw.append(kit, *[raw.half(kit, queue, body=bytes(10_000)) for _ in range(40)], backend=backend)
    reader = backend.read(kit.group, LogKind.HALF, 0, Position(5))
    with pytest.raises(DataLossError) as caught:
        kit.until(lambda: reader.read(1))
    assert caught.value.asked == 5


def test_a_reader_whose_log_is_truncated_while_it_is_cut_off(hurt):
    """A reader that was cut off raises DataLossError if its last record was truncated meanwhile."""
    direct, queue = hurt.connect(**SMALL), hurt.queue()
    cut_off = hurt.connect(proxied=True, heartbeat_s=1, **SMALL)
    raw.append(hurt, *[raw.half(hurt, queue) for _ in range(3)], backend=direct)
    reader = cut_off.read(hurt.group, LogKind.HALF, 0)
    last = hurt.until(lambda: reader.read(10))[-1].position
    hurt.broker.proxy.refuse()
    hurt.broker.proxy.cut()
    for _ in range(60):
        raw.append(hurt, *[raw.half(hurt, queue, body=bytes(10_000)) for _ in range(4)], backend=direct)
    hurt.broker.proxy.forward()

    def lost():
        error = error_of(lambda: reader.read(10), hurt.timeout_s)
        return error if isinstance(error, DataLossError) else None

    error = hurt.until(lost)
    assert last <= error.asked < error.first


def test_a_few_records_are_acknowledged_in_time(hurt, monkeypatch):
    """A reader acknowledges a few records after some time, as older brokers close a channel after half an hour."""
    from txcore_rabbitmq import reading  # noqa: PLC0415

    monkeypatch.setattr(reading, "IDLE_ACK_S", 0.2)
    backend, queue = hurt.connect(), hurt.queue()
    raw.append(hurt, *[raw.half(hurt, queue) for _ in range(3)], backend=backend)
    reader = backend.read(hurt.group, LogKind.HALF, 0)
    read = []
    hurt.until(lambda: read.extend(reader.read(10)) or len(read) >= 3)
    hurt.timeout_s = 60.0
    unacked = ("list_channels", "consumer_count", "messages_unacknowledged")
    hurt.until(lambda: {"1\t0"} <= set(lines := hurt.broker.control(*unacked).splitlines()) and "1\t3" not in lines)
    reader.close()


def test_the_last_checkpoint_of_many_is_loaded(kit):
    """The last checkpoint is loaded, although the stream has markers and records of a newer plugin after it."""
    claim, queue = kit.backend.claim(kit.group, "me"), checkpoint_name(kit.group, 0)
    kit.history.unjudged = "its checkpoints are made up"
    for number in range(300):
        claim.checkpoint(0, Checkpoint(Position(number), None, b"t" * 16, b"n" * 3_000))
    last = Checkpoint(Position(7), Position(9), b"t" * 16, b"note")
    kit.wait(claim.checkpoint(0, last))
    kit.channel().basic_publish(checks_name(kit.group), queue, b"of a newer plugin")
    assert [kit.wait(backend.load_checkpoint(kit.group, 0)) for backend in (kit.backend, kit.open())] == [last, last]
    kit.wait(claim.close(5.0))


def test_plain_clients_can_read_the_logs(kit):
    """A plain AMQP client can read the records of a log, for audits."""
    half = raw.half(kit, kit.queue())
    raw.append(kit, half)
    bodies = []
    with connect(kit.broker.url) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        arguments = {"x-stream-offset": "first"}
        channel.basic_consume(
            log_name(kit.group, LogKind.HALF, 0), lambda *found: bodies.append(found[3]), arguments=arguments
        )
        kit.until(lambda: connection.process_data_events(0) or bodies)
    assert bodies == [half.body]
