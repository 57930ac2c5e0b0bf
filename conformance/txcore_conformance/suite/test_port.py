"""The data path of the port with halves, releases and logs, item by item."""

from __future__ import annotations

import time

import msgspec
import pytest

from txcore import wire
from txcore.errors import DataLossError, MessageRejectedError
from txcore.history.parked_entries import closed_record
from txcore.records import POSITION_MAX, LogKind, OpKind, Position, Resolution, Status
from txcore_conformance import raw
from txcore_conformance.kit import Kit, Recorder

APPEND_TIME_MAX_S = 0.05
"""Longest time, in seconds, of a call that promises a millisecond, on a busy machine."""


def _statuses(outcomes: object) -> list[Status]:
    return [each.status for each in outcomes]  # type: ignore[attr-defined]


def test_appended_halves_are_read_back_with_their_bytes_in_order_of_position(kit: Kit, topic: str) -> None:
    """DURABLE halves are in the half log of their partition, byte for byte, at ascending positions."""
    halves = [raw.half(kit, topic, body=bytes([number]) * 10) for number in range(20)]
    assert [Status.DURABLE] * 20 == _statuses(raw.append(kit, *halves))
    records = raw.halves(kit, 20)
    positions = [record.position for record in records]
    assert sorted({half.body for half in halves}) == sorted(record.body for record in records)
    assert sorted(set(positions)) == positions


def test_each_partition_has_a_log_of_its_own(kit: Kit, topic: str) -> None:
    """A half appears in the log of its partition and in no other."""
    first, second = raw.half(kit, topic, partition=0), raw.half(kit, topic, partition=1)
    raw.append(kit, first, second)
    assert [first.body] == [record.body for record in raw.halves(kit, 1, partition=0)]
    assert [second.body] == [record.body for record in raw.halves(kit, 1, partition=1)]


def test_append_halves_returns_at_once(kit: Kit, topic: str) -> None:
    """Handing over a batch does not wait for the broker."""
    raw.append(kit, raw.half(kit, topic))  # The first call creates connections and threads.
    if kit.promises.polled:
        pytest.skip("a polled backend works in the caller's thread")
    best_s = 1.0
    for _ in range(5):
        batch = Recorder([raw.half(kit, topic) for _ in range(50)])
        began_s = time.perf_counter()
        kit.backend.append_halves(batch)
        best_s = min(best_s, time.perf_counter() - began_s)
        batch.wait(kit.backend, kit.timeout_s)
    assert best_s < APPEND_TIME_MAX_S


def test_an_empty_batch_is_nothing(kit: Kit) -> None:
    """A batch without items is accepted and settles no item."""
    kit.backend.append_halves(Recorder([]))
    kit.backend.release(Recorder([]))


def test_the_largest_batch_is_accepted(kit: Kit, topic: str) -> None:
    """`batch_count_max` halves and as many releases are settled, each exactly once."""
    count = min(kit.promises.batch_count_max, 1_000)
    halves = [raw.half(kit, topic, body=b"x") for _ in range(count)]
    assert {Status.DURABLE} == set(_statuses(raw.append(kit, *halves)))
    assert {Status.DURABLE} == set(_statuses(raw.release(kit, *[raw.commit(half) for half in halves])))
    assert count == len(kit.delivered(topic))


def test_one_bad_half_does_not_hurt_its_neighbours(kit: Kit, topic: str) -> None:
    """Of a mixed batch, the oversize item is REFUSED by name and the good ones are DURABLE."""
    large = raw.half(kit, topic, body=b"x" * (kit.promises.body_size_max + 100_000))
    outcomes = raw.append(kit, raw.half(kit, topic), large, raw.half(kit, topic))
    assert [Status.DURABLE, Status.REFUSED, Status.DURABLE] == _statuses(outcomes)
    error = outcomes[1].error
    assert isinstance(error, MessageRejectedError)
    assert "size" == error.reason
    raw.append(kit, raw.half(kit, topic, body=b"last"))
    assert large.body not in [record.body for record in raw.halves(kit, 3)]


