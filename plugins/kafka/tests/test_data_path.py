"""Halves, targets and ops on the wire: refusals, merged records, and the partitions of keys."""

from __future__ import annotations

import secrets

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import Recorder
from txcore_kafka.options import topic_name
from txcore_kafka.producing import Producing

from txcore import wire
from txcore.errors import BusyError, MessageRejectedError
from txcore.records import LogKind, OpKind, Resolution, Status

DURABLE, REFUSED, UNKNOWN = Status.DURABLE, Status.REFUSED, Status.UNKNOWN


def target_only(half):
    return Resolution(half, None, range(len(half.messages)), b"", raw.BY)


def test_a_topic_may_be_made_after_it_was_missed(kit):
    """A half for a missing topic is refused and not stored; halves are stored soon after the topic is created."""
    name = f"late-{secrets.token_hex(4)}"
    (refused,) = raw.append(kit, raw.half(kit, name))
    assert (refused.status, refused.error.topic, refused.error.reason) == (REFUSED, name, "topic")
    assert kit.offsets(topic_name(kit.group, LogKind.HALF)) == (0, 0)
    kit.make_topic(name)
    kit.until(lambda: raw.statuses(raw.append(kit, raw.half(kit, name))) == [DURABLE], "the topic to be known")


@pytest.fixture
def sent(monkeypatch):
    """The numbers of records that were handed to a client together, in order."""
    counts, send_all = [], Producing.send_all

    def watched(self, report, numbers, records):
        counts.append(len(numbers))
        return send_all(self, report, numbers, records)

    monkeypatch.setattr(Producing, "send_all", watched)
    return counts


def test_many_halves_of_one_new_topic_ask_once(kit, topic, sent, monkeypatch):
    """A thousand halves for one new topic ask the broker for it once, and are handed to the client together."""
    backend = kit.backend
    asked = []
    look = backend._control.look

    def watched(topics, *needed):
        asked.append(topics)
        return look(topics, *needed)

    monkeypatch.setattr(backend._control, "look", watched)
    assert set(raw.statuses(raw.append(kit, *[raw.half(kit, topic) for _ in range(1_000)]))) == {DURABLE}
    assert (asked, [count for count in sent if count]) == ([[topic]], [1_000])


def test_many_releases_to_a_topic_not_seen_yet_are_sent_together(kit, topic, sent):
    """A process that has just begun, as a new checker, asks once for what all of its releases need."""
    halves = raw.appended(kit, topic, 100)
    backend = kit.harness.open()
    sent.clear()
    outcomes = raw.release(kit, *[raw.commit(half) for half in halves], backend=backend)
    assert (set(raw.statuses(outcomes)), [count for count in sent if count]) == ({DURABLE}, [100])
    kit.wait(backend.close(5.0))


@pytest.mark.parametrize("size", [1_800, 3_000])
def test_a_message_larger_than_its_topic_takes_is_refused_before_the_half(kit, size):
    """A half is refused if its message, with headers, is larger than the topic's own `max.message.bytes`."""
    small = kit.make_topic(max_message_bytes=2_000)
    headers = {"name": "x" * 500} if size < 2_000 else None
    refused, stored = raw.append(
        kit, raw.half(kit, small, body=bytes(size), headers=headers), raw.half(kit, small, body=bytes(1_000))
    )
    assert (refused.status, stored.status) == (REFUSED, DURABLE)
    assert (refused.error.reason, refused.error.topic) == ("size", small)
    assert kit.offsets(topic_name(kit.group, LogKind.HALF)) == (0, 1)


def test_neighbours_of_an_oversize_record_are_stored(kit):
    """The limit holds for batches, which the driver does not split; still each message that fits alone is stored."""
    small = kit.make_topic(max_message_bytes=2_000)
    halves = [raw.half(kit, small, body=b"%03d" % number + bytes(300)) for number in range(40)]
    large = raw.half(kit, small, body=bytes(3_000))
    outcomes = raw.release(kit, *map(target_only, [*halves[:20], large, *halves[20:]]))
    assert raw.statuses(outcomes) == [DURABLE] * 20 + [REFUSED] + [DURABLE] * 20
    assert outcomes[20].missing == (0,)
    assert sorted(body[:3] for body in kit.bodies(small)) == [b"%03d" % number for number in range(40)]


