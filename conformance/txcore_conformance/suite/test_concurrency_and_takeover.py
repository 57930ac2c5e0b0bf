"""Several checkers of one group share its partitions and take over from each other; an outdated one is harmless."""

from __future__ import annotations

from collections import Counter

import pytest

from txcore import Checker, Message
from txcore.records import OpKind, Resolution, Status
from txcore.runtime import instrumentation
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, PARTITION_COUNT, ROLLBACK, UNKNOWN, Answers, Kit, Observed

ALL = tuple(range(PARTITION_COUNT))


def _turn(checker: Checker) -> bool:
    """Run one turn of a checker's loop, as its own thread would."""
    membership = checker._membership  # noqa: SLF001 - a checker is frozen while its loop is not turned
    assert membership is not None
    membership.loop.turn()
    return True


def _claimed(checker: Checker) -> int:
    return sum(1 for each in _owners(checker) if each)


def _owners(checker: Checker) -> list[bool]:
    membership = checker._membership  # noqa: SLF001
    assert membership is not None
    return [bool(owner.tenure.is_active and owner._stored is not None) for owner in membership.owners.values()]  # noqa: SLF001


def _judged_by(*checkers: Checker) -> list[int]:
    return [each.partition for checker in checkers for each in checker.stats().partitions if each.is_claimed]


def _claim_count(kit: Kit, partition: int) -> int:
    return sum(1 for each in raw.ops(kit, partition=partition) if each.kind is OpKind.CLAIM)


def test_two_checkers_share_the_partitions_and_ask_once(kit: Kit, topic: str) -> None:
    """One of two checkers checks each half, and the half is delivered once.

    A half is checked again only if its partition went to another checker meanwhile, as on a busy machine after a lease.
    """
    listeners = (Answers(COMMIT), Answers(COMMIT))
    checkers = [
        kit.checker(listener, member=name, backend=kit.open())
        for listener, name in zip(listeners, ("a", "b"), strict=True)
    ]
    for checker in checkers:
        checker.start()
    kit.until(lambda: sorted(_judged_by(*checkers)) == list(ALL) and checkers[1].partitions)
    claim_counts = [_claim_count(kit, partition) for partition in ALL]
    for number in range(20):
        kit.orphan(Message(topic, b"%02d" % number))
    kit.until(lambda: len(kit.bodies(topic)) >= 20)
    kit.stop_checkers()
    kit.history.at_rest = True
    assert [b"%02d" % number for number in range(20)] == sorted(kit.bodies(topic))
    checked = Counter(view.transaction_id for listener in listeners for view in listener.asked)
    assert len(checked) == 20
    new_claim_counts = [_claim_count(kit, partition) - claim_counts[partition] for partition in ALL]
    for identity, count in checked.items():
        assert count <= 1 + new_claim_counts[kit.journey(identity).partition], identity


def test_a_stopping_checker_hands_over(kit: Kit, topic: str) -> None:
    """After one checker stops, the other decides the open halves and repeats nothing."""
    first, second = Answers(UNKNOWN), Answers(COMMIT)
    leaving = kit.checker(first, member="a", backend=kit.open(), check_max=100, interval_s=3_600.0)
    identities = [kit.orphan(Message(topic, b"%02d" % number)).transaction_id for number in range(10)]
    kit.sweep(leaving, lambda: len(first.asked) == 10)
    staying = kit.checker(second, member="b", backend=kit.open(), check_max=100)
    staying.start()
    leaving.stop()
    for identity in identities:  # The halves wait for the interval; their producers ask for an early check.
        half = raw.half(kit, topic)
        half.transaction_id, half.partition = identity, kit.journey(identity).partition
        nudge = raw.op(half, OpKind.NUDGE)
        assert [Status.DURABLE] == [each.status for each in raw.release(kit, Resolution(half, nudge, flush=True))]
    kit.until(lambda: len(kit.bodies(topic)) >= 10)
    staying.stop()
    kit.history.at_rest = True
    assert [b"%02d" % number for number in range(10)] == sorted(kit.bodies(topic))
    assert {1} == {half.check_times for half in second.asked}


def test_a_new_owner_asks_after_the_rest_of_the_interval(kit: Kit, topic: str) -> None:
    """A half that was asked about is not asked about again by each new owner, and uses up no check by it."""
    listener = Answers(UNKNOWN)
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    for name in ("a", "b", "c"):
        owner = kit.checker(listener, member=name, backend=kit.open(), check_max=2, interval_s=3_600.0)
        kit.sweep(owner, lambda: bool(listener.asked))
        kit.until(lambda owner=owner: owner.run_once(kit.timeout_s).partitions == PARTITION_COUNT)  # type: ignore[misc]
        owner.stop()
    assert len(listener.asked) == 1
    assert kit.journey(identity).count == 1


