"""The hot path's cost in Python's own instructions: the same on every machine, however busy it is."""

from __future__ import annotations

import sys

import pytest

from benchmarks.instructions import STYLES, cost_of

LIMITS = {"send_many": 2_730, "blocking": 3_410, "tasks": 4_050}
"""Bytecode instructions of CPython 3.11 for one transaction on the broker in memory; about 3 % above the count.

`python -m benchmarks.instructions` lists where they go. A change that needs more lists its benefit here: ids that share
a partition for a moment take 300 where few begin at once, and half of the requests to a broker when 16 callers wait;
steps that one and many
transactions share take 50, and a third of the time of `send_many`; releases of asyncio that leave within their time
take 50.
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version of Python has instructions of its own")
@pytest.mark.parametrize("style", STYLES)
def test_a_transaction_takes_no_more_instructions_than_it_did(style):
    """A limit that is met with ease is lowered."""
    cost = cost_of(style)
    assert LIMITS[style] * 0.9 < cost.instructions < LIMITS[style]


@pytest.mark.parametrize("style", STYLES)
def test_the_count_is_the_same_each_time(style):
    """The counted code reads neither time nor randomness of the machine, so its load does not matter."""
    assert cost_of(style, 30) == cost_of(style, 30)
