"""Section `owner`: a producer stores its decision, and the owner of the half's partition publishes the messages."""

from __future__ import annotations

from typing import Any

import msgspec

from txcore import EndState, Message
from txcore.history.journey import Journey
from txcore.ids import TransactionId
from txcore.records import HalfRecord, OpKind, Outcome, Resolution, Status
from txcore.wire import HEADER_BY, decode_half, encode_half
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Kit


def _committed(kit: Kit, topic: str, body: bytes = b"body") -> TransactionId:
    """Return a transaction whose producer has stored its decision."""
    transaction = kit.producer(release="owner").begin()
    transaction.publish(Message(topic, body))
    transaction.prepare()
    assert EndState.ACCEPTED is transaction.commit().state
    kit.history.committed(transaction.transaction_id)
    return transaction.transaction_id


def _kinds(journey: Journey) -> list[OpKind]:
    return [OpKind(op.kind) for _, op in journey.ops]


def _op(kit: Kit, half: HalfRecord, kind: OpKind) -> Outcome:
    """Write one op of a producer; returns its outcome."""
    (outcome,) = raw.release(kit, Resolution(half, raw.op(half, kind), (), b"", raw.BY, flush=True))
    return outcome


def _raw_half(kit: Kit, topic: str) -> HalfRecord:
    """Append a half for its partition's owner; its producer does nothing more."""
    half = raw.half(kit, topic, body=b"body")
    owned = msgspec.structs.replace(decode_half(half.body), version=2, release=1, immunity_ms=0)
    half = msgspec.structs.replace(half, body=encode_half(owned))
    raw.append(kit, half)
    return half


def test_a_commit_is_stored_and_published_by_the_owner(kit: Kit, topic: str) -> None:
    """ACCEPTED says that the decision is in the log; nothing is visible before an owner publishes it, once."""
    identity = _committed(kit, topic)
    journey = kit.journey(identity)
    assert (["COMMITTED"], [], True) == ([kind.name for kind in _kinds(journey)], kit.bodies(topic), journey.is_pending)
    assert (0, OpKind.COMMIT, True) == (journey.final, journey.decided, journey.awaits_release)
    listener = Answers(ROLLBACK)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    journey = kit.journey(identity)
    assert ([OpKind.COMMITTED, OpKind.RELEASED], OpKind.COMMIT) == (_kinds(journey), journey.final)
    (target,) = kit.delivered(topic)
    assert (b"body", 0) == (target.body, len(listener.asked))
    by = target.headers[HEADER_BY]
    assert (by if isinstance(by, str) else by.decode()).startswith("c:")


def test_ends_of_one_transaction_are_told_apart(kit: Kit, topic: str) -> None:
    """A repeated commit is ALREADY_DONE, and a rollback after it a CONFLICT; a handle keeps the kind of release."""
    producer = kit.producer(release="owner")
    transaction = producer.begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    by_handle = kit.producer().attach(transaction.handle())
    assert [EndState.ACCEPTED, EndState.ALREADY_DONE] == [by_handle.commit().state for _ in range(2)]
    assert EndState.CONFLICT is by_handle.rollback().state
    kit.history.committed(transaction.transaction_id)
    assert ([OpKind.COMMITTED], []) == (_kinds(kit.journey(transaction.transaction_id)), kit.bodies(topic))
    kit.sweep(kit.checker(Answers(UNKNOWN)))
    assert [b"body"] == kit.bodies(topic)


def test_a_rollback_is_an_end(kit: Kit, topic: str) -> None:
    """A ROLLBACK closes the half at once, and a COMMITTED after it changes nothing."""
    half = _raw_half(kit, topic)
    assert Status.DURABLE is _op(kit, half, OpKind.ROLLBACK).status
    late = _op(kit, half, OpKind.COMMITTED)
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert [] == kit.bodies(topic)
    assert OpKind.ROLLBACK == kit.journey(TransactionId(half.transaction_id)).final
    if kit.promises.resolution_is_unique:
        assert (Status.SUPERSEDED, OpKind.ROLLBACK) == (late.status, late.decision)
    else:
        kit.history.unjudged = "this store cannot refuse the second end (R7)"


