"""Many parked halves are resumed together: their proofs are read back in one reading of each op log."""

from __future__ import annotations

import pytest

from txcore import BackendUnavailableError, HalfRefusedError, TransactionStateError
from txcore.memory import MemoryBackend
from txcore.operator.operator import Operator
from txcore.port import failed
from txcore.records import LogKind

COUNT = 12


class Watched(MemoryBackend):
    """Notes which logs are opened; the op logs of some partitions take no mark."""

    def __init__(self, broker):
        super().__init__(broker)
        self.opened = []
        self.refused = set()

    def read(self, group, kind, partition, start=None):
        """Note the log."""
        self.opened.append((kind, partition))
        return super().read(group, kind, partition, start)

    def mark(self, group, partition, op, claim=None):
        """Refuse it where the partition does."""
        if partition in self.refused:
            return failed(BackendUnavailableError("the op log takes no mark"))
        return super().mark(group, partition, op, claim)


@pytest.fixture
def parked(broker, orphan, checker, running_clock):
    """Return the journeys of twelve parked halves, and the backend that saw them."""
    identities = [orphan() for _ in range(COUNT)]
    for _ in range(3):
        checker.run_once()
        running_clock.advance(5)
    backend = Watched(broker)
    journeys = Operator(backend, "g").still_parked(set(identities))
    backend.opened.clear()
    return journeys, backend


def kinds(results):
    """Return each result, an error by its type."""
    return [type(each) if isinstance(each, Exception) else each for each in results]


def test_proofs_of_many_copies_are_read_back_together(parked):
    """Each op log is opened once, however many of its halves are resumed, and all of them are pending after it."""
    journeys, backend = parked
    assert [1] * COUNT == list(Operator(backend, "g").resume_each(journeys))
    partitions = {each.partition for each in journeys}
    assert [(LogKind.OP, partition) for partition in sorted(partitions)] == backend.opened
    assert len(partitions) < COUNT
    assert [1] * COUNT == [each.generation for each in Operator(backend, "g").pending()]


def test_each_has_its_own_result(parked):
    """One that is not parked any more is no obstacle to the others, and the results keep their order."""
    journeys, backend = parked
    operator = Operator(backend, "g")
    operator.resume(journeys[1].transaction_id)
    journeys[1] = operator.show(journeys[1].transaction_id)
    assert [1, TransactionStateError, *[1] * (COUNT - 2)] == kinds(operator.resume_each(journeys))


def test_a_half_whose_proof_is_refused_is_not_resumed(parked):
    """Its copy is not written, those of other partitions are resumed, and it can be resumed again."""
    journeys, backend = parked
    operator, refusing = Operator(backend, "g"), journeys[1].partition
    backend.refused = {refusing}
    expected = [HalfRefusedError if each.partition == refusing else 1 for each in journeys]
    assert expected == kinds(operator.resume_each(journeys))
    backend.refused.clear()
    left = operator.still_parked({each.transaction_id for each in journeys})
    assert {each.transaction_id for each in journeys if each.partition == refusing} == {
        each.transaction_id for each in left
    }
    assert [1] * len(left) == list(operator.resume_each(left))
