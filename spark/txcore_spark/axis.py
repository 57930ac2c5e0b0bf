"""The axis of the charts over time: it begins and ends with what the run judged, whatever births ids claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from txcore_spark.limits import time_text
from txcore_spark.rows import BUCKET_MS

MINUTE_MS: Final = 60_000
MARGIN_MS: Final = 60_000
"""Milliseconds by which a birth may lie outside of the records' times: the producers' clocks."""
POINTS_MAX: Final = 400
"""Most points of one chart."""
Row = Mapping[str, Any]


@dataclass(slots=True)
class Axis:
    """Counted rows on equal steps of time.

    Attributes:
        unit: Name of one step, such as `minute` or `6 hours`.
        moments: Beginnings of all steps, in ms.
        rows: The rows of each step.
        outside: Rows whose birth lies outside of the axis.
    """

    unit: str
    moments: list[int]
    rows: list[list[Row]]
    outside: list[Row] = field(default_factory=list)

    @property
    def marks(self) -> list[str]:
        """The beginning of each step as text."""
        return [time_text(each)[:16] for each in self.moments]


def span_of(manifest: Row) -> tuple[int, int]:
    """Return the range of times that the run judged, in ms: the births asked for, within its records' own times."""
    until_ms = min(manifest["until_ms"], manifest["now_ms"])
    # Brokers stamp halves; a target may bear any time that its writer claims.
    halves = [each["half_ms"] for each in manifest["topics"] if each["half_ms"]]
    firsts = halves or [each["first_ms"] for each in manifest["topics"] if each["first_ms"]]
    judged = [manifest["judged_from_ms"].get(group, 0) for group in manifest["groups"]]
    from_ms = max(manifest["since_ms"], min(judged, default=0), min(firsts, default=0))
    return min(from_ms or until_ms, until_ms), until_ms


def axis_of(manifest: Row, rows: Sequence[Row]) -> Axis:
    """Return *rows* on the time that the run judged."""
    from_ms, until_ms = span_of(manifest)
    low, high = from_ms - MARGIN_MS, until_ms + MARGIN_MS
    inside = [each for each in rows if _latest(each) >= low and _born(each) <= high]
    outside = [each for each in rows if not (_latest(each) >= low and _born(each) <= high)]
    is_recent = all(each.get("slot") is not None for each in inside)
    unit_ms, name = (MINUTE_MS, "minute") if is_recent else (BUCKET_MS, "hour")
    begin = min([from_ms, *map(_born, inside)]) if is_recent else from_ms
    first, last = begin // unit_ms, max(until_ms, begin) // unit_ms
    width = -(-(last - first + 1) // POINTS_MAX)
    steps = (last - first) // width + 1
    found: list[list[Row]] = [[] for _ in range(steps)]
    for each in inside:
        found[min(max((_born(each) // unit_ms - first) // width, 0), steps - 1)].append(each)
    moments = [(first + width * number) * unit_ms for number in range(steps)]
    return Axis(name if width == 1 else f"{width} {name}s", moments, found, outside)


def _born(row: Row) -> int:
    """Return the earliest birth of a row's transactions."""
    slot = row.get("slot")
    return int(slot * MINUTE_MS if slot is not None else row["bucket"] * BUCKET_MS)


def _latest(row: Row) -> int:
    """Return the latest birth of a row's transactions."""
    return _born(row) + (MINUTE_MS if row.get("slot") is not None else BUCKET_MS) - 1
