"""The machine that interrupts a call at each place where Python runs a signal's handler."""

from __future__ import annotations

import sys
from contextlib import suppress

from txcore_conformance.interrupts import Interrupts


class StopError(Exception):
    """The interrupt."""


def called(log):
    """Do a little: a call, a loop, a call in it."""
    log.clear()
    for number in range(3):
        log.append(number)


def test_each_place_of_a_call_is_tried_once_and_none_outside_of_it():
    """After each attempt there is no trace, and the machine itself was not interrupted."""
    interrupts, log, quiet_count = Interrupts(StopError), [], 0
    while quiet_count < 2:  # Python 3.13 reports the instructions of a function from its second call on
        tried_count = len(interrupts.tried)
        with suppress(StopError):
            interrupts.during(lambda: called(log))
        assert sys.gettrace() is None
        quiet_count = 0 if len(interrupts.tried) > tried_count else quiet_count + 1
    assert {code.co_name for code, _ in interrupts.tried} == {"<lambda>", "called"}
    assert len(interrupts.tried) >= 6
    assert log == [0, 1, 2]
