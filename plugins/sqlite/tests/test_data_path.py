"""Halves, releases and logs, as the port promises them."""

from __future__ import annotations

import pytest
from txcore_sqlite.consumer import read_topic

from txcore import wire
from txcore.errors import BusyError, ClosedError, ConfigError, DataLossError, MessageRejectedError, NotSentError
from txcore.records import RECORD_OVERHEAD_MAX, LogKind, OpKind, Resolution, Status


def test_halves_are_read_back_in_order_byte_for_byte(kit, backend):
    """A durable half is in its partition's log, unchanged and in order, with the time of its append."""
    halves = [kit.half(body=b"%d" % number) for number in range(300)]
    kit.append(backend, *halves)
    records = kit.log(backend, LogKind.HALF)
    assert [half.body for half in halves] == [record.body for record in records]
    assert None not in {record.appended_ms for record in records}
    assert sorted({record.position for record in records}) == [record.position for record in records]


def test_partitions_do_not_mix(kit, backend):
    """A half appears in its own partition only."""
    kit.append(backend, kit.half(partition=1), kit.half(partition=2))
    assert [len(kit.log(backend, LogKind.HALF, partition)) for partition in range(4)] == [0, 1, 1, 0]


def test_commit_publishes_every_target_with_its_headers(kit, backend):
    """A target has the user's key, body and headers, and our headers with transaction, index and writer."""
    half = kit.half(topics=("a", "b"), headers={"text": "x", "raw": b"\xff"})
    kit.append(backend, half)
    (outcome,) = kit.release(backend, kit.end(half))
    assert outcome.status is Status.DURABLE
    for index, topic in enumerate(("a", "b")):
        (received,) = read_topic(kit.path, topic)
        headers = wire.target_headers("orders", half.transaction_id, index, half.messages[0], "by", key_as_header=False)
        assert (b"k", b"payload", headers) == (received.key, received.body, received.headers)


def test_rollback_publishes_nothing(kit, backend):
    """A rolled back transaction leaves an op and no target."""
    half = kit.half()
    kit.append(backend, half)
    kit.release(backend, kit.end(half, OpKind.ROLLBACK))
    assert read_topic(kit.path, "created") == []
    assert [(OpKind.ROLLBACK, half.transaction_id)] == kit.ops(backend)


def test_targets_without_an_op(kit, backend):
    """A resolution without an op publishes the targets it lists and nothing else."""
    half = kit.half(topics=("a", "b"))
    (outcome,) = kit.release(backend, Resolution(half, None, (1,), b"", "relay"))
    assert outcome.status is Status.DURABLE
    assert (len(read_topic(kit.path, "a")), len(read_topic(kit.path, "b"))) == (0, 1)
    assert kit.ops(backend) == []


def test_discard_stores_the_parked_record_with_its_op(kit, backend):
    """A DISCARD appears together with its parked record."""
    half = kit.half()
    kit.release(backend, kit.end(half, OpKind.DISCARD, parked=b"parked bytes"))
    assert [record.body for record in kit.log(backend, LogKind.PARKED)] == [b"parked bytes"]
    assert [(OpKind.DISCARD, half.transaction_id)] == kit.ops(backend)


def test_refused_items_do_not_hurt_their_neighbours(kit, opened):
    """A half that is too large, of an unknown topic or partition is refused alone; the rest of the batch is stored."""
    backend = opened(auto_create=False, body_size_max=2_000)
    backend.create_topic("created")
    good = [kit.half() for _ in range(3)]
    large = kit.half(body=bytes(2_000 + RECORD_OVERHEAD_MAX))
    outcomes = kit.append(
        backend, good[0], large, good[1], kit.half(topics=("created", "nowhere")), kit.half(partition=9), good[2]
    )
    expected = [Status.DURABLE, Status.REFUSED, Status.DURABLE, Status.REFUSED, Status.REFUSED, Status.DURABLE]
    assert expected == [outcome.status for outcome in outcomes]
    assert [outcomes[index].error.reason for index in (1, 3)] == ["size", "topic"]
    assert outcomes[3].error.topic == "nowhere"
    assert isinstance(outcomes[4].error, ConfigError)
    assert [half.body for half in good] == [record.body for record in kit.log(backend, LogKind.HALF)]


def test_a_carried_copy_may_exceed_the_bound_on_halves(kit, opened):
    """A copy that carries its journal is stored although it is larger than the bound on halves."""
    backend = opened(body_size_max=2_000)
    (outcome,) = kit.append(backend, kit.half(body=bytes(2_000 + RECORD_OVERHEAD_MAX - 200)))
    assert outcome.status is Status.DURABLE


def test_a_release_to_an_unknown_topic_has_no_effect_at_all(kit, opened):
    """If one target is refused, none is published, all are reported missing and no op is written."""
    backend = opened(auto_create=False)
    backend.create_topic("known")
    half = kit.half(topics=("known", "unknown"))
    (outcome,) = kit.release(backend, kit.end(half))
    assert (outcome.status, outcome.missing) == (Status.REFUSED, (0, 1))
    assert isinstance(outcome.error, MessageRejectedError)
    assert read_topic(kit.path, "known") == []
    assert kit.ops(backend) == []


def test_a_topic_made_by_another_process_is_known_at_once(kit, opened):
    """A topic that another connection has created since the last transaction is found by the next one."""
    first, second = opened(auto_create=False), opened(auto_create=False)
    assert kit.append(first, kit.half(topics=("late",)))[0].status is Status.REFUSED
    second.create_topic("late")
    assert kit.append(first, kit.half(topics=("late",)))[0].status is Status.DURABLE


