"""`release=atomic`: targets and op in one batch; outdated checkers are fenced, and refused batches divided."""

from __future__ import annotations

import itertools
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import ROLLBACK, Answers, Recorder, error_of

import txcore
from txcore import EndState, MessageRejectedError
from txcore.errors import ConfigError, DataLossError
from txcore.records import LogKind, Op, OpKind, Resolution, Status

DURABLE, REFUSED, SUPERSEDED, FENCED = Status.DURABLE, Status.REFUSED, Status.SUPERSEDED, Status.FENCED


def test_racing_ends_leave_no_target_after_a_rollback(atomic):
    """When two backends end the same halves in opposite ways, targets exist only for halves whose COMMIT holds."""
    topic = atomic.topic()
    other = atomic.connect()
    halves = [raw.half(atomic, topic, body=b"%d" % number) for number in range(100)]
    raw.append(atomic, *halves)
    commits, rollbacks = Recorder([raw.commit(h) for h in halves]), Recorder([raw.rollback(h) for h in halves])
    atomic.backend.release(commits)
    other.release(rollbacks)
    outcomes = commits.wait(atomic.backend, atomic.timeout_s), rollbacks.wait(other, atomic.timeout_s)
    ops = raw.ops(atomic)
    finals = {op.transaction_id: op.kind for op in ops}
    assert 100 == len(ops) == len(finals)
    for half, commit, rollback in zip(halves, *outcomes, strict=True):
        assert {DURABLE, SUPERSEDED} == {commit.status, rollback.status}
        assert (commit.status is DURABLE) is (finals[half.transaction_id] == OpKind.COMMIT)
    committed = sorted(h.messages[0].body for h in halves if finals[h.transaction_id] == OpKind.COMMIT)
    assert committed == sorted(atomic.bodies(topic))


def test_one_refused_release_hurts_none_of_its_batch(atomic):
    """Superseded and refused releases of a batch end as they would alone, and the others are DURABLE."""
    topic, other = atomic.topic(), atomic.topic("refusing")
    halves = [raw.half(atomic, topic) for _ in range(100)]
    bad = raw.half(atomic, topic, other)
    raw.append(atomic, *halves, bad)
    raw.release(atomic, raw.rollback(halves[17]), raw.rollback(halves[70]))
    atomic.harness.refuse_topic(other, refuses=True)
    outcomes = raw.release(atomic, *[raw.commit(half) for half in (*halves[:40], bad, *halves[40:])])
    ends = dict(enumerate(outcomes))
    assert SUPERSEDED is ends.pop(17).status is ends.pop(71).status
    refused = ends.pop(40)
    assert (refused.status, refused.missing) == (REFUSED, (0, 1))
    assert other in str(refused.error)
    assert {DURABLE} == {end.status for end in ends.values()}
    assert len(atomic.bodies(topic)) == 98


def test_many_releases_travel_in_few_batches(atomic):
    """A thousand commits need at most ten batches, as each costs the server a sync of its disk."""
    topic = atomic.topic()
    halves = [raw.half(atomic, topic, body=b"x") for _ in range(1_000)]
    raw.append(atomic, *halves)
    before = atomic.backend._releaser._atomic._count
    assert {DURABLE} == set(raw.statuses(raw.release(atomic, *[raw.commit(half) for half in halves])))
    assert atomic.backend._releaser._atomic._count - before <= 10
    assert len(atomic.bodies(topic)) == 1_000


def test_everything_an_outdated_checker_writes_is_fenced(atomic):
    """Commits, rollbacks, discards, journal records and ticks under an older CLAIM are FENCED, and not stored."""
    topic = atomic.topic()
    halves = [raw.half(atomic, topic) for _ in range(4)]
    raw.append(atomic, *halves)
    claim = atomic.backend.claim(atomic.group, "old")
    old, new = b"1" * 16, b"2" * 16
    raw.mark(atomic, OpKind.CLAIM, old, claim=claim)
    assert raw.statuses(raw.release(atomic, raw.rollback(halves[3], old), claim=claim)) == [DURABLE]
    raw.mark(atomic, OpKind.CLAIM, new, backend=atomic.connect())
    journal = Resolution(halves[0], raw.op(halves[0], OpKind.CHECKED, old, count=1), (), b"", raw.BY, flush=True)
    releases = [raw.commit(halves[0], old), raw.rollback(halves[1], old), raw.discard(halves[2], old), journal]
    assert raw.statuses(raw.release(atomic, *releases, claim=claim)) == [FENCED] * 4
    assert FENCED is raw.mark(atomic, OpKind.TICK, old, claim=claim)[1].status
    assert atomic.bodies(topic) == []
    kinds = [op.kind for op in raw.ops(atomic)]
    assert kinds == [OpKind.CLAIM, OpKind.ROLLBACK, OpKind.CLAIM]
    parked = f"txcs.{atomic.harness.stream_name}.{atomic.group}.p.0"
    answer = atomic.api(f"STREAM.INFO.{atomic.harness.stream_name}", subjects_filter=parked)
    assert answer["state"]["subjects"] == {parked: 1}  # the marker of the log's beginning
    assert raw.statuses(raw.release(atomic, raw.commit(halves[0], new), claim=claim)) == [DURABLE]
    claim.close(1.0).result(5)


