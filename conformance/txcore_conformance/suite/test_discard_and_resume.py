"""Discards are visible and final until a resume; forced decisions pass through the log and the fence."""

from __future__ import annotations

from typing import Any

import pytest

from txcore import EndState, HalfRefusedError, Message, TransactionStateError, UsageError
from txcore.history.log_survey import existing_partitions
from txcore.history.parked_log import ParkedLog
from txcore.ids import TransactionId
from txcore.records import Forced, OpKind
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Kit, Observed


def _discarded(kit: Kit, topic: str, body: bytes = b"body") -> TransactionId:
    """Return the id of a half whose listener always answered UNKNOWN."""
    identity = kit.orphan(Message(topic, body)).transaction_id
    checker = kit.checker(Answers(UNKNOWN), check_max=2)
    kit.sweep(checker)
    checker.stop()
    return identity


def test_a_half_that_stays_unknown_is_parked_after_check_max(kit: Kit, topic: str) -> None:
    """After exactly `check_max` answers the checker parks the half with reason and topics, and delivers nothing."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    listener, observed = Answers(UNKNOWN), Observed()
    kit.sweep(kit.checker(listener, check_max=3, plugins=[observed]))
    kit.history.at_rest = True
    assert 3 == len(listener.asked)
    (parked,) = kit.operator().parked()
    assert (identity, "CHECKS_EXHAUSTED", 3, (topic,), 0) == (
        parked.transaction_id,
        parked.code,
        parked.check_times,
        parked.topics,
        parked.generation,
    )
    assert "UNKNOWN" in parked.reason
    assert 1 == len(observed.discards)
    assert [] == kit.bodies(topic)
    assert [] == kit.operator().pending()
    kinds = [op.kind for _, op in kit.journey(identity).ops]
    assert [OpKind.CHECKED, OpKind.CHECKED, OpKind.CHECKED, OpKind.DISCARD] == kinds


def test_a_resumed_half_is_asked_again_and_delivered_once(kit: Kit, topic: str) -> None:
    """A resume gives fresh checks under the next generation; COMMIT then delivers once and ends the parked entry."""
    identity = _discarded(kit, topic)
    kit.operator().resume(identity, "the service is back")
    assert [identity] == [pending.transaction_id for pending in kit.operator().pending()]
    assert [] == kit.operator().parked()
    listener: Answers = Answers(lambda: UNKNOWN if len(listener.asked) < 2 else COMMIT)
    kit.sweep(kit.checker(listener, check_max=2))
    kit.history.at_rest = True
    assert [b"body"] == kit.bodies(topic)
    journey = kit.journey(identity)
    assert (1, OpKind.COMMIT) == (journey.generation, journey.final)
    assert [0, 1] == [half.check_times for half in listener.asked]
    assert ([], []) == (kit.operator().parked(), kit.operator().pending())


def test_a_parked_log_shows_the_entries_that_are_open(kit: Kit, topic: str) -> None:
    """A reader of the parked logs alone learns of each new entry, and of its end; one that begins later agrees."""
    kit.checker(Answers(UNKNOWN)).stop()
    partitions = range(existing_partitions(kit.backend, kit.group, kit.timeout_s))
    logs = [ParkedLog(kit.backend, kit.group, partition) for partition in partitions]

    def is_read(read: list[ParkedLog], expected: dict[TransactionId, str]) -> bool:
        for log in read:
            log.poll()
        found = {identity: entry.code for log in read for identity, entry in log.entries.items()}
        return all(log.is_read for log in read) and expected == found

    kit.until(lambda: is_read(logs, {}), "empty logs")
    first, second = _discarded(kit, topic), _discarded(kit, topic)
    both = {first: "CHECKS_EXHAUSTED", second: "CHECKS_EXHAUSTED"}
    kit.until(lambda: is_read(logs, both), "two entries")
    kit.operator().resume(first, "the service is back")
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.until(lambda: is_read(logs, {second: "CHECKS_EXHAUSTED"}), "the end of the first")
    late = [ParkedLog(kit.backend, kit.group, partition) for partition in partitions]
    kit.until(lambda: is_read(late, {second: "CHECKS_EXHAUSTED"}), "what is open")
    for log in [*logs, *late]:
        log.close()


def test_resuming_twice_delivers_once(kit: Kit, topic: str) -> None:
    """A resume of a pending or an ended half is an error, so a half that is resumed twice is delivered once."""
    identity = _discarded(kit, topic)
    operator = kit.operator()
    operator.resume(identity, "once")
    with pytest.raises(TransactionStateError):
        operator.resume(identity, "twice")
    kit.sweep(kit.checker(Answers(COMMIT)))
    with pytest.raises(TransactionStateError):
        operator.resume(identity, "again")
    assert [b"body"] == kit.bodies(topic)


def test_two_operators_that_resume_at_once_deliver_once(kit: Kit, topic: str) -> None:
    """Two copies of one generation lead to one check and one delivery."""
    from txcore.clock import SystemClock  # noqa: PLC0415
    from txcore.history.resuming import next_generation  # noqa: PLC0415
    from txcore.operator.proving import prove  # noqa: PLC0415
    from txcore.runtime.drivers import BlockingBridge, run_blocking  # noqa: PLC0415

    identity = _discarded(kit, topic)
    journey = kit.journey(identity)
    bridge = BlockingBridge(kit.backend)

    def append(by: str) -> Any:
        copy = next_generation(journey, by, "both looked before either wrote")
        yield (yield from prove(kit.backend, copy, by=by, clock=SystemClock()))

    for by in ("ann", "bob"):
        run_blocking(append(by), bridge)
    listener = Answers(COMMIT)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    assert (1, [b"body"]) == (len(listener.asked), kit.bodies(topic))


def test_a_discarded_half_can_be_discarded_again(kit: Kit, topic: str) -> None:
    """A resumed half that stays unknown is parked once more, under its new generation."""
    identity = _discarded(kit, topic)
    kit.operator().resume(identity)
    kit.sweep(kit.checker(Answers(UNKNOWN), check_max=1))
    kit.history.at_rest = True
    (parked,) = kit.operator().parked()
    assert (1, 1) == (parked.generation, parked.check_times)
    assert 2 == len(kit.operator().show(identity).parked)


def test_only_parked_halves_are_resumed(kit: Kit, topic: str) -> None:
    """The operator refuses to resume a pending, a finished or an unknown id, with its state in the error."""
    pending = kit.orphan(Message(topic, b"body")).transaction_id
    operator = kit.operator()
    with pytest.raises(TransactionStateError, match="pending"):
        operator.resume(pending)
    with pytest.raises(UsageError, match="knows no transaction"):
        operator.resume(TransactionId(b"?" * 16))
    kit.sweep(kit.checker(Answers(ROLLBACK)))
    with pytest.raises(TransactionStateError, match="finished"):
        operator.resume(pending)


def test_pending_lists_undecided_halves_with_their_checks(kit: Kit, topic: str) -> None:
    """`pending` lists id, topics and answered checks, oldest first; `show` returns the whole journey."""
    identities = [kit.orphan(Message(topic, b"%d" % number)).transaction_id for number in range(3)]
    listener = Answers(UNKNOWN)
    checker = kit.checker(listener, check_max=100, interval_s=20.0)
    kit.sweep(checker, lambda: all(kit.journey(identity).ops for identity in identities))
    found = kit.operator().pending()
    assert {(identity, 1, (topic,)) for identity in identities} == {
        (half.transaction_id, half.check_times, half.topics) for half in found
    }
    assert sorted(half.born_ms for half in found) == [half.born_ms for half in found]
    assert [OpKind.CHECKED] == [op.kind for _, op in kit.operator().show(identities[0]).ops]


@pytest.mark.parametrize("kind", ["commit", "rollback"])
def test_an_operator_decides_a_parked_half(kit: Kit, topic: str, kind: str) -> None:
    """The owner executes a forced decision and records operator and reason; only a COMMIT delivers, and once."""
    identity = _discarded(kit, topic)
    operator = kit.operator()
    assert EndState.UNKNOWN is getattr(operator, kind)(identity, "the customer called").state
    listener = Answers(UNKNOWN)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    journey = operator.show(identity)
    assert (OpKind[kind.upper()], []) == (journey.final, listener.asked)
    assert ([b"body"] if kind == "commit" else []) == kit.bodies(topic)
    forced = [op for _, op in journey.ops if op.kind == OpKind.FORCE and not op.token]
    assert [("ann", "the customer called")] == [(op.by, op.reason) for op in forced]
    decided = next(op for _, op in journey.ops if op.kind == OpKind.DECIDED)
    assert (Forced.YES, "ann: the customer called") == (decided.forced, decided.reason)
    assert EndState.ALREADY_DONE is getattr(operator, kind)(identity, "again").state
    other = "rollback" if kind == "commit" else "commit"
    assert EndState.CONFLICT is getattr(operator, other)(identity, "the other way").state


def test_an_operator_decides_a_pending_half_and_waits_for_it(kit: Kit, topic: str) -> None:
    """With `wait_s` the caller gets the owner's confirmation."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    checker = kit.checker(Answers(None))
    checker.start()
    assert EndState.ACCEPTED is kit.operator().commit(identity, "it is paid", wait_s=kit.timeout_s).state
    kit.until(lambda: kit.bodies(topic) == [b"body"])