def test_a_half_for_an_unknown_topic_is_refused_before_it_is_stored(kit: Kit, topic: str) -> None:
    """The backend refuses a half whose target does not exist, names the target, and does not store the half."""
    missing = kit.harness.missing_topic()
    if missing is None:
        pytest.skip("any topic will do on this backend")
    lost = raw.half(kit, topic, missing)
    outcomes = raw.append(kit, raw.half(kit, topic), lost, raw.half(kit, topic))
    assert [Status.DURABLE, Status.REFUSED, Status.DURABLE] == _statuses(outcomes)
    error = outcomes[1].error
    assert isinstance(error, MessageRejectedError)
    assert missing == error.topic
    raw.append(kit, raw.half(kit, topic))
    assert lost.body not in [record.body for record in raw.halves(kit, 3)]


def test_a_half_of_the_largest_size_travels(kit: Kit, topic: str) -> None:
    """A half of exactly `body_size_max` is stored, with its parked record and its targets."""
    spare = len(raw.half(kit, topic, body=b"").body) + 4
    size = kit.promises.body_size_max - spare
    half = raw.half(kit, topic, body=b"x" * size)
    assert kit.promises.body_size_max - 8 <= len(half.body) <= kit.promises.body_size_max
    assert [Status.DURABLE] == _statuses(raw.append(kit, half))
    raw.mark(kit, OpKind.CLAIM, b"t" * 16)
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.discard(half, b"t" * 16)))
    resumed = raw.half(kit, topic, body=b"x" * size, generation=1, of=half)
    assert [Status.DURABLE] == _statuses(raw.append(kit, resumed))
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.commit(resumed)))
    assert [b"x" * size] == kit.bodies(topic)


def test_a_commit_publishes_targets_and_then_the_op(kit: Kit, topic: str) -> None:
    """A DURABLE release has its targets in their topics, with txcore's headers, and its op in the log."""
    other = kit.topic("other")
    half = raw.half(kit, topic, other, headers={"trace": "7"})
    raw.append(kit, half)
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.commit(half, by="attempt")))
    for index, name in enumerate((topic, other)):
        (delivered,) = kit.delivered(name)
        headers = {key: _text(value) for key, value in delivered.headers.items()}
        assert b"payload" == delivered.body
        assert b"key" in {delivered.key, headers.get(wire.HEADER_KEY, "").encode()}
        assert wire.target_id(half.transaction_id, index) == headers[wire.HEADER_ID]
        assert (kit.group, "attempt", "7") == (headers["txcore-group"], headers["txcore-by"], headers["trace"])
    assert [OpKind.COMMIT] == [each.kind for each in raw.ops(kit)]


def test_a_rollback_publishes_nothing(kit: Kit, topic: str) -> None:
    """A ROLLBACK writes its op and no target."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.rollback(half)))
    assert [OpKind.ROLLBACK] == [each.kind for each in raw.ops(kit)]
    assert [] == kit.bodies(topic)


def test_a_release_without_an_op_publishes_targets_only(kit: Kit, topic: str) -> None:
    """A release without an op, as a relay sends it, confirms its targets and appends no record to the op log."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    assert [Status.DURABLE] == _statuses(raw.release(kit, Resolution(half, None, (0,), b"", raw.BY)))
    assert [b"payload"] == kit.bodies(topic)
    assert [] == raw.ops(kit)


def test_a_release_publishes_only_the_targets_it_names(kit: Kit, topic: str) -> None:
    """A release publishes only the messages of its indices; a target's id has its message's index in the half."""
    half = raw.half(kit, topic, topic, topic)
    raw.append(kit, half)
    assert [Status.DURABLE] == _statuses(raw.release(kit, Resolution(half, None, (1,), b"", raw.BY)))
    (delivered,) = kit.delivered(topic)
    assert wire.target_id(half.transaction_id, 1) == _text(delivered.headers[wire.HEADER_ID])


