"""The rules that the store itself enforces: one end per transaction, one owner per partition."""

from __future__ import annotations

import pytest
from txcore_sqlite.consumer import read_topic

from txcore.records import OpKind, Resolution, Status

COMMIT, ROLLBACK, DISCARD = OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD


@pytest.mark.parametrize("is_one_batch", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "is_stored"),
    [
        ((COMMIT, 0), (COMMIT, 0), False),
        ((COMMIT, 0), (ROLLBACK, 0), False),
        ((ROLLBACK, 0), (COMMIT, 0), False),
        ((ROLLBACK, 0), (COMMIT, 1), False),
        ((COMMIT, 1), (ROLLBACK, 0), False),
        ((COMMIT, 0), (DISCARD, 0), False),
        ((ROLLBACK, 0), (DISCARD, 1), False),
        ((DISCARD, 0), (COMMIT, 0), False),
        ((DISCARD, 0), (DISCARD, 0), False),
        ((DISCARD, 1), (COMMIT, 0), False),
        ((DISCARD, 0), (DISCARD, 1), True),
        ((DISCARD, 0), (COMMIT, 1), True),
        ((DISCARD, 0), (ROLLBACK, 1), True),
    ],
)
def test_the_first_end_of_a_transaction_holds(kit, backend, first, second, is_stored, is_one_batch):
    """A final op ends all generations, a DISCARD those up to its own; the second end gets the first one's decision."""
    half = kit.half()
    ends = [kit.end(half, kind, generation=generation) for kind, generation in (first, second)]
    outcomes = kit.release(backend, *ends) if is_one_batch else [kit.release(backend, end)[0] for end in ends]
    assert outcomes[0].status is Status.DURABLE
    if is_stored:
        assert outcomes[1].status is Status.DURABLE
    else:
        assert (Status.SUPERSEDED, first[0]) == (outcomes[1].status, outcomes[1].decision)
    kinds = [first[0], second[0]] if is_stored else [first[0]]
    assert kinds == [kind for kind, _ in kit.ops(backend)]
    assert kinds.count(COMMIT) == len(read_topic(kit.path, "created"))


def test_a_final_after_a_resumed_discard_still_ends_everything(kit, backend):
    """After DISCARD and a final op of the next generation, every end gets the final op's decision."""
    half = kit.half()
    kit.release(backend, kit.end(half, DISCARD), kit.end(half, ROLLBACK, generation=1))
    outcomes = kit.release(backend, *[kit.end(half, COMMIT, generation=generation) for generation in (0, 1, 2)])
    assert [(outcome.status, outcome.decision) for outcome in outcomes] == [(Status.SUPERSEDED, ROLLBACK)] * 3


@pytest.mark.parametrize("kind", [OpKind.CHECKED, OpKind.DECIDED, OpKind.NUDGE, OpKind.FORCE])
def test_journal_ops_may_repeat(kit, backend, kind):
    """Ops that end nothing are stored as often as they are written, even after a final op."""
    half = kit.half()
    outcomes = kit.release(backend, kit.end(half, kind), kit.end(half, kind), kit.end(half), kit.end(half, kind))
    assert {Status.DURABLE} == {outcome.status for outcome in outcomes}
    assert [kind, kind, COMMIT, kind] == [each for each, _ in kit.ops(backend)]


def test_groups_do_not_share_transaction_ids(kit, backend):
    """The same id in another group is another transaction."""
    backend.ensure_group("others", 1).result(5)
    half = kit.half()
    other = kit.half(of=half)
    other.group = "others"
    outcomes = kit.release(backend, kit.end(half), kit.end(other, ROLLBACK))
    assert [outcome.status for outcome in outcomes] == [Status.DURABLE, Status.DURABLE]


def test_a_superseded_claim_writes_nothing(kit, opened):
    """After a newer CLAIM, of any process, each release and mark with the older token is FENCED."""
    old, new = opened(), opened()
    half = kit.half()
    old_claim, new_claim = old.claim("orders", "old"), new.claim("orders", "new")
    kit.mark(old, OpKind.CLAIM, b"old", claim=old_claim)
    assert kit.mark(old, OpKind.TICK, b"old", claim=old_claim).status is Status.DURABLE
    kit.mark(new, OpKind.CLAIM, b"new", claim=new_claim)
    ends = [kit.end(half, COMMIT, token=b"old"), kit.end(half, DISCARD, token=b"old", parked=b"p")]
    assert [outcome.status for outcome in kit.release(old, *ends, claim=old_claim)] == [Status.FENCED] * 2
    assert kit.mark(old, OpKind.TICK, b"old", claim=old_claim).status is Status.FENCED
    assert read_topic(kit.path, "created") == []
    assert [kind for kind, _ in kit.ops(new)] == [OpKind.CLAIM, OpKind.TICK, OpKind.CLAIM]
    (outcome,) = kit.release(new, kit.end(half, token=b"new"), claim=new_claim)
    assert outcome.status is Status.DURABLE


def test_a_claim_owns_its_own_partition_only(kit, backend):
    """The token of one partition's CLAIM is FENCED in another partition."""
    claim = backend.claim("orders", "checker")
    kit.mark(backend, OpKind.CLAIM, b"one", partition=1, claim=claim)
    outcomes = kit.release(
        backend,
        kit.end(kit.half(partition=1), token=b"one"),
        kit.end(kit.half(partition=2), token=b"one"),
        claim=claim,
    )
    assert [outcome.status for outcome in outcomes] == [Status.DURABLE, Status.FENCED]


def test_producers_are_not_fenced(kit, backend):
    """A producer needs no token: it ends its transaction whichever member owns the partition."""
    kit.mark(backend, OpKind.CLAIM, b"owner")
    (outcome,) = kit.release(backend, kit.end(kit.half()))
    assert outcome.status is Status.DURABLE


def test_a_mark_comes_after_the_releases_before_it(kit, backend):
    """A TICK comes in the log after every op that was handed over before it."""
    batches = [kit.Recorder([kit.end(kit.half()) for _ in range(20)]) for _ in range(20)]
    for batch in batches:
        backend.release(batch)
    kit.mark(backend, OpKind.TICK, b"")
    kinds = [kind for kind, _ in kit.ops(backend)]
    assert (len(kinds), kinds[-1]) == (401, OpKind.TICK)


def test_repeated_parts_of_a_release_are_published_again(kit, backend):
    """Targets released twice without an op are published twice with the same id, by which consumers drop duplicates."""
    half = kit.half()
    relay = Resolution(half, None, (0,), b"", "relay")
    kit.release(backend, relay, relay)
    ids = [received.headers["txcore-id"] for received in read_topic(kit.path, "created")]
    assert len(ids) == 2
    assert len(set(ids)) == 1