def test_a_topic_that_takes_little_gets_its_messages_one_by_one(kit):
    """A topic with a low limit, known from the half's check, gets each message in a batch of its own."""
    small = kit.make_topic(max_message_bytes=2_000)
    halves = [raw.half(kit, small, body=b"%03d" % number + bytes(300)) for number in range(40)]
    raw.append(kit, *halves)
    assert set(raw.statuses(raw.release(kit, *map(target_only, halves)))) == {DURABLE}
    assert len(kit.bodies(small)) == 40
    assert small in kit.backend._targets.small


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "ümlaut", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(kit, name):
    """A half is refused if the name of its target topic is invalid on Kafka."""
    (refused,) = raw.append(kit, raw.half(kit, name))
    assert refused.status is REFUSED
    assert isinstance(refused.error, MessageRejectedError)


def test_our_own_topics_are_refused_as_targets(kit):
    """A half whose target is a topic of txcore or of Kafka itself is refused."""
    for name in (topic_name(kit.group, LogKind.HALF), topic_name("other", LogKind.OP), "__consumer_offsets"):
        (refused,) = raw.append(kit, raw.half(kit, name))
        assert (refused.status, refused.error.topic) == (REFUSED, name)


@pytest.mark.parametrize("header", ["sur\udc80rogate", "nul\0"])
def test_a_header_that_kafka_cannot_carry_is_refused(kit, topic, header):
    """A half is refused if a header's name is not valid Unicode or holds a NUL."""
    raw.append(kit, raw.half(kit, topic))
    half = raw.half(kit, topic)
    half.messages[0].headers[header] = "value"
    (refused,) = raw.append(kit, half)
    assert (refused.status, refused.error.reason) == (REFUSED, "headers")


@pytest.mark.parametrize("form", ["kit", "together"])
@pytest.mark.parametrize("value", ["a\0b", "\0", b"a\0b", "", b"", "ä\0ö"])
def test_a_headers_value_arrives_whole(form, value, request):
    """A header's value arrives whole, as text or bytes, even with NUL in it."""
    kit = request.getfixturevalue(form)
    topic = kit.topic()
    half = raw.half(kit, topic, headers={"name": value, "other": "text"})
    raw.append(kit, half)
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    (delivered,) = kit.delivered(topic)
    expected = value if isinstance(value, bytes) else value.encode()
    assert (delivered.headers["name"], delivered.headers["other"]) == (expected, b"text")


def test_ops_of_many_releases_share_records(kit, topic):
    """Ops are merged into records of up to 4 KB, in the order of their releases; no op is lost."""
    halves = [raw.half(kit, topic) for _ in range(500)]
    raw.append(kit, *halves)
    assert set(raw.statuses(raw.release(kit, *[raw.rollback(half, flush=False) for half in halves]))) == {DURABLE}
    assert [each.transaction_id for each in raw.ops(kit)] == [half.transaction_id for half in halves]
    records = raw.read(kit, LogKind.OP, lambda found: sum(len(wire.decode_ops(r.body)) for r in found) > 500)
    assert 5 <= len(records) <= 30


def test_a_lone_op_leaves_by_itself(kit, topic):
    """A single op is sent although no caller waits for it and no later call follows."""
    expected = []
    for _ in range(3):
        half = raw.half(kit, topic)
        raw.append(kit, half)
        raw.release(kit, raw.rollback(half, flush=False))
        expected.append(half.transaction_id)
        found = raw.read(kit, LogKind.OP, lambda found: len(found) == len(expected))
        assert [wire.decode_ops(record.body)[0].transaction_id for record in found] == expected


def test_flushed_ops_of_one_batch_share_a_record(kit, topic):
    """The flushed ops of a checker's batch are stored in a few records, not in one record for each op."""
    halves = [raw.half(kit, topic) for _ in range(50)]
    raw.append(kit, *halves)
    assert set(raw.statuses(raw.release(kit, *[raw.rollback(half) for half in halves]))) == {DURABLE}
    low, high = kit.offsets(topic_name(kit.group, LogKind.OP))
    assert 1 <= high - low <= 5


