"""A batch under way: each item ends once, an op comes after all records of its item, and a deadline ends the rest."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from txcore.backends.batch_progress import RECORD_BITS, HalfProgress, ReleaseProgress, record_counts
from txcore.errors import BackendTimeoutError, ConfigError, UsageError
from txcore.port import SettlesEach
from txcore.records import DURABLE, HalfRecord, Op, OpKind, Outcome, Resolution, Status, TargetMessage

LATE = BackendTimeoutError("no answer")
REFUSED = Outcome(Status.REFUSED, ConfigError("no", key="url"))
UNKNOWN = Outcome(Status.UNKNOWN, LATE)


class Batch(SettlesEach):
    """A batch that keeps its outcomes, and refuses a second one."""

    def __init__(self, items):
        self.items = items
        self.outcomes = {}

    def settle(self, index, outcome):
        assert index not in self.outcomes
        self.outcomes[index] = outcome

    def statuses(self):
        """Return the outcomes by index."""
        return {index: outcome.status for index, outcome in self.outcomes.items()}


class Releases(ReleaseProgress, eq=False):
    """Releases whose ops are kept, in the order in which they were due."""

    due: list[int] = msgspec.field(default_factory=list)

    def queue_ops(self, indices):
        self.due += indices
        self.end(indices, DURABLE)


def half(target_count=1):
    messages = [TargetMessage("t", None, b"", {}) for _ in range(target_count)]
    return HalfRecord("g", 0, bytes(16), 0, b"body", messages)


def releases(*target_counts, parked=b""):
    op = Op(OpKind.COMMIT, bytes(16))
    batch = Batch([Resolution(half(count), op, range(count), parked) for count in target_counts])
    return batch, Releases(batch, batch.items, left=record_counts(batch.items))


def number(index, place=0):
    return index << RECORD_BITS | place


def test_a_half_that_was_never_sent_is_certainly_not_stored():
    """At the deadline a half that waits for news of its target is REFUSED, and one that was sent is UNKNOWN."""
    batch = Batch([half() for _ in range(4)])
    progress = HalfProgress(batch, batch.items)
    progress.unsent.add(1)
    progress.end([0], DURABLE)
    progress.refuse(3, LATE)
    assert not progress.is_done
    progress.expire(LATE)
    assert batch.statuses() == {0: Status.DURABLE, 1: Status.REFUSED, 2: Status.UNKNOWN, 3: Status.REFUSED}
    assert progress.is_done


def test_nothing_ends_after_the_deadline():
    """A late answer changes no outcome and writes no op."""
    batch, progress = releases(1)
    progress.expire(LATE)
    progress.records_stored([number(0)])
    assert (batch.statuses(), progress.due) == ({0: Status.UNKNOWN}, [])


@pytest.mark.parametrize("order", [*itertools.permutations([number(0), number(1, 0), number(1, 1)])])
def test_an_op_is_due_after_the_last_record_of_its_item(order):
    """Whatever the order of the answers, each op is due once, when the last record of its item is stored."""
    batch, progress = releases(1, 2)
    stored = set()
    for each in order:
        stored.add(each)
        progress.records_stored([each])
        assert (0 in progress.due) == (number(0) in stored)
        assert (1 in progress.due) == ({number(1, 0), number(1, 1)} <= stored)
    assert sorted(progress.due) == [0, 1]
    assert progress.is_done
    assert batch.statuses() == {0: Status.DURABLE, 1: Status.DURABLE}


@pytest.mark.parametrize("order", [*itertools.permutations([(0, None), (1, REFUSED), (2, UNKNOWN)])])
def test_an_unknown_record_outweighs_a_refused_one(order):
    """An item with an unknown record is UNKNOWN, writes no op, and lists the targets that were not confirmed."""
    batch, progress = releases(3)
    for place, failure in order:
        if failure is None:
            progress.records_stored([number(0, place)])
        else:
            progress.record_failed(number(0, place), failure)
    (outcome,) = batch.outcomes.values()
    assert (outcome.status, outcome.error, outcome.missing) == (Status.UNKNOWN, LATE, (1, 2))
    assert progress.due == []


@pytest.mark.parametrize("order", [*itertools.permutations([0, 1, 2])])
def test_records_that_end_one_by_one_end_their_item(order):
    """A record whose answer comes alone counts like those of a burst, whatever the answer is."""
    batch, progress = releases(3, 1)
    answers = [(Status.DURABLE, None), (Status.REFUSED, REFUSED.error), (Status.UNKNOWN, LATE)]
    for place in order:
        progress.record_ended(number(0, place), *answers[place])
    progress.record_ended(number(1), Status.DURABLE, None)
    assert batch.outcomes[0] == Outcome(Status.UNKNOWN, LATE, missing=(1, 2))
    assert progress.due == [1]
    assert progress.is_done


def test_a_refused_record_ends_its_item_alone():
    """The neighbours of a refused item write their ops."""
    batch, progress = releases(1, 1, 1)
    progress.record_failed(number(1), REFUSED)
    progress.records_stored([number(0), number(2)])
    assert progress.due == [0, 2]
    assert batch.outcomes[1] == Outcome(Status.REFUSED, REFUSED.error, missing=(0,))


def test_a_parked_record_counts_and_is_no_target():
    """The op waits for the parked record; when that fails, no target is missing."""
    batch, progress = releases(1, parked=b"parked")
    assert (progress.target(number(0)), progress.target(number(0, 1))) == (0, None)
    progress.records_stored([number(0)])
    assert progress.due == []
    progress.record_failed(number(0, 1), UNKNOWN)
    assert batch.outcomes[0] == Outcome(Status.UNKNOWN, LATE, missing=())


def test_a_group_that_does_not_exist_refuses_a_release():
    """A usage error is certain; without an answer about the group, the release is UNKNOWN with all targets missing."""
    batch, progress = releases(2, 2)
    progress.not_found(0, UsageError("no such group"))
    progress.not_found(1, LATE)
    assert batch.statuses() == {0: Status.REFUSED, 1: Status.UNKNOWN}
    assert batch.outcomes[1].missing == (0, 1)
