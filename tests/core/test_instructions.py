"""The hot path's cost in Python's own instructions: the same on every machine, however busy it is."""

from __future__ import annotations

import sys

import pytest

from benchmarks.instructions import BACKENDS, STYLES, cost_of

LIMITS = {
    "memory": {"send_many": 2_320, "blocking": 3_410, "tasks": 4_050, "database": 5_140},
    "kafka": {"send_many": 370, "blocking": 3_890, "tasks": 2_830, "database": 5_630},
}
"""Bytecode instructions of CPython 3.11 for one transaction, about 3 % above the count: on the broker in memory, and
through the Kafka plugin on a driver that acknowledges at once.

`python -m benchmarks.instructions --backend kafka` lists where they are spent. A change that needs more lists its
benefit here. Ids that share a partition for a moment cost 300 where few transactions begin at once, and save half of
the requests to a broker when 16 callers wait. Releases of asyncio that leave within their time cost 50. On Kafka a
batch of one costs 80 more than an item of its own did, and an item of many 600 less.
The database style has a fence on a SQLite file; SQLAlchemy's own instructions are not counted. The digest in the fence
row costs 100 to make, and 20 more for the statement that writes it there than for a savepoint: the database vouches
for the messages. Of the fence's 1,000, a third are checks: autocommit, savepoints, an open transaction, durability.
A message that refuses a text as its body or key in the line that makes it costs 18. Transactions of `send_many` take a
quarter of what they took as objects, because a batch is kept in columns; 120 of them are the benchmark's own.
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version of Python has instructions of its own")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transaction_takes_no_more_instructions_than_it_did(backend, style):
    """A transaction takes fewer instructions than its limit, and more than 90 % of it."""
    cost, limit = cost_of(style, backend), LIMITS[backend][style]
    assert limit * 0.9 < cost.instructions < limit


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_count_is_the_same_each_time(backend, style):
    """The count is the same each time, because the counted code reads neither time nor randomness of the machine."""
    assert cost_of(style, backend, 80) == cost_of(style, backend, 80)