def test_a_mark_comes_after_the_ops_that_were_queued_before_it(kit, topic):
    """A TICK is stored after the queued ops, so a checker that reads its tick has read the op of each half."""
    halves = [raw.half(kit, topic) for _ in range(20)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half, flush=False) for half in halves])
    nonce, outcome = raw.mark(kit, OpKind.TICK)
    assert outcome.status is DURABLE

    def ids_of(records):
        return [each.transaction_id for record in records for each in wire.decode_ops(record.body)]

    records = raw.read(kit, LogKind.OP, lambda found: len(ids_of(found)) > len(halves))
    assert ids_of(records) == [*(half.transaction_id for half in halves), nonce]


def test_ops_are_in_the_partition_of_their_half(kit, topic):
    """Each op is stored in the op log of its half's partition, also when ops are merged."""
    halves = [raw.half(kit, topic, partition=number % 2) for number in range(20)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half, flush=False) for half in halves])
    for partition in range(2):
        own = [half.transaction_id for half in halves if half.partition == partition]
        assert [each.transaction_id for each in raw.ops(kit, partition=partition)] == own


def test_keys_go_where_java_clients_put_them(kit):
    """The hash is murmur2, so that txcore's messages go to the same partitions as other clients' messages."""
    wide = kit.make_topic(partition_count=7)
    keys = [b"", b"k", b"ke", b"key", b"key-%d" % 4, *(b"customer-%d" % number for number in range(60))]
    halves = [raw.half(kit, wide, body=key, key=key) for key in keys]
    raw.append(kit, *halves)
    assert set(raw.statuses(raw.release(kit, *map(target_only, halves)))) == {DURABLE}
    partitions = {each.body: each.partition for each in kit.delivered(wide)}
    assert partitions == {key: (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys}


def murmur2(data):
    """Return Kafka's hash of *data*, as in org.apache.kafka.common.utils.Utils."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    end = len(data) // 4 * 4
    for start in range(0, end, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    if data[end:]:
        h = (h ^ int.from_bytes(data[end:], "little")) * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15


def test_halves_and_ops_have_no_headers(kit, topic):
    """Halves and ops have all fields in the body; headers would take twice the time."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.commit(half))
    for kind in (LogKind.HALF, LogKind.OP):
        name = topic_name(kit.group, kind)
        assert [each.headers for each in kit.delivered(name)] == [{}]


def test_a_target_that_vanished_is_refused_and_writes_no_op(kit):
    """A release to a deleted topic is refused and writes no op, and the topic is not created again."""
    gone = kit.make_topic()
    half = raw.half(kit, gone)
    raw.append(kit, half)
    kit.delete(gone)
    kit.until(lambda: kit.admin.list_topics(gone, 10).topics[gone].error, "the topic to go")
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [REFUSED], "the refusal")
    assert OpKind.COMMIT not in [each.kind for each in raw.ops(kit)]
    assert kit.admin.list_topics(gone, 10).topics[gone].error is not None


def test_more_than_the_queue_holds_is_refused_at_once(hurt):
    """While the broker is frozen, halves above `queue_max` are REFUSED at once, and the others UNKNOWN in time."""
    backend = hurt.connect(queue_max="1000", delivery_timeout_s="4")
    topic = hurt.topic()
    raw.append(hurt, raw.half(hurt, topic), backend=backend)
    hurt.broker.pause()
    batch = Recorder([raw.half(hurt, topic) for _ in range(3_000)])
    backend.append_halves(batch)
    # A slow machine may need longer than the delivery timeout for the batch, so that some are UNKNOWN by now.
    refused = [outcome for outcome in batch.outcomes if outcome is not None and outcome.status is REFUSED]
    assert len(refused) >= 1_900
    assert {type(outcome.error) for outcome in refused} == {BusyError}
    outcomes = batch.wait(backend, 10.0)
    hurt.broker.resume()
    assert {outcome.status for outcome in outcomes} == {REFUSED, UNKNOWN}
    hurt.until(
        lambda: raw.statuses(raw.append(hurt, raw.half(hurt, topic), backend=backend)) == [DURABLE], "the broker again"
    )