def test_a_refused_target_is_named_and_writes_no_op(kit: Kit, topic: str) -> None:
    """After REFUSED by a target `missing` lists the unconfirmed targets, and the op is not written."""
    other = kit.topic("refusing")
    half = raw.half(kit, topic, other)
    good = raw.half(kit, topic)
    raw.append(kit, half, good)
    if not kit.harness.refuse_topic(other, refuses=True):
        pytest.skip("no topic of this backend can be made to refuse")
    refused, accepted = raw.release(kit, raw.commit(half), raw.commit(good))
    assert (Status.REFUSED, Status.DURABLE) == (refused.status, accepted.status)
    assert ((0, 1) if kit.promises.atomic_release else (1,)) == refused.missing
    assert [good.transaction_id] == [each.transaction_id for each in raw.ops(kit)]
    assert (1 if kit.promises.atomic_release else 2) == len(kit.delivered(topic))
    kit.harness.refuse_topic(other, refuses=False)
    assert [Status.DURABLE] == _statuses(
        raw.release(kit, Resolution(half, raw.op(half, OpKind.COMMIT), refused.missing))
    )


def test_a_target_that_does_not_exist_writes_no_op(kit: Kit, topic: str) -> None:
    """A release names the target that does not exist, and writes no op, neither before the targets nor after them."""
    missing = kit.harness.missing_topic()
    if missing is None:
        pytest.skip("any topic will do on this backend")
    kit.history.unjudged = "its target cannot be read"
    half = raw.half(kit, topic, missing)
    raw.append(kit, msgspec.structs.replace(half, messages=[]))  # A copy: its targets are not checked.
    (outcome,) = raw.release(kit, raw.commit(half))
    assert not raw.ops(kit), "an op is written although a target is refused: a crash would lose the message"
    assert Status.REFUSED is outcome.status
    assert ((0, 1) if kit.promises.atomic_release else (1,)) == outcome.missing


@pytest.mark.requires("atomic_release")
def test_an_atomic_release_shows_all_or_nothing(kit: Kit, topic: str) -> None:
    """Targets of one release never appear while another target of it is refused."""
    other = kit.topic("refusing")
    half = raw.half(kit, topic, other)
    raw.append(kit, half)
    if not kit.harness.refuse_topic(other, refuses=True):
        pytest.skip("no topic of this backend can be made to refuse")
    assert [Status.REFUSED] == _statuses(raw.release(kit, raw.commit(half)))
    assert [] == kit.bodies(topic)
    kit.harness.refuse_topic(other, refuses=False)
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.commit(half)))
    assert ([b"payload"], [b"payload"]) == (kit.bodies(topic), kit.bodies(other))


def test_a_final_op_stores_its_targets_and_the_record_that_closes_its_entry(kit: Kit, topic: str) -> None:
    """A resumed half's release is settled after its targets, its op and the record that closes its entry are stored."""
    committed = raw.half(kit, topic, topic)
    rolled_back, late = raw.half(kit, topic), raw.half(kit, topic)
    halves = (committed, rolled_back, late)
    raw.append(kit, *halves)
    closed = [closed_record(each.transaction_id, 1, "raw", raw.now_ms()) for each in halves]
    released = [
        msgspec.structs.replace(raw.commit(committed), parked=closed[0]),
        msgspec.structs.replace(raw.rollback(rolled_back), parked=closed[1]),
        Resolution(late, None, (), closed[2], "raw"),
    ]
    assert [Status.DURABLE] * 3 == _statuses(raw.release(kit, *released))
    assert sorted(closed) == sorted(r.body for r in raw.read(kit, LogKind.PARKED, lambda found: len(found) >= 3))
    assert 2 == len(kit.bodies(topic))
    ends = {each.transaction_id: each.kind for each in raw.ops(kit)}
    assert {committed.transaction_id: OpKind.COMMIT, rolled_back.transaction_id: OpKind.ROLLBACK} == ends


def test_a_discard_stores_the_parked_record_and_its_op(kit: Kit, topic: str) -> None:
    """A discard stores the parked record in its log, byte for byte, and then the DISCARD in the op log."""
    half, token = raw.half(kit, topic), b"t" * 16
    raw.append(kit, half)
    raw.mark(kit, OpKind.CLAIM, token)
    resolution = raw.discard(half, token)
    assert [Status.DURABLE] == _statuses(raw.release(kit, resolution))
    assert [resolution.parked] == [r.body for r in raw.read(kit, LogKind.PARKED, lambda found: len(found) >= 1)]
    assert [OpKind.CLAIM, OpKind.DISCARD] == [each.kind for each in raw.ops(kit)]


