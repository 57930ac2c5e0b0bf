"""Logs that a real broker holds, folded in random interleavings, from their beginning and from stored checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from txcore.audit.invariants import judge_checkpoint
from txcore.records import Checkpoint, LogRecord
from txcore_conformance.refine import folding
from txcore_conformance.refine.whole import halves_in, ops_in, whole

READINGS_MAX: Final = 8
RECORDS_MAX: Final = 100_000
"""Records read in all: of long logs fewer interleavings are tried."""
PAUSES: Final = 64
"""About so many times a reading pauses for what an owner does between two reads."""


def judge_logs(
    halves: Sequence[LogRecord], ops: Sequence[LogRecord], checkpoints: Sequence[Checkpoint], seed: int = 0
) -> list[str]:
    """Return every way in which the fold, a checkpoint or a copy differs from what these whole logs say.

    Args:
        halves, ops: Both logs of one partition from their very beginning, in log order.
        checkpoints: Those that were stored before the logs were read.
    """
    wrong = [text for each in (Checkpoint(None, None), *checkpoints) if (text := judge_checkpoint(each, halves, ops))]
    found_halves, found_ops = halves_in(halves), ops_in(ops)
    # Which record was appended before which of the other log is not known, so ops are dropped at the end alone.
    logs = folding.Written(found_halves, list(found_ops), [len(found_halves)] * len(found_ops))
    truths = whole((half for _, half in found_halves), found_ops)
    count = len(found_halves) + len(found_ops)
    readings = max(min(READINGS_MAX, RECORDS_MAX // max(count, 1)), 2)
    for number in range(readings):
        for start in (None, *checkpoints):
            reading = folding.Reading(Random(seed + number), logs, start, count_max=max(8, 4 * count // PAUSES))
            text = reading.judge(truths)
            if text:
                wrong.append(f"reading {number} {text}")
    return wrong
