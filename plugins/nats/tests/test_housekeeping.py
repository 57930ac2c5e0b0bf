"""Removed records: those that are decided, older than `keep_s` and before the checkpoint; no others."""

from __future__ import annotations

import asyncio
import base64

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers
from txcore_nats import housekeeping
from txcore_nats.markers import HEADER_END

from txcore import Message, wire
from txcore.errors import BackendTimeoutError
from txcore.history.parked_entries import closed_record
from txcore.records import Checkpoint, LogKind, OpKind, Position, Resolution
from txcore.signing import GroupKeys, SignedBackend, SigningKeys


class Later:
    """A clock that is ahead of the server's clock, so that all records seem old."""

    def __init__(self, clock, ahead_s):
        self._clock, self._ahead_ms = clock, round(ahead_s * 1000)

    def wall_ms(self):
        return self._clock.wall_ms() + self._ahead_ms

    def elapsed_s(self):
        return self._clock.elapsed_s()


def clean(kit, checkpoint, *, ahead_s=0.0, partition=0):
    """Run the housekeeper of the kit's backend with its clock *ahead_s* later."""
    backend = kit.backend
    keeper = backend._shared.housekeeper
    clock = keeper._clock
    keeper._clock = Later(clock, ahead_s)
    try:
        names = backend._groups.names(kit.group)
        cleaning = keeper.clean(names, partition, checkpoint)
        asyncio.run_coroutine_threadsafe(cleaning, backend._loop.loop).result(20)
    finally:
        keeper._clock = clock


def counts(kit):
    return tuple(kit.state(f"txc_{kit.group}_{kind}")["messages"] for kind in ("half", "op", "parked"))


def test_only_old_records_before_the_checkpoint_go(kit):
    """Old records before the checkpoint are removed, except CLAIMs; young ones and other partitions' records stay."""
    topic = kit.topic()
    raw.mark(kit, OpKind.CLAIM, b"t" * 16)
    for partition in (0, 1):
        halves = [raw.half(kit, topic, partition=partition) for _ in range(6)]
        raw.append(kit, *halves)
        raw.release(kit, *[raw.rollback(half) for half in halves])
    records = raw.halves(kit, 6)
    ops = raw.read(kit, LogKind.OP, lambda found: len(found) >= 7)
    checkpoint = Checkpoint(records[3].position, ops[4].position)
    clean(kit, checkpoint)
    assert counts(kit) == (12, 13, 0)
    clean(kit, checkpoint, ahead_s=kit.backend._options.keep_s + 60)
    assert counts(kit) == (12 - 3, 13 - 3, 0)
    left = raw.read(kit, LogKind.OP, lambda found: len(found) >= 4, start=ops[0].position)
    assert [ops[0].position, *(record.position for record in ops[4:])] == [record.position for record in left]
    clean(kit, Checkpoint(None, None), ahead_s=kit.backend._options.keep_s + 60)
    assert counts(kit) == (9, 10, 0)
    assert [record.body for record in records[3:]] == [
        record.body for record in raw.halves(kit, 3, start=records[3].position)
    ]


def test_parked_records_stay_until_their_transactions_end(kit):
    """A parked record stays, without half and ops, and can be resumed, until its transaction has ended."""
    topic = kit.topic()
    stuck = kit.orphan(Message(topic, b"stuck")).transaction_id
    ended = kit.orphan(Message(topic, b"ended")).transaction_id
    checker = kit.checker(Answers(UNKNOWN), check_max=1)
    kit.sweep(checker)
    checker.stop()
    kit.operator().resume(ended)
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.stop_checkers()
    assert [stuck] == [parked.transaction_id for parked in kit.operator().parked()]
    for partition in (0, 1):
        end = Checkpoint(Position(1 << 40), Position(1 << 40))
        clean(kit, end, ahead_s=kit.backend._options.keep_s + 60, partition=partition)
    assert counts(kit)[0] == 0
    assert counts(kit)[2] == 1
    assert [stuck] == [parked.transaction_id for parked in kit.operator().parked()]
    kit.operator().resume(stuck)
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert sorted(kit.bodies(topic)) == [b"ended", b"stuck"]
    assert kit.operator().parked() == []
    kit.history.unjudged = "what the oracle reads was removed"