def test_a_rollback_after_a_committed_changes_nothing(kit: Kit, topic: str) -> None:
    """The first final op holds: what was committed is published, whatever its producer writes later."""
    half = _raw_half(kit, topic)
    assert Status.DURABLE is _op(kit, half, OpKind.COMMITTED).status
    late = _op(kit, half, OpKind.ROLLBACK)
    if kit.promises.resolution_is_unique:
        assert (Status.SUPERSEDED, OpKind.COMMITTED) == (late.status, late.decision)
    else:
        kit.history.unjudged = "this store cannot refuse the second end (R7)"
    kit.sweep(kit.checker(Answers(ROLLBACK)))
    assert [b"body"] == kit.bodies(topic)
    assert OpKind.COMMIT == kit.journey(TransactionId(half.transaction_id)).final


def test_a_committed_after_a_discard_leaves_the_half_parked(kit: Kit, topic: str) -> None:
    """A store that keeps resolutions unique refuses it; elsewhere the half stays parked, and a resume publishes it."""
    half = _raw_half(kit, topic)
    checker = kit.checker(Answers(UNKNOWN), check_max=1)
    kit.sweep(checker)
    checker.stop()
    identity = TransactionId(half.transaction_id)
    late = _op(kit, half, OpKind.COMMITTED)
    if kit.promises.resolution_is_unique:
        assert (Status.SUPERSEDED, OpKind.DISCARD) == (late.status, late.decision)
        return
    listener = Answers(ROLLBACK)
    checker = kit.checker(listener)
    kit.sweep(checker)
    journey = kit.journey(identity)
    assert (True, True, []) == (journey.is_parked, journey.awaits_release, kit.bodies(topic))
    assert [identity] == [each.transaction_id for each in kit.operator().parked()]
    kit.operator().resume(identity, "it was committed")
    kit.sweep(checker)
    assert ([b"body"], []) == (kit.bodies(topic), listener.asked)
    assert [] == kit.operator().parked()


def test_an_owner_commits_before_it_publishes_what_it_decides(kit: Kit, topic: str) -> None:
    """The listener's COMMIT is journaled, then written as COMMITTED and read back, before the targets are published."""
    transaction = kit.orphan(Message(topic, b"body"), release="owner")
    kit.history.committed(transaction.transaction_id)
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.history.at_rest = True
    assert [b"body"] == kit.bodies(topic)
    kinds = _kinds(kit.journey(transaction.transaction_id))
    assert [OpKind.DECIDED, OpKind.COMMITTED, OpKind.RELEASED] == kinds


def test_the_fence_decides_for_the_owner(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """In the database style the owner publishes what the producer committed, and what it could not report."""
    producer = kit.hasty_producer(fence=fence, release="owner")
    with producer.transaction(engine) as transaction:
        transaction.publish(Message(topic, b"reported"))
    assert transaction.result is not None
    lost = producer.begin()
    lost.publish(Message(topic, b"lost"))
    with engine.connect() as connection:
        connection.begin()
        lost.prepare(connection)
        connection.commit()
    for each in (transaction, lost):
        kit.history.committed(each.transaction_id)
    kit.sweep(kit.checker(fence=fence))
    kit.history.at_rest = True
    assert [b"lost", b"reported"] == sorted(kit.bodies(topic))
    assert [OpKind.COMMITTED, OpKind.RELEASED] == _kinds(kit.journey(lost.transaction_id))


def test_groups_may_mix_both_kinds_of_release(kit: Kit, topic: str) -> None:
    """Messages of producers that release themselves are visible at once, those for an owner once it has published."""
    results = kit.producer(Answers(), release="owner").send_many(
        (Message(topic, b"o%d" % n), COMMIT) for n in range(20)
    )
    assert {EndState.ACCEPTED} == {result.end.state for result in results if result.end}
    for result in results:
        kit.history.committed(result.transaction_id)
    assert [] == kit.bodies(topic)
    own = kit.producer(Answers(local=COMMIT)).send_message_in_transaction(Message(topic, b"own"))
    kit.history.committed(own.transaction_id)
    assert [b"own"] == kit.bodies(topic)
    kit.sweep(kit.checker(Answers(ROLLBACK)))
    kit.history.at_rest = True
    assert sorted([b"own", *(b"o%d" % n for n in range(20))]) == sorted(kit.bodies(topic))
