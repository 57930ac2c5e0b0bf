"""Items of concurrent transactions leave together, each with a waiter of its own."""

from __future__ import annotations

from txcore.errors import BackendUnavailableError
from txcore.records import DURABLE, Outcome, Status
from txcore.runtime.batching import Group, Outbox, hand_over


class Waiter:
    """A waiter that keeps its outcomes."""

    def __init__(self):
        self.outcomes = []

    def settle(self, outcome):
        self.outcomes.append(outcome)


def test_each_waiter_gets_the_outcome_of_its_own_item():
    """Each waiter gets the outcome of its own item, in whatever order the batch is settled."""
    waiters = [Waiter(), Waiter()]
    group, refused = Group("ab", waiters), Outcome(Status.REFUSED)
    group.settle(1, refused)
    group.settle(0, DURABLE)
    assert [[DURABLE], [refused]] == [waiter.outcomes for waiter in waiters]


def test_a_backend_that_takes_nothing_refuses_each_item():
    """If the submitting call raises, each item is refused with that error."""
    error = BackendUnavailableError("closed")

    def take(batch):
        raise error

    waiters = [Waiter(), Waiter()]
    hand_over(Group("ab", waiters), take)
    assert [[(Status.REFUSED, error)]] * 2 == [
        [(each.status, each.error) for each in waiter.outcomes] for waiter in waiters
    ]


def test_what_was_collected_leaves_in_bounded_batches_and_once():
    """More items than the backend takes at once leave as several batches, in order."""
    outbox, waiters = Outbox(Group), [Waiter() for _ in range(5)]
    for item, waiter in zip("abcde", waiters, strict=True):
        outbox.put(item, waiter)
    batches = []
    outbox.hand_over(batches.append, 2)
    assert [["a", "b"], ["c", "d"], ["e"]] == [batch.items for batch in batches]
    batches[2].settle(0, DURABLE)
    assert [[], [], [], [], [DURABLE]] == [waiter.outcomes for waiter in waiters]
    outbox.hand_over(batches.append, 2)
    assert 3 == len(batches)