def test_ops_stay_until_every_old_parked_record_was_looked_at(kit, monkeypatch):
    """Ops are removed only after all old parked records were checked; else an ended one could be resumed again."""
    monkeypatch.setattr(housekeeping, "PARKED_COUNT_MAX", 1)
    topic = kit.topic()
    ended = [raw.half(kit, topic) for _ in range(3)]
    token = b"t" * 16
    raw.append(kit, *ended)
    raw.mark(kit, OpKind.CLAIM, token)
    for each in ended:
        raw.release(kit, raw.discard(each, token))
    resumed = [raw.half(kit, topic, generation=1, of=each) for each in ended]
    raw.release(kit, *[raw.commit(each) for each in resumed])
    end, ahead_s = Checkpoint(Position(1 << 40), Position(1 << 40)), kit.backend._options.keep_s + 60
    ops = counts(kit)[1]
    for left in (2, 1, 0):
        clean(kit, end, ahead_s=ahead_s)
        assert (ops, left) == counts(kit)[1:]
    clean(kit, end, ahead_s=ahead_s)
    assert counts(kit)[1:] == (1, 0)  # the CLAIM
    kit.history.unjudged = "what the oracle reads was removed"


def test_what_a_closed_record_closes_goes_with_it_without_any_op(kit):
    """A CLOSED record is removed with the parked records that it closes; those of a later generation stay."""
    topic = kit.topic()
    half, other = raw.half(kit, topic), raw.half(kit, topic)
    again = raw.half(kit, topic, generation=2, of=half)
    closed = Resolution(half, None, (), closed_record(half.transaction_id, 1, "c", raw.now_ms()), "c")
    raw.append(kit, half, other)
    for each in (raw.discard(half), raw.discard(other), raw.discard(again), closed):
        raw.release(kit, each)
    clean(kit, Checkpoint(Position(1 << 40), Position(1 << 40)), ahead_s=kit.backend._options.keep_s + 60)
    left = raw.read(kit, LogKind.PARKED, lambda found: len(found) >= 2, start=Position(2))
    kept = [(parked.transaction_id, parked.generation) for parked in map(wire.decode_parked, (r.body for r in left))]
    assert [(other.transaction_id, 0), (half.transaction_id, 2)] == kept
    kit.history.unjudged = "what the oracle reads was removed"


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("is_done", [True, False])
def test_a_dismissed_entry_does_not_come_back_where_a_removal_failed(kit, monkeypatch, failing, is_done):
    """A dismissed record stays dismissed after a removal failed, and the next run removes it and its CLOSED record."""
    topic = kit.topic()
    half, token = raw.half(kit, topic), b"t" * 16
    raw.append(kit, half)
    raw.mark(kit, OpKind.CLAIM, token)
    raw.release(kit, raw.discard(half, token))
    closed = Resolution(half, None, (), closed_record(half.transaction_id, 0, "anna", raw.now_ms()), "anna")
    raw.release(kit, closed)
    assert kit.operator().parked() == []
    api, asked = kit.backend._shared.api, []
    call = api.call

    async def unsure(name, request=None):
        if name.startswith("STREAM.MSG.DELETE"):
            asked.append(request["seq"])
            if len(asked) == failing + 1:
                if is_done:
                    await call(name, request)
                raise BackendTimeoutError("no answer")
        return await call(name, request)

    monkeypatch.setattr(api, "call", unsure)
    end, ahead_s = Checkpoint(Position(1 << 40), Position(1 << 40)), kit.backend._options.keep_s + 60
    with pytest.raises(BackendTimeoutError):
        clean(kit, end, ahead_s=ahead_s)
    assert kit.operator().parked() == []
    clean(kit, end, ahead_s=ahead_s)
    assert (counts(kit)[2], kit.operator().parked()) == (0, [])
    kit.history.unjudged = "what the oracle reads was removed"


def test_a_checker_cleans_by_itself_and_a_successor_finds_its_way(kit):
    """A running checker with a short `keep_s` removes decided halves; the next checker starts from its checkpoint."""
    topic = kit.topic()
    assert kit.backend
    backend = kit.connect(keep_s=10)
    backend._shared.housekeeper._keep_s = 0.5
    checker = kit.checker(Answers(COMMIT), backend=backend)
    checker.start()
    kit.until(lambda: len(checker.partitions) == 2, "the partitions")
    for number in range(20):
        kit.orphan(Message(topic, b"%d" % number))
    kit.until(lambda: len(kit.bodies(topic)) == 20, "the deliveries")
    keeper = backend._shared.housekeeper

    def is_clean():
        keeper._next_s.clear()
        sent = len(kit.bodies(topic))
        kit.orphan(Message(topic, b"more"))
        kit.until(lambda: len(kit.bodies(topic)) > sent, "the next delivery")  # one by one, after each delivery
        return counts(kit)[0] < 15

    kit.until(is_clean, "the cleaning")
    checker.stop()
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert kit.operator().pending() == []
    kit.history.unjudged = "what the oracle reads was removed"