def test_a_checker_that_reads_a_foreign_claim_gives_up_the_partition(kit: Kit, topic: str) -> None:
    """A frozen checker that wakes after another member's CLAIM gives up the partition, and claims it again."""
    listener, observed = Answers(UNKNOWN), Observed()
    frozen = kit.checker(listener, check_max=100, interval_s=3_600.0, plugins=[observed])
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    kit.sweep(frozen, lambda: len(listener.asked) >= 1)
    partition = kit.journey(identity).partition
    # The loop is not turned now: the checker is frozen. Another member claims the partition in this time.
    other = kit.open()
    raw.mark(kit, OpKind.CLAIM, b"f" * 16, partition=partition, backend=other)
    kit.until(lambda: _turn(frozen) and observed.named(instrumentation.CHECKER_STOOD_DOWN), "the end of its ownership")
    assert [partition] == [each["partition"] for each in observed.named(instrumentation.CHECKER_STOOD_DOWN)]
    listener.answer = COMMIT
    half = raw.half(kit, topic)
    half.transaction_id, half.partition = identity, partition
    raw.release(kit, Resolution(half, raw.op(half, OpKind.NUDGE), flush=True))
    kit.sweep(frozen)  # The partition was assigned and claimed again.
    kit.history.at_rest = True
    assert [b"body"] == kit.bodies(topic)
    claims = [op.token for op in raw.ops(kit, partition=partition) if op.kind == OpKind.CLAIM]
    assert b"f" * 16 in claims
    assert claims[-1] != b"f" * 16


def test_a_frozen_checker_that_thaws_changes_nothing(kit: Kit, topic: str) -> None:
    """A frozen checker that thaws after a takeover changes no decision, and causes at most one duplicate."""
    slow, quick = Answers(COMMIT), Answers(COMMIT)
    frozen = kit.checker(slow, member="a-frozen", backend=kit.open())
    identities = [kit.orphan(Message(topic, b"%02d" % number)).transaction_id for number in range(10)]
    frozen._join()  # noqa: SLF001
    kit.until(lambda: _turn(frozen) and len(slow.asked) >= 1, "the first question")
    if not kit.harness.expire_member(kit.group, "a-frozen") and kit.harness.silent_member_max_s is None:
        pytest.skip("a silent member of this backend keeps its partitions")
    taker = kit.checker(quick, member="b-taker", backend=kit.open())
    taker.start()
    kit.until(lambda: taker.partitions, "a partition for the other checker")
    taken = set(taker.partitions)
    theirs = [identity for identity in identities if kit.journey(identity).partition in taken]
    kit.until(lambda: all(kit.journey(identity).final for identity in theirs), "the decision by the new owner")
    for _ in range(200):
        _turn(frozen)  # The checker thaws.
    frozen.stop()
    kit.until(lambda: all(kit.journey(identity).final for identity in identities), "every decision")
    taker.stop()
    if not (kit.promises.resolution_is_unique and kit.promises.atomic_release):
        kit.history.causes_default = 1
    kit.history.at_rest = True
    assert {b"%02d" % number for number in range(10)} == set(kit.bodies(topic))


def test_ops_under_an_outdated_claim_do_not_count(kit: Kit, topic: str) -> None:
    """Every reader ignores CHECKED, DECIDED and DISCARD of an outdated checker."""
    transaction = kit.orphan(Message(topic, b"body"))
    partition = kit.journey(transaction.transaction_id).partition
    half = raw.half(kit, topic, partition=partition)
    half.transaction_id = transaction.transaction_id
    raw.mark(kit, OpKind.CLAIM, b"1" * 16, partition=partition)
    raw.mark(kit, OpKind.CLAIM, b"2" * 16, partition=partition)
    for kind in (OpKind.CHECKED, OpKind.DECIDED, OpKind.DISCARD):
        op = raw.op(half, kind, b"1" * 16, count=99)
        op.decision = OpKind.ROLLBACK if kind is OpKind.DECIDED else 0
        parked = raw.discard(half, b"1" * 16).parked if kind is OpKind.DISCARD else b""
        raw.release(kit, Resolution(half, op, (), parked, raw.BY, flush=True))
    if kit.promises.resolution_is_unique:
        pytest.skip("this store keeps a DISCARD unique, and fences or trusts its writer")
    listener = Answers(COMMIT)
    kit.sweep(kit.checker(listener))
    kit.history.at_rest = True
    assert ([0], [b"body"]) == ([each.check_times for each in listener.asked], kit.bodies(topic))


def test_a_restarted_checker_continues_where_the_last_one_stopped(kit: Kit, topic: str) -> None:
    """Counts survive a restart, decided halves are not checked again, and few records are read twice."""
    first = Answers(UNKNOWN, by_body={b"done": COMMIT})
    checker = kit.checker(first, check_max=5, interval_s=3_600.0)
    kit.orphan(Message(topic, b"done"))
    identity = kit.orphan(Message(topic, b"open")).transaction_id
    kit.sweep(checker, lambda: len(first.asked) >= 2)
    checker.stop()
    assert kit.wait(kit.backend.load_checkpoint(kit.group, kit.journey(identity).partition)) is not None
    second = Answers(ROLLBACK)
    again = kit.checker(second, check_max=5)
    kit.sweep(again)
    kit.history.at_rest = True
    assert [(identity, 1)] == [(half.transaction_id, half.check_times) for half in second.asked]
    assert [b"done"] == kit.bodies(topic)