@pytest.mark.requires("resolution_is_unique")
def test_a_second_final_op_is_superseded_and_publishes_nothing(kit: Kit, topic: str) -> None:
    """The store refuses a second end of a transaction and names the first one, which holds."""
    first, second = raw.half(kit, topic, body=b"first"), raw.half(kit, topic, body=b"second")
    raw.append(kit, first, second)
    raw.release(kit, raw.commit(first), raw.rollback(second))
    late = raw.release(kit, raw.rollback(first), raw.commit(second), raw.commit(first))
    assert [Status.SUPERSEDED] * 3 == _statuses(late)
    assert [OpKind.COMMIT, OpKind.ROLLBACK, OpKind.COMMIT] == [each.decision for each in late]
    assert [b"first"] == kit.bodies(topic)
    assert 2 == len(raw.ops(kit))


@pytest.mark.requires("resolution_is_unique")
def test_a_discard_supersedes_ends_of_its_generation_only(kit: Kit, topic: str) -> None:
    """An end after a DISCARD of the same generation is SUPERSEDED; an end of the next generation is accepted."""
    half, token = raw.half(kit, topic), b"t" * 16
    raw.append(kit, half)
    raw.mark(kit, OpKind.CLAIM, token)
    raw.release(kit, raw.discard(half, token))
    (late,) = raw.release(kit, raw.commit(half))
    assert (Status.SUPERSEDED, OpKind.DISCARD) == (late.status, late.decision)
    resumed = raw.half(kit, topic, generation=1, of=half)
    raw.append(kit, resumed)
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.commit(resumed)))
    assert [b"payload"] == kit.bodies(topic)


@pytest.mark.requires("fences_checkers")
def test_an_outdated_claim_is_fenced_and_has_no_effect(kit: Kit, topic: str) -> None:
    """After a newer CLAIM of the partition, releases and ticks under the older token are refused whole."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    claim = kit.backend.claim(kit.group, "first")
    raw.mark(kit, OpKind.CLAIM, b"1" * 16, claim=claim)
    raw.mark(kit, OpKind.CLAIM, b"2" * 16, backend=kit.open())
    assert [Status.FENCED] == _statuses(raw.release(kit, raw.commit(half, b"1" * 16), claim=claim))
    assert Status.FENCED is raw.mark(kit, OpKind.TICK, b"1" * 16, claim=claim)[1].status
    assert [] == kit.bodies(topic)
    assert [OpKind.CLAIM, OpKind.CLAIM] == [each.kind for each in raw.ops(kit)]
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.commit(half, b"2" * 16), claim=claim))
    kit.wait(claim.close(kit.timeout_s))


def test_a_producers_end_needs_no_claim(kit: Kit, topic: str) -> None:
    """A producer's end without a claim is accepted, whichever checker owns the partition."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.mark(kit, OpKind.CLAIM, b"1" * 16)
    assert [Status.DURABLE] == _statuses(raw.release(kit, raw.commit(half)))


def test_a_tick_comes_after_every_op_queued_before(kit: Kit, topic: str) -> None:
    """Ops that a connection released before `mark` are read before the mark, merged or not."""
    halves = [raw.half(kit, topic) for _ in range(30)]
    raw.append(kit, *halves)
    released = Recorder([raw.rollback(half, flush=False) for half in halves])
    kit.backend.release(released)  # The mark does not wait for its outcomes.
    nonce, _ = raw.mark(kit, OpKind.TICK)
    stored = [each.transaction_id for each in raw.ops(kit)]
    assert {half.transaction_id for half in halves} == {*stored[: stored.index(nonce)]}
    released.wait(kit.backend, kit.timeout_s)


def test_claims_come_back_in_the_order_in_which_they_hold(kit: Kit) -> None:
    """CLAIM marks of several connections are read in one order, each with its nonce and token."""
    tokens = [bytes([number]) * 16 for number in (1, 2, 3)]
    for token in tokens:
        assert Status.DURABLE is raw.mark(kit, OpKind.CLAIM, token, backend=kit.open())[1].status
    assert [(OpKind.CLAIM, token) for token in tokens] == [(each.kind, each.token) for each in raw.ops(kit)]


