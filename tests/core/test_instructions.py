"""The hot path's cost in Python's own instructions: the same on every machine, however busy it is."""

from __future__ import annotations

import sys

import pytest

from benchmarks.instructions import STYLES, cost_of

LIMITS = {"send_many": 2_730, "blocking": 3_410, "tasks": 4_050}
"""Bytecode instructions of CPython 3.11 for one transaction on the broker in memory; about 3 % above the count.

`python -m benchmarks.instructions` lists where they are spent. A change that needs more lists its benefit here. Ids
that share a partition for a moment cost 300 where few transactions begin at once, and save half of the requests to a
broker when 16 callers wait. Steps that one and many transactions share cost 50, and save a third of the time of
`send_many`. Releases of asyncio that leave within their time cost 50.
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version of Python has instructions of its own")
@pytest.mark.parametrize("style", STYLES)
def test_a_transaction_takes_no_more_instructions_than_it_did(style):
    """A transaction takes fewer instructions than its limit, and more than 90 % of it."""
    cost = cost_of(style)
    assert LIMITS[style] * 0.9 < cost.instructions < LIMITS[style]


@pytest.mark.parametrize("style", STYLES)
def test_the_count_is_the_same_each_time(style):
    """The count is the same each time, because the counted code reads neither time nor randomness of the machine."""
    assert cost_of(style, 30) == cost_of(style, 30)
