"""`release=transaction`: readers of committed records see all of a release or none, and no release affects others."""

from __future__ import annotations

import secrets
import threading

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from txcore_conformance import raw
from txcore_conformance.kit import Recorder, error_of
from txcore_kafka import transactions
from txcore_kafka.clients import make_producer
from txcore_kafka.options import consumer_group, topic_name

import txcore
from txcore import CheckPolicy
from txcore.errors import ConfigError
from txcore.records import ClaimEventKind, LogKind, OpKind, Status

DURABLE, REFUSED, UNKNOWN, FENCED = Status.DURABLE, Status.REFUSED, Status.UNKNOWN, Status.FENCED


def lane(kit):
    return kit.backend._releaser.lanes.of(kit.group)


def halves_of(kit, topic, count):
    halves = [raw.half(kit, topic, body=b"%03d" % number) for number in range(count)]
    assert set(raw.statuses(raw.append(kit, *halves))) == {DURABLE}
    return halves


def everything_in(kit, topic):
    """Return every record's value, aborted ones too; the list is empty if the log has only control records."""
    consumer = Consumer(
        {
            "bootstrap.servers": kit.servers,
            "group.id": "all",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(20.0)) is not None and message.error() is None:
            found.append(message.value())
        assert message is not None, "neither a record nor the end of the log came"
        assert message.error().code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()
    return found


def assigned_claim(kit, name="me", backend=None):
    """Return a claim that owns at least one partition, and the numbers of its partitions."""
    claim = (backend or kit.backend).claim(kit.group, name)
    events = kit.until(claim.poll, "an assignment")
    return claim, {event.partition for event in events if event.kind is ClaimEventKind.ASSIGNED}


def test_many_releases_share_a_transaction(together):
    """Five hundred releases need a few transactions only, and all of their ops and targets are stored."""
    topic = together.topic()
    halves = halves_of(together, topic, 500)
    before = lane(together).commit_count
    assert set(raw.statuses(raw.release(together, *[raw.commit(half) for half in halves]))) == {DURABLE}
    assert lane(together).commit_count - before <= 5
    assert len(together.bodies(topic)) == 500
    assert {each.transaction_id for each in raw.ops(together)} == {half.transaction_id for half in halves}


def test_one_refused_target_harms_no_other_release(together):
    """After one refused target the other releases are committed; no target or op of the refused one is visible."""
    topic, small = together.make_topic(), together.make_topic(max_message_bytes=2_000)
    good = halves_of(together, topic, 20)
    bad = raw.half(together, topic, small, body=bytes(3_000))
    outcomes = raw.release(together, *map(raw.commit, [*good[:10], bad, *good[10:]]))
    assert raw.statuses(outcomes) == [DURABLE] * 10 + [REFUSED] + [DURABLE] * 10
    assert outcomes[10].missing == (0, 1)
    assert together.bodies(topic) == [half.messages[0].body for half in good]
    assert together.bodies(small) == []
    assert bad.transaction_id not in {each.transaction_id for each in raw.ops(together)}


def test_readers_of_uncommitted_records_see_what_was_aborted(together):
    """Readers of uncommitted records see aborted records, so consumers must read committed records only."""
    topic, small = together.make_topic(), together.make_topic(max_message_bytes=2_000)

    def seen():
        # The driver drops a record that is not sent yet when the other one is refused; so this is repeated.
        raw.release(together, raw.commit(raw.half(together, topic, small, body=bytes(3_000))))
        return everything_in(together, topic)

    assert together.until(seen, "an aborted record") == [bytes(3_000)]
    assert together.bodies(topic) == []


def test_each_group_has_ids_of_its_own(together):
    """One call releases halves of two groups, each in a transaction whose id begins with its group and a colon."""
    topic = together.topic()
    other = type(together)(together.harness)
    other.adopt(together.backend)
    other.wait(together.backend.ensure_group(other.group, 2))
    halves = [raw.half(each, topic, body=each.group.encode()) for each in (together, other)]
    assert raw.statuses(raw.append(together, *halves)) == [DURABLE] * 2
    before = [lane(each).commit_count for each in (together, other)]
    assert raw.statuses(raw.release(together, *map(raw.commit, halves))) == [DURABLE] * 2
    assert [lane(each).commit_count for each in (together, other)] == [count + 1 for count in before]
    assert [lane(each)._name.partition(":")[0] for each in (together, other)] == [
        f"txc.{each.group}" for each in (together, other)
    ]
    assert set(together.bodies(topic)) == {half.messages[0].body for half in halves}
    other.close()


def test_a_missing_target_is_refused_without_a_transaction(together):
    """A release to a missing topic is refused before a transaction begins, so that it delays no other release."""
    before = lane(together).commit_count, lane(together).rebuilt_count
    (outcome,) = raw.release(together, raw.commit(raw.half(together, "never-made-topic")))
    assert (outcome.status, outcome.missing) == (REFUSED, (0,))
    assert (lane(together).commit_count, lane(together).rebuilt_count) == before


def test_a_claim_writes_for_its_own_partitions_only(together):
    """The backend fences releases and marks of partitions that the claim does not own; the broker accepts them."""
    topic = together.topic()
    half = halves_of(together, topic, 1)[0]
    mine, owned = assigned_claim(together, "a")
    assert owned == {0, 1}
    assert raw.statuses(raw.release(together, raw.commit(half, b"t" * 16), claim=mine)) == [DURABLE]
    mine._holdings.lose([0])
    assert raw.statuses(raw.release(together, raw.commit(half, b"t" * 16), claim=mine)) == [FENCED]
    assert raw.mark(together, OpKind.TICK, b"t" * 16, claim=mine)[1].status is FENCED
    assert together.bodies(topic) == [b"000"]
    together.wait(mine.close(10))


def test_an_older_claim_of_the_same_member_is_fenced(together):
    """A release that waits while its member claims the partition anew has no effect: the new owner has read the log."""
    topic = together.topic()
    half = halves_of(together, topic, 1)[0]
    mine, _ = assigned_claim(together, "a")
    for token in (b"1" * 16, b"2" * 16):
        assert raw.mark(together, OpKind.CLAIM, token, claim=mine)[1].status is DURABLE
    assert raw.statuses(raw.release(together, raw.commit(half, b"1" * 16), claim=mine)) == [FENCED]
    assert together.bodies(topic) == []
    assert raw.statuses(raw.release(together, raw.commit(half, b"2" * 16), claim=mine)) == [DURABLE]
    together.wait(mine.close(10))


def test_a_mark_ends_what_is_uncertain(together):
    """What a frozen broker left UNKNOWN is visible before the next mark can be read, or never."""
    backend, topic = together.connect(), together.topic()
    first, second = halves_of(together, topic, 2)
    mine, _ = assigned_claim(together, "a", backend)
    raw.mark(together, OpKind.CLAIM, b"1" * 16, claim=mine, backend=backend)
    raw.release(together, raw.commit(first, b"1" * 16), claim=mine, backend=backend)
    together.broker.pause()
    batch = Recorder([raw.commit(second, b"1" * 16)])
    backend.release(batch, mine)
    try:
        assert raw.statuses(batch.wait(backend, 10.0)) == [UNKNOWN]
    finally:
        together.broker.resume()

    def is_marked():
        return raw.mark(together, OpKind.TICK, b"1" * 16, claim=mine, backend=backend)[1].status in {DURABLE, FENCED}

    together.until(is_marked, "a mark after the thaw")
    read = [each.transaction_id for each in raw.ops(together)]
    seen = together.bodies(topic)
    raw.release(together, raw.commit(raw.half(together, topic, body=b"third")))
    assert (read.count(second.transaction_id), seen.count(b"001")) in {(0, 0), (1, 1)}
    assert together.bodies(topic) == [*seen, b"third"]
    together.wait(mine.close(10))


def test_a_generation_that_is_over_is_fenced_by_the_broker(together):
    """The broker fences the transaction of a claim whose generation has ended; no target is published."""
    topic = together.topic()
    half = halves_of(together, topic, 1)[0]
    mine, _ = assigned_claim(together, "a")
    stale = mine.group_metadata()
    other = together.connect().claim(together.group, "b")

    def is_shared():
        for event in mine.poll():
            if event.kind is ClaimEventKind.REVOKING:
                mine.give_up(event.partition)
        other.poll()
        return len(mine._holdings.held) == 1 and len(other._holdings.held) == 1 and mine._metadata is not None

    together.until(is_shared, "a share for each")
    mine._metadata = stale
    for partition in (0, 1):
        mine._holdings.assign(partition)
    assert raw.statuses(raw.release(together, raw.commit(half, b"t" * 16), claim=mine)) == [FENCED]
    assert together.bodies(topic) == []
    assert raw.statuses(raw.release(together, raw.commit(half))) == [DURABLE], "a producer needs no claim"
    for claim in (mine, other):
        together.wait(claim.close(10))


def test_a_member_that_left_is_fenced(together):
    """A release under a closed claim is FENCED."""
    half = halves_of(together, together.topic(), 1)[0]
    claim, _ = assigned_claim(together)
    together.wait(claim.close(10))
    assert raw.statuses(raw.release(together, raw.commit(half, b"t" * 16), claim=claim)) == [FENCED]


def test_a_client_that_lost_its_name_is_replaced(together):
    """A client fenced by its transactional id is replaced; a release has its op and its target, or none of them."""
    topic = together.topic()
    halves = halves_of(together, topic, 3)
    assert raw.statuses(raw.release(together, raw.commit(halves[0]))) == [DURABLE]
    usurper = together.plain_producer(**{"transactional.id": lane(together)._name})
    usurper.init_transactions(10)
    (outcome,) = raw.release(together, raw.commit(halves[1]))
    assert outcome.status in {DURABLE, UNKNOWN}
    assert lane(together).rebuilt_count >= 1
    together.until(lambda: raw.statuses(raw.release(together, raw.commit(halves[2]))) == [DURABLE], "a new client")
    ended = {each.transaction_id for each in raw.ops(together)}
    assert (halves[1].transaction_id in ended) == (b"001" in together.bodies(topic))


def test_a_frozen_broker_leaves_nothing_half_done(together):
    """A release to a frozen broker is UNKNOWN in time; later its target and op are both visible or both not."""
    backend, topic = together.connect(), together.topic()
    first, second = halves_of(together, topic, 2)
    raw.release(together, raw.commit(first), backend=backend)
    together.broker.pause()
    batch = Recorder([raw.commit(second)])
    backend.release(batch)
    try:
        outcomes = batch.wait(backend, 10.0)
    finally:
        together.broker.resume()
    assert (outcomes[0].status, outcomes[0].missing) == (UNKNOWN, (0,))
    third = raw.half(together, topic, body=b"third")
    together.until(lambda: raw.statuses(raw.release(together, raw.commit(third))) == [DURABLE], "the broker again")
    ended = {each.transaction_id for each in raw.ops(together)}
    assert (second.transaction_id in ended) == (b"001" in together.bodies(topic))


class Bounded:
    """A client of the driver whose calls to a coordinator need a timeout; without one they may never return."""

    def __init__(self, config):
        self._client = make_producer(config)

    def __getattr__(self, name):
        return getattr(self._client, name)

    def send_offsets_to_transaction(self, places, metadata, timeout_s):
        self._client.send_offsets_to_transaction(places, metadata, timeout_s)

    def commit_transaction(self, timeout_s):
        self._client.commit_transaction(timeout_s)

    def abort_transaction(self, timeout_s):
        self._client.abort_transaction(timeout_s)


def test_every_call_to_a_coordinator_is_bounded(together, monkeypatch):
    """The driver's call for a claim's offsets once never returned, after its broker had been killed and frozen."""
    monkeypatch.setattr(transactions, "make_producer", Bounded)
    backend, small = together.connect(), together.make_topic(max_message_bytes=2_000)
    (half,) = halves_of(together, together.topic(), 1)
    bad = raw.half(together, small, body=bytes(3_000))
    mine, _ = assigned_claim(together, "a", backend)
    releases = [raw.commit(each, b"t" * 16) for each in (half, bad)]
    assert raw.statuses(raw.release(together, *releases, claim=mine, backend=backend)) == [DURABLE, REFUSED]
    together.wait(mine.close(10))


def test_a_call_that_never_returns_is_given_up(together, monkeypatch):
    """Another client continues after a call of the driver that does not return, and its transaction has no effect."""
    stuck, over = threading.Event(), threading.Event()

    class Endless(Bounded):
        def send_offsets_to_transaction(self, places, metadata, timeout_s):
            if not stuck.is_set():
                stuck.set()
                over.wait()
            super().send_offsets_to_transaction(places, metadata, timeout_s)

    monkeypatch.setattr(transactions, "make_producer", Endless)
    monkeypatch.setattr(transactions, "STUCK_FACTOR", 1)
    backend, topic = together.connect(), together.topic()
    first, second = halves_of(together, topic, 2)
    mine, _ = assigned_claim(together, "a", backend)

    def release(half):
        return raw.statuses(raw.release(together, raw.commit(half, b"t" * 16), claim=mine, backend=backend))

    try:
        assert release(first) == [UNKNOWN]
        assert stuck.is_set()
        together.until(lambda: release(second) == [DURABLE], "another client")
    finally:
        over.set()
    former = [each for each in threading.enumerate() if each.name == "txcore-kafka-transact"]
    together.until(lambda: sum(each.is_alive() for each in former) == len(former) - 1, "the end of the stuck thread")
    assert together.bodies(topic) == [b"001"]
    together.wait(mine.close(10))


def test_a_half_need_not_wait_for_a_releases_deadline(together):
    """A half ends by its own timeout, although a release with a later deadline was handed over before it."""
    backend = together.connect(delivery_timeout_s="1", transaction_timeout_s="20")
    topic = together.topic()
    half = raw.half(together, topic)
    raw.append(together, half, backend=backend)
    together.broker.pause()
    released, appended = Recorder([raw.commit(half)]), Recorder([raw.half(together, topic)])
    backend.release(released)
    backend.append_halves(appended)
    try:
        assert raw.statuses(appended.wait(backend, 6.0)) == [UNKNOWN]
        assert released.outcomes == [None]
    finally:
        together.broker.resume()
    assert raw.statuses(released.wait(backend, 25.0)) == [DURABLE]


def test_an_abandoned_transaction_hides_the_log_for_a_bounded_time(together):
    """A transaction that its process abandoned delays readers of the op log until the broker ends it."""
    together.connect()
    topic = topic_name(together.group, LogKind.OP)
    producer = together.plain_producer(
        **{
            "transactional.id": secrets.token_hex(8),
            "transaction.timeout.ms": 2_500,
            "socket.timeout.ms": 2_500,
            "message.timeout.ms": 2_500,
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"abandoned", partition=0)
    producer.flush(10)
    reader = together.backend.read(together.group, LogKind.OP, 0)
    nonce, outcome = raw.mark(together, OpKind.TICK)
    assert outcome.status is DURABLE
    assert list(reader.read(10)) == []
    found = together.until(lambda: reader.read(10), "the tick after the abandoned record")
    assert [nonce in record.body for record in found] == [True]
    reader.close()


def test_closing_commits_what_is_queued(together):
    """Closing settles every queued release, and the targets of each DURABLE one are stored."""
    topic = together.topic()
    backend = together.connect()
    halves = halves_of(together, topic, 100)
    batch = Recorder([raw.commit(half, flush=False) for half in halves])
    backend.release(batch)
    together.wait(backend.close(20))
    assert None not in batch.outcomes
    stored = [half.messages[0].body for half, end in zip(halves, batch.outcomes, strict=True) if end.status is DURABLE]
    assert set(stored) <= set(together.bodies(topic))


def test_a_short_immunity_is_refused_by_name(together):
    """A producer whose immunity is not above the release time is refused, and the error names `immunity_s`."""
    backend = together.backend
    policy = CheckPolicy(immunity_s=backend.capabilities.release_time_max_s)
    with pytest.raises(ConfigError) as raised:
        txcore.TransactionProducer(backend, together.group, policy=policy)
    assert raised.value.key == "immunity_s"


def test_a_broker_that_looks_less_often_is_named(kit):
    """A URL whose `transaction_sweep_s` is below the broker's own setting is refused by name."""
    backend = kit.connect(partition_count=0, release="transaction", transaction_sweep_s="1")
    error = error_of(lambda: backend.ensure_group(kit.group, 2), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert error.key == "transaction_sweep_s"
    assert "1200" in str(error)


def test_the_group_shows_how_far_a_checker_is(together):
    """The consumer group's offsets are the checkpoints' half positions, for tools that watch its lag."""
    topic = together.topic()
    half = halves_of(together, topic, 1)[0]
    claim, _ = assigned_claim(together)
    together.wait(claim.checkpoint(0, txcore.records.Checkpoint(txcore.records.Position(0), None)))
    assert raw.statuses(raw.release(together, raw.commit(half, b"t" * 16), claim=claim)) == [DURABLE]
    consumer = Consumer({"bootstrap.servers": together.servers, "group.id": consumer_group(together.group)})
    places = [TopicPartition(topic_name(together.group, LogKind.HALF), 0)]
    assert consumer.committed(places, 10)[0].offset == 0
    consumer.close()
    together.wait(claim.close(10))