def test_reading_begins_with_the_record_at_the_start(kit: Kit, topic: str) -> None:
    """A reader on any connection returns the record at its start position and all records after it."""
    raw.append(kit, *[raw.half(kit, topic) for _ in range(9)])
    records = raw.halves(kit, 9)
    other = kit.open()
    for index in (0, 4, 8):
        found = raw.read(
            kit,
            LogKind.HALF,
            lambda found, index=index: len(found) >= 9 - index,  # type: ignore[misc]
            start=records[index].position,
            backend=other,
            count_max=2,
        )
        assert [record.body for record in records[index:]] == [record.body for record in found]


def test_a_reader_sees_what_is_appended_after_it_was_opened(kit: Kit, topic: str) -> None:
    """A reader that found no record returns later ones; no record comes twice."""
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    assert [] == list(reader.read(10))
    bodies = []
    for _ in range(3):
        half = raw.half(kit, topic)
        raw.append(kit, half)
        batch = kit.until(lambda: list(reader.read(10)), "the new record")
        bodies += [record.body for record in batch]
        assert half.body == bodies[-1]
    assert 3 == len(bodies)
    reader.close()
    reader.close()


@pytest.mark.parametrize("kind", [LogKind.HALF, LogKind.OP])
def test_fetch_returns_single_records_again(kit: Kit, topic: str, kind: LogKind) -> None:
    """Records are fetched by position, in any order; positions without a record are missing from the result."""
    halves = [raw.half(kit, topic) for _ in range(5)]
    raw.append(kit, *halves)
    for half in halves if kind is LogKind.OP else ():
        raw.release(kit, raw.rollback(half))  # each one waits, so that none is merged with the next
    records = {record.position: record for record in raw.read(kit, kind, lambda found: len(found) >= 5)}
    wanted = [sorted(records)[3], min(records)]
    reader = kit.backend.read(kit.group, kind, 0)
    nowhere = (Position(max(records) + 1_000), Position(POSITION_MAX))
    found = reader.fetch([*wanted, *nowhere]).result(kit.timeout_s)
    assert {position: records[position].body for position in wanted} == {p: r.body for p, r in found.items()}
    assert {} == reader.fetch([]).result(kit.timeout_s)
    reader.close()


def test_a_start_that_is_gone_raises_with_the_first_position_left(kit: Kit, topic: str) -> None:
    """The error of a reader whose records retention deleted holds the position at which the log begins now."""
    raw.append(kit, *[raw.half(kit, topic) for _ in range(6)])
    records = raw.halves(kit, 6)
    kit.history.unjudged = "its halves are taken away"
    if not kit.harness.trim(kit.group, LogKind.HALF, 0, records[3].position):
        pytest.skip("no log of this backend can be trimmed")
    for start in (None, records[0].position, records[2].position):
        reader = kit.backend.read(kit.group, LogKind.HALF, 0, start)
        with pytest.raises(DataLossError) as raised:
            kit.until(lambda reader=reader: reader.read(10))  # type: ignore[misc]
        assert raised.value.first is not None
        assert records[2].position < raised.value.first <= records[3].position
        reader.close()
    found = raw.halves(kit, 3, start=records[3].position)
    assert [record.body for record in records[3:]] == [record.body for record in found]


@pytest.mark.requires("server_time")
def test_server_time_is_on_every_record_and_never_runs_back(kit: Kit, topic: str) -> None:
    """Halves and ops carry the broker's time of their append, ascending within a log."""
    halves = [raw.half(kit, topic) for _ in range(5)]
    for half in halves:
        raw.append(kit, half)
        raw.release(kit, raw.rollback(half))
    times = [record.appended_ms or 0 for record in raw.halves(kit, 5)]
    assert all(times)
    assert sorted(times) == times


@pytest.mark.requires("deduplicates_targets_s")
def test_a_second_target_with_the_same_id_is_dropped(kit: Kit, topic: str) -> None:
    """Where the broker removes duplicates, a repeated release is DURABLE and adds nothing."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    for _ in range(2):
        assert [Status.DURABLE] == _statuses(raw.release(kit, Resolution(half, None, (0,), b"", raw.BY)))
    assert [b"payload"] == kit.bodies(topic)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