def test_a_half_log_that_fills_up_keeps_no_decided_halves(kit):
    """A half log above half of its `max_bytes` drops young halves before the checkpoint, but no ops; below it, none."""
    topic = kit.topic()
    halves = [raw.half(kit, topic, body=b"x" * 1_000) for _ in range(8)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half) for half in halves[:5]])
    records = raw.halves(kit, 8)
    backend, checkpoint = kit.backend, Checkpoint(records[5].position, Position(1))
    names = backend._groups.names(kit.group)

    def relieve():
        relieving = backend._shared.housekeeper.relieve(names, 0, checkpoint)
        asyncio.run_coroutine_threadsafe(relieving, backend._loop.loop).result(20)

    relieve()
    assert counts(kit) == (8, 5, 0)
    stream = f"txc_{kit.group}_half"
    kit.configure(stream, max_bytes=round(kit.state(stream)["bytes"] * 1.5))
    relieve()
    assert counts(kit) == (3, 5, 0)
    assert [record.body for record in records[5:]] == [
        record.body for record in raw.halves(kit, 3, start=records[5].position)
    ]
    kit.history.unjudged = "what the oracle reads was removed"


def test_old_end_markers_go(kit):
    """Old markers in the parked log are removed, although they belong to no transaction."""
    kit.connect()
    body = wire.encode_end_marker(kit.group, LogKind.PARKED, 0, b"n" * 16, "me")
    kit.publish(kit.backend._groups.names(kit.group).subject(LogKind.PARKED, 0), body, **{HEADER_END: "1"})
    end = Checkpoint(Position(1 << 40), Position(1 << 40))
    clean(kit, end)
    assert counts(kit)[2] == 1
    clean(kit, end, ahead_s=kit.backend._options.keep_s + 60)
    assert counts(kit)[2] == 0


def signed(kit):
    """Open the kit's backend for a signing group, as `txcore.connect` does with keys."""
    keys = SigningKeys({kit.group: GroupKeys(sign_with="k", keys={"k": b"k" * 32})})
    return SignedBackend(kit.backend, keys)


def clean_all(kit):
    """Remove whatever may be removed."""
    clean(kit, Checkpoint(Position(1 << 40), Position(1 << 40)), ahead_s=kit.backend._options.keep_s + 60)


@pytest.mark.parametrize("how", ["final op", "CLOSED", "genuine op of another transaction"])
def test_a_signing_groups_parked_record_is_not_removed_for_a_forged_end(kit, how):
    """What the group's key did not sign, or signed for another transaction, removes nothing; its own end does."""
    backend, topic = signed(kit), kit.topic()
    half, other = raw.half(kit, topic), raw.half(kit, topic)
    raw.append(kit, half, other, backend=backend)
    raw.release(kit, raw.discard(half), backend=backend)
    closed = closed_record(half.transaction_id, 1, "c", raw.now_ms())
    if how == "final op":
        raw.release(kit, raw.rollback(half))
    elif how == "CLOSED":
        raw.release(kit, Resolution(half, None, (), closed, "c"))
    else:
        raw.release(kit, raw.rollback(other), backend=backend)
        copy_op(kit, other.transaction_id, half.transaction_id)
    parked = counts(kit)[2] - (how == "CLOSED")
    clean_all(kit)
    assert parked == 1 == len(raw.read(kit, LogKind.PARKED, lambda found: found, backend=backend)[:1])
    raw.release(kit, Resolution(half, None, (), closed, "c"), backend=backend)
    clean_all(kit)
    assert counts(kit)[2] == (how == "CLOSED")  # the forged one itself stays, and is not believed
    kit.history.unjudged = "it holds forged records, and what the oracle reads was removed"


def copy_op(kit, source, target):
    """Append the op record of one transaction once more, as if it were about another one."""
    names = kit.backend._groups.names(kit.group)
    api = kit.backend._shared.api

    async def copied():
        found = await api.call(
            f"STREAM.MSG.GET.{names.stream(LogKind.OP)}", {"last_by_subj": names.final_subject(0, source)}
        )
        body = base64.b64decode(found["message"]["data"])
        await api.publish(names.final_subject(0, target), body, {})

    asyncio.run_coroutine_threadsafe(copied(), kit.backend._loop.loop).result(20)


def test_the_proof_of_a_copy_stays_as_long_as_the_copy(kit):
    """An undecided half may be older than `keep_s`; the TICK that its copy names is removed only after it."""
    topic = kit.topic()
    raw.mark(kit, OpKind.TICK, b"p" * 16)
    (proof,) = raw.read(kit, LogKind.OP, lambda found: len(found) >= 1)
    half = raw.half(kit, topic)
    raw.append(kit, half)
    clean(kit, Checkpoint(Position(1), Position(1 << 40)), ahead_s=kit.backend._options.keep_s + 60)
    assert counts(kit)[:2] == (1, 1)
    assert proof.body == raw.read(kit, LogKind.OP, lambda found: len(found) >= 1)[0].body
    raw.release(kit, raw.rollback(half))
    clean_all(kit)
    clean_all(kit)
    assert counts(kit)[:2] == (0, 0)
    kit.history.unjudged = "what the oracle reads was removed"
