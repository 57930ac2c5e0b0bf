"""Logs that a real broker holds, folded in random interleavings, from their beginning and from stored checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from txcore.records import Checkpoint, LogRecord
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.refine import folding
from txcore_conformance.refine.whole import halves_in, ops_in, whole

READINGS_MAX: Final = 8
RECORDS_MAX: Final = 100_000
"""Approximate number of records in all readings; long logs are read in fewer interleavings."""
PAUSES: Final = 64
"""Approximate number of pauses of one reading, in which it does the work of an owner between two reads."""


def judge_logs(
    halves: Sequence[LogRecord], ops: Sequence[LogRecord], checkpoints: Sequence[Checkpoint], seed: int = 0
) -> list[str]:
    """Return every difference of the fold, a checkpoint or a copy from these whole logs, as text.

    Args:
        halves, ops: Both logs of one partition from their very beginning, in log order.
        checkpoints: Checkpoints that were stored before the logs were read.
    """
    wrong = [text for each in (Checkpoint(None, None), *checkpoints) if (text := judge_checkpoint(each, halves, ops))]
    found_halves, found_ops = halves_in(halves), ops_in(ops)
    # The order of records of different logs is not known, so ops are dropped only after every half is read.
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