def test_a_producers_end_needs_no_claim(atomic):
    """A producer's COMMIT is DURABLE whichever checker owns the partition."""
    half = raw.half(atomic, atomic.topic())
    raw.append(atomic, half)
    raw.mark(atomic, OpKind.CLAIM, b"1" * 16)
    assert raw.statuses(raw.release(atomic, raw.commit(half))) == [DURABLE]


def test_a_transaction_with_many_targets_is_one_batch_or_refused(atomic):
    """A commit of 990 targets is one batch; a commit with more than a batch can hold is refused, and not stored."""
    topic = atomic.topic()
    fits, too_many = (raw.half(atomic, *[topic] * count, body=b"x") for count in (990, 1_001))
    raw.append(atomic, fits, too_many)
    assert raw.statuses(raw.release(atomic, raw.commit(fits))) == [DURABLE]
    (refused,) = raw.release(atomic, raw.commit(too_many))
    assert REFUSED is refused.status
    assert isinstance(refused.error, MessageRejectedError)
    assert len(atomic.bodies(topic)) == 990
    assert len(raw.ops(atomic)) == 1


def test_generations_follow_each_other_as_in_the_plain_mode(atomic):
    """After a DISCARD the next generation's COMMIT is stored; an end of generation 0, or a later end, is SUPERSEDED."""
    topic = atomic.topic()
    half = raw.half(atomic, topic)
    resumed = raw.half(atomic, topic, generation=1, of=half)
    raw.append(atomic, half, resumed)
    assert raw.statuses(raw.release(atomic, raw.discard(half))) == [DURABLE]
    (late,) = raw.release(atomic, raw.commit(half))
    assert (late.status, late.decision) == (SUPERSEDED, OpKind.DISCARD)
    assert raw.statuses(raw.release(atomic, raw.commit(resumed))) == [DURABLE]
    (late,) = raw.release(atomic, raw.rollback(resumed))
    assert (late.status, late.decision) == (SUPERSEDED, OpKind.COMMIT)
    assert atomic.bodies(topic) == [b"payload"]


def test_a_target_elsewhere_is_refused_before_the_half(atomic):
    """A half with a target outside the shared stream is refused, and the error names the stream."""
    _, topic = atomic.stream()
    (refused,) = raw.append(atomic, raw.half(atomic, topic))
    assert (REFUSED, topic) == (refused.status, refused.error.topic)
    assert atomic.harness.stream_name in str(refused.error)


def test_a_stream_that_is_missing_or_drops_is_refused(atomic):
    """A missing stream, or one with a setting that would lose ops, is refused by name; others are made ready."""

    def verdict(**config):
        name = f"own-{secrets.token_hex(4)}"
        if config:
            answer = atomic.api(f"STREAM.CREATE.{name}", **({"name": name, "subjects": [f"{name}.>"]} | config))
            assert "error" not in answer, answer
        backend = atomic.connect(partition_count=0, stream=name)
        error = error_of(lambda: backend.ensure_group(f"{atomic.group}-{name}"), 20)
        assert error is None or (isinstance(error, ConfigError) and error.key == "stream")
        return str(error or "")

    assert "does not exist" in verdict()
    assert "storage" in verdict(storage="memory")
    assert "retention" in verdict(retention="workqueue")
    assert "max_msgs would drop" in verdict(max_msgs=1_000)
    assert "max_msgs_per_subject" in verdict(max_msgs_per_subject=1)
    assert "max_age" in verdict(max_age=3_600_000_000_000)
    assert not verdict(max_msgs=1_000, discard="new")
    assert not verdict(storage="file")


def test_a_group_keeps_the_way_it_was_made(atomic, kit):
    """A plain client gets a ConfigError for an atomic group, and an atomic client for a plain group."""
    assert atomic.backend
    assert kit.backend
    for made, asked in ((atomic, kit), (kit, atomic)):
        backend = asked.connect(partition_count=0)
        error = error_of(lambda backend=backend, made=made: backend.ensure_group(made.group), 20)
        assert isinstance(error, ConfigError)


def test_a_batch_cut_off_in_the_middle_is_not_there(atomic):
    """After the connection is lost during a batch, each release is stored with all its messages or not at all."""
    topic = atomic.topic()
    backend = atomic.connect(proxied=True)
    proxy = atomic.broker.proxy
    halves = [raw.half(atomic, topic, topic, body=b"x" * 500) for _ in range(200)]
    raw.append(atomic, *halves)
    try:
        proxy.swallow_replies()
        batch = Recorder([raw.commit(half) for half in halves])
        backend.release(batch)
        proxy.cut()
        outcomes = batch.wait(backend, atomic.timeout_s)
    finally:
        proxy.forward()
    assert set(raw.statuses(outcomes)) <= {Status.UNKNOWN, DURABLE}
    ended = {op.transaction_id for op in raw.ops(atomic)}
    assert 2 * len(ended) == len(atomic.bodies(topic))
    again = raw.release(atomic, *[raw.commit(half) for half in halves])
    assert set(raw.statuses(again)) <= {SUPERSEDED, DURABLE}
    assert len(atomic.bodies(topic)) == 400


