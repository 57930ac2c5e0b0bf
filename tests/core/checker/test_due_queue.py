"""The queue of due halves returns the earliest one first, in whatever order they were added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txcore.checker.due_queue import DueQueue


def drained(queue):
    """Return everything in the queue, in its order."""
    found = []
    while (first := queue.first()) is not None:
        found.append(first)
        queue.pop()
    return found


def test_an_empty_queue_has_no_first():
    """The first entry of an empty queue is None."""
    assert DueQueue().first() is None


@given(st.lists(st.floats(min_value=0, max_value=9), max_size=50))
def test_the_times_come_out_ascending(times):
    """The queue returns each entry once, with its id, in the order of the times."""
    queue = DueQueue()
    for number, time_ms in enumerate(times):
        queue.push(time_ms, bytes([number]))
    found = drained(queue)
    assert sorted(times) == [time_ms for time_ms, _ in found]
    assert sorted((time_ms, bytes([number])) for number, time_ms in enumerate(times)) == sorted(found)


def test_one_that_is_due_late_lets_later_ones_through():
    """Entries that are due early pass a late one that was added before them."""
    queue = DueQueue()
    for time_ms, identity in ((900.0, b"late"), (1.0, b"a"), (2.0, b"b")):
        queue.push(time_ms, identity)
    assert [(1.0, b"a"), (2.0, b"b"), (900.0, b"late")] == drained(queue)
