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
    """Each attempt but the last one raises; afterwards there is no trace, and the machine was not interrupted."""
    interrupts, log, attempts = Interrupts(StopError), [], 0
    while attempts == len(interrupts.tried):
        attempts += 1
        with suppress(StopError):
            interrupts.during(lambda: called(log))
        assert sys.gettrace() is None
    assert {code.co_name for code, _ in interrupts.tried} == {"<lambda>", "called"}
    assert len(interrupts.tried) >= 6
    assert log == [0, 1, 2]