def test_an_older_server_is_recognized(started_broker):
    """With a server before NATS 2.12, without atomic batches, `ensure_group` fails and names the option `release`."""
    broker = started_broker("2.9")
    try:
        backend = txcore.connect(f"{broker.url}?release=atomic")
        error = error_of(lambda: backend.ensure_group("orders"), 20)
        backend.close(2.0).result(10)
        assert isinstance(error, ConfigError)
        assert error.key == "release"
    finally:
        broker.remove()


def test_reading_takes_only_the_partitions_ops(atomic):
    """A partition's op log does not contain targets, or ops of other partitions, from the same stream."""
    topic = atomic.topic()
    half = raw.half(atomic, topic)
    raw.append(atomic, half)
    raw.release(atomic, raw.commit(half))
    op = Op(OpKind.TICK, secrets.token_bytes(16))
    atomic.wait(atomic.backend.mark(atomic.group, 1, op))
    assert [each.kind for each in raw.ops(atomic)] == [OpKind.COMMIT]
    assert len(raw.read(atomic, LogKind.OP, lambda found: len(found) >= 1, partition=1)) == 1


def test_harnesses_that_make_topics_at_once_keep_each_others(atomic_harness):
    """Two harnesses that create topics in one stream at the same time keep each other's topics."""
    other = type(atomic_harness)(atomic_harness.broker)
    other.start()
    topics = [atomic_harness.topic(f"at-once-{secrets.token_hex(4)}") for _ in range(40)]
    with ThreadPoolExecutor(2) as pool:
        made = zip(itertools.cycle((atomic_harness, other)), topics, strict=False)
        for each in [pool.submit(harness.create_topic, topic) for harness, topic in made]:
            each.result(20)

    async def subjects():
        return (await (await other._manager()).stream_info(other.stream_name)).config.subjects

    try:
        assert set(topics) <= set(other._call(subjects()))
    finally:
        other.stop()


def test_a_producer_frozen_for_longer_than_finals_are_kept_publishes_nothing(atomic, monkeypatch):
    """A producer's late COMMIT is TOO_LATE and publishes nothing, although its ROLLBACK was purged from the op log."""
    topic = atomic.topic()
    transaction = atomic.orphan(txcore.Message(topic, b"rolled back"))
    atomic.sweep(atomic.checker(Answers(ROLLBACK)))
    core = transaction._core
    names = atomic.backend._groups.names(atomic.group)
    subject = names.final_subject(core.partition, core.transaction_id)
    assert atomic.api(f"STREAM.PURGE.{names.op_stream}", filter=subject)["purged"] == 1
    kept_s = atomic.backend.capabilities.resolution_kept_s
    clock, elapsed_s = core.context.clock, core.context.clock.elapsed_s
    monkeypatch.setattr(type(clock), "elapsed_s", lambda _: elapsed_s() + kept_s)
    assert EndState.TOO_LATE is transaction.commit().state
    monkeypatch.undo()
    assert atomic.bodies(topic) == []
    atomic.history.unjudged = "its final op was taken away"


def test_a_new_group_is_whole_in_a_stream_that_has_lost_records(atomic):
    """Records of others that were removed from the shared stream are no gap in the op log of a new group."""
    topic = atomic.topic()
    assert {DURABLE} == set(raw.statuses(raw.release(atomic, *_appended(atomic, topic, 3))))
    names = atomic.backend._groups.names(atomic.group)
    assert atomic.api(f"STREAM.PURGE.{names.op_stream}", filter=topic)["purged"] == 3
    state = atomic.state(names.op_stream)
    assert state["messages"] < state["last_seq"]
    other = type(atomic)(atomic.harness)
    try:
        assert {DURABLE} == set(raw.statuses(raw.release(other, *_appended(other, topic, 3))))
        assert len(raw.ops(other)) == 3
    finally:
        other.close()


def test_a_group_that_has_lost_ops_in_the_shared_stream_says_so(atomic):
    """Where retention has removed the first ops of a log, its reader raises DataLossError."""
    topic = atomic.topic()
    raw.release(atomic, *_appended(atomic, topic, 3))
    stream = atomic.backend._groups.names(atomic.group).op_stream
    atomic.harness.trim(atomic.group, LogKind.OP, 0, atomic.state(stream)["last_seq"])
    raw.release(atomic, *_appended(atomic, topic, 1))
    reader = atomic.backend.read(atomic.group, LogKind.OP, 0)
    with pytest.raises(DataLossError):
        atomic.until(lambda: reader.read(10))
    reader.close()


def _appended(kit, topic, count):
    """Append halves and return their commits."""
    halves = [raw.half(kit, topic, body=b"x") for _ in range(count)]
    raw.append(kit, *halves)
    return [raw.commit(half) for half in halves]