def test_a_forced_decision_needs_a_reason_and_a_known_half(kit: Kit, topic: str) -> None:
    """The operator writes no forced decision without a reason, or for an id that the group does not have."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    with pytest.raises(UsageError, match="reason"):
        kit.operator().commit(identity, "")
    with pytest.raises(UsageError, match="knows no transaction"):
        kit.operator().rollback(TransactionId(b"?" * 16), "why not")
    assert [] == kit.journey(identity).ops


def _fenced(kit: Kit, topic: str, engine: Any, fence: Any, *, commits: bool) -> TransactionId:
    transaction = kit.hasty_producer(fence=fence).begin()
    transaction.publish(Message(topic, b"body"))
    with engine.connect() as connection:
        connection.begin()
        transaction.prepare(connection)
        (connection.commit if commits else connection.rollback)()
    return transaction.transaction_id


def test_the_fence_refuses_a_forced_decision_against_it(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """The answer to a forced ROLLBACK of a committed transaction is CONFLICT, in the log too; the half is delivered."""
    identity = _fenced(kit, topic, engine, fence, commits=True)
    kit.history.committed(identity)
    operator = kit.operator()
    operator.rollback(identity, "I want it gone")
    kit.sweep(kit.checker(fence=fence))
    kit.history.at_rest = True
    replies = [op.reason for _, op in operator.show(identity).ops if op.kind == OpKind.FORCE and op.token]
    assert ["refused: the fence says COMMIT"] == replies
    assert [b"body"] == kit.bodies(topic)


def test_a_forced_decision_that_the_fence_agrees_with_is_executed(
    kit: Kit, topic: str, engine: Any, fence: Any
) -> None:
    """A forced ROLLBACK of a transaction that never committed writes a tombstone and is executed."""
    identity = _fenced(kit, topic, engine, fence, commits=False)
    kit.history.rolled_back(identity)
    operator = kit.operator()
    assert EndState.UNKNOWN is operator.rollback(identity, "it failed").state
    kit.sweep(kit.checker(fence=fence))
    assert EndState.ALREADY_DONE is operator.rollback(identity, "it failed", wait_s=kit.timeout_s).state
    final = next(op for _, op in kit.journey(identity).ops if op.kind == OpKind.ROLLBACK)
    assert Forced.YES == final.forced
    assert {2: 1} == dict(fence.stats().states)
    assert [] == kit.bodies(topic)


def test_an_override_goes_against_the_fence_and_is_recorded(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """`override_fence` sets state 4 and delivers a transaction that was rolled back; the log names the operator."""
    identity = _fenced(kit, topic, engine, fence, commits=False)
    kit.history.rolled_back(identity)
    operator = kit.operator()
    operator.commit(identity, "by contract", override_fence=True)
    kit.sweep(kit.checker(fence=fence))
    kit.history.at_rest = True
    assert [b"body"] == kit.bodies(topic)
    assert {4: 1} == dict(fence.stats().states)
    decided = next(op for _, op in operator.show(identity).ops if op.kind == OpKind.DECIDED)
    assert (Forced.OVERRIDE, "ann: by contract") == (decided.forced, decided.reason)


def test_an_undeliverable_half_is_parked_with_its_decision_and_resumed(kit: Kit, topic: str) -> None:
    """A committed half with a refusing target is parked with its missing targets, and resumed without a check."""
    other = kit.topic("refusing")
    if not kit.harness.refuse_topic(other, refuses=True):
        pytest.skip("no topic of this backend can be made to refuse")
    identity = kit.orphan(Message(topic, b"first"), Message(other, b"second")).transaction_id
    free = kit.orphan(Message(topic, b"free"))
    listener = Answers(COMMIT)
    checker = kit.checker(listener)
    kit.sweep(checker)
    (parked,) = kit.operator().parked()
    assert (identity, "UNDELIVERABLE") == (parked.transaction_id, parked.code)
    assert ((0, 1) if kit.promises.atomic_release else (1,)) == parked.missing
    assert OpKind.COMMIT == kit.journey(identity).decided
    assert b"free" in kit.bodies(topic)
    assert OpKind.COMMIT == kit.journey(free.transaction_id).final
    kit.harness.refuse_topic(other, refuses=False)
    asked = len(listener.asked)
    kit.operator().resume(identity, "the topic is back")
    kit.history.causes[identity] = 0 if kit.promises.atomic_release else 1
    kit.sweep(checker)
    kit.history.at_rest = True
    assert asked == len(listener.asked)
    assert [b"second"] == kit.bodies(other)
    assert b"first" in kit.bodies(topic)
    assert [] == kit.operator().parked()


def test_a_poison_record_cannot_be_resumed(kit: Kit) -> None:
    """The operator refuses to resume a poison record, with an error that names the poison."""
    from txcore.records import HalfRecord, Status  # noqa: PLC0415
    from txcore_conformance import raw  # noqa: PLC0415

    (outcome,) = raw.append(kit, HalfRecord(kit.group, 0, b"p" * 16, 0, b"\xc1 no half", []))
    if outcome.status is Status.REFUSED:
        pytest.skip("this backend looks into half records")
    kit.sweep(kit.checker(Answers(COMMIT)))
    (parked,) = kit.operator().parked()
    with pytest.raises((TransactionStateError, HalfRefusedError), match="poison"):
        kit.operator().resume(parked.transaction_id)