def test_group_settings_never_change(backend):
    """A group's number of partitions is kept; the error for a different number names both."""
    assert backend.ensure_group("orders").result(5) == 4
    with pytest.raises(ConfigError, match="4 partitions, not 5"):
        backend.ensure_group("orders", 5).result(5)
    assert backend.ensure_group("others", 2).result(5) == 2
    assert backend.ensure_group("default").result(5) == 4


def test_a_full_file_refuses_and_keeps_what_it_has(kit, opened):
    """When the file may not grow any further, halves are refused; stored halves stay readable."""
    backend = opened(page_count_max=150)
    durable = []
    for _ in range(60):
        half = kit.half(body=bytes(20_000))
        (outcome,) = kit.append(backend, half)
        if outcome.status is Status.DURABLE:
            durable.append(half.body)
        else:
            assert outcome.status is Status.REFUSED
            assert isinstance(outcome.error, NotSentError)
    assert 0 < len(durable) < 60
    assert durable == [record.body for record in kit.log(backend, LogKind.HALF)]


def test_the_queue_has_a_bound(kit, opened):
    """Beyond queue_max waiting items a batch is refused at once, and nothing of it is stored."""
    backend = opened(queue_max=10)
    with kit.lock():
        waiting = kit.Recorder([kit.half() for _ in range(8)])
        backend.append_halves(waiting)
        refused = kit.append(backend, *[kit.half() for _ in range(3)])
    assert {Status.REFUSED} == {outcome.status for outcome in refused}
    assert isinstance(refused[0].error, BusyError)
    assert {Status.DURABLE} == {outcome.status for outcome in waiting.wait()}
    assert len(kit.log(backend, LogKind.HALF)) == 8


def test_a_reader_starts_at_its_position_and_sees_later_records(kit, backend):
    """Reading starts at the given position, inclusive, and continues with records appended later."""
    kit.append(backend, *[kit.half(body=bytes([number])) for number in range(5)])
    records = kit.log(backend, LogKind.HALF)
    reader = backend.read("orders", LogKind.HALF, 0, records[3].position)
    assert records[3:] == reader.read(10)
    assert reader.read(10) == []
    kit.append(backend, kit.half(partition=1), kit.half())
    assert len(reader.read(10)) == 1


def test_fetch_returns_single_records_and_leaves_out_what_is_gone(kit, backend):
    """Fetch reads single records by position, and leaves out deleted ones and those of other logs."""
    kit.append(backend, *[kit.half() for _ in range(600)], kit.half(partition=1))
    records = kit.log(backend, LogKind.HALF)
    other = kit.log(backend, LogKind.HALF, 1)[0]
    reader = backend.read("orders", LogKind.HALF, 0)
    assert {record.position: record for record in records} == reader.fetch(
        [*[record.position for record in records], other.position, 10**9]
    ).result(5)


@pytest.mark.parametrize("deleted", [2, 5])
def test_a_start_that_was_deleted_is_data_loss(kit, backend, deleted):
    """If the record to start at, or the log's first one, was deleted, the error names the first record left."""
    kit.append(backend, *[kit.half() for _ in range(5)])
    records = kit.log(backend, LogKind.HALF)
    with kit.lock() as connection:
        connection.execute("DELETE FROM half WHERE position <= ?", (records[deleted - 1].position,))
        connection.execute("COMMIT")
    left = records[deleted:]
    for start in (None, records[1].position):
        reader = backend.read("orders", LogKind.HALF, 0, start)
        with pytest.raises(DataLossError) as caught:
            reader.read(10)
        assert caught.value.first == left[0].position if left else caught.value.first > records[-1].position
        assert left == backend.read("orders", LogKind.HALF, 0, caught.value.first).read(10)


def test_reading_a_group_that_does_not_exist_is_refused(backend):
    """An unknown group is a mistake, not an empty log."""
    with pytest.raises(ConfigError, match="never-made"):
        backend.read("never-made", LogKind.HALF, 0).read(1)
    with pytest.raises(ConfigError, match="never-made"):
        backend.load_checkpoint("never-made", 0).result(5)


def test_calls_after_close_raise(kit, backend):
    """A closed backend and its readers refuse every call; closing again is harmless."""
    reader = backend.read("orders", LogKind.HALF, 0)
    claim = backend.claim("orders", "checker")
    assert backend.close() is backend.close()
    backend.close().result(5)
    calls = (
        lambda: backend.append_halves(kit.Recorder([kit.half()])),
        lambda: backend.release(kit.Recorder([kit.end(kit.half())])),
        lambda: backend.ensure_group("orders"),
        lambda: backend.mark("orders", 0, kit.op(kit.half(), OpKind.TICK)),
        lambda: backend.read("orders", LogKind.HALF, 0),
        lambda: backend.claim("orders", "checker"),
        lambda: backend.load_checkpoint("orders", 0),
        lambda: reader.read(1),
        lambda: reader.fetch([1]),
        claim.poll,
    )
    for call in calls:
        with pytest.raises(ClosedError):
            call()


def test_close_stores_what_is_queued(kit, opened):
    """Every item handed over before close is durable after it."""
    backend = opened()
    batches = [kit.Recorder([kit.half() for _ in range(10)]) for _ in range(50)]
    for batch in batches:
        backend.append_halves(batch)
    backend.close(10).result(20)
    assert {Status.DURABLE} == {outcome.status for batch in batches for outcome in batch.wait(0)}
    assert len(kit.log(opened(), LogKind.HALF)) == 500
