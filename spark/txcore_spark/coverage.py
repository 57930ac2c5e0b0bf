"""Coverage of a step: every planned range has its cover or its gap, and these decide where absence is a proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txcore_spark.landing import Planned
from txcore_spark.plan import FENCE, OP, TARGET
from txcore_spark.rows import BUCKET_MS, Kind
from txcore_spark.scope import Scope

NOT_READ: Final = "its task ended without a word"


@dataclass(frozen=True, slots=True)
class Gap:
    """A range that was not read whole, so that its records prove nothing about absence."""

    source: int
    partition: int
    start: int
    end: int
    why: str
    is_for_good: bool = False  #: its records are gone; otherwise a later run may read it


@dataclass(slots=True)
class Coverage:
    """Result of one step's reading, together with the results of earlier steps.

    Attributes:
        ends: Position at which reading stopped, by source and partition: after the last record before a gap.
        gaps: Ranges that could not be read in this step, or whose records are gone since the last step.
        judged_from_ms: Per group: the time of birth before which absence proves nothing.
        withheld: Groups in which no absence proves anything in this step.
        rows_withheld: Groups whose fence rows were not all read in this step.
        horizons: Per group: the highest `pruned_below` of its databases.
        unknown_tokens: Op logs (source, partition) whose beginning was gone when they were first read.
        records, strange: Number of records read, and number of those that txcore did not write.
    """

    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    judged_from_ms: dict[str, int] = field(default_factory=dict)
    withheld: set[str] = field(default_factory=set)
    rows_withheld: set[str] = field(default_factory=set)
    horizons: dict[str, bytes] = field(default_factory=dict)
    unknown_tokens: list[tuple[int, int]] = field(default_factory=list)
    records: int = 0
    strange: int = 0

    def judged(self, scope: Scope) -> dict[int, Column]:
        """Return, per group number, for which transactions absence is a proof."""
        return {
            number: F.expr("false")
            if group in self.withheld
            else F.col("born_ms") >= F.lit(self.judged_from_ms.get(group, 0))
            for group, number in scope.groups.items()
        }

    def rows_known(self, scope: Scope) -> dict[int, Column]:
        """Return, per group number, for which transactions a missing fence row proves that none was written."""
        return {
            scope.groups[group]: F.col("tx") >= F.lit(bytearray(horizon))
            for group, horizon in self.horizons.items()
            if group not in self.rows_withheld
        }


def measure(
    rows: DataFrame, planned: Planned, scope: Scope, before: Mapping[str, Any] | None, now_ms: int, *, is_whole: bool
) -> Coverage:
    """Return the coverage of this step's landed *rows*.

    Args:
        before: The last step's manifest.
        is_whole: The step covers everything, so a log whose beginning is gone is a gap.
    """
    found = Coverage()
    if before is not None:
        found.ends = {(each["source"], each["partition"]): each["end"] for each in before["ends"]}
        found.judged_from_ms = dict(before["judged_from_ms"])
        found.unknown_tokens = [(source, partition) for source, partition in before["unknown_tokens"]]
    marks = rows.where(F.col("kind").isin(int(Kind.COVER), int(Kind.GAP))).select(
        "kind", "source", "partition", "position", "place", "hash", "count", "text"
    )
    marks_by_place: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for mark in marks.collect():
        marks_by_place[mark["source"], mark["partition"]].append(mark)
        found.records += mark["hash"] or 0
        found.strange += mark["count"] or 0
    for source, why in planned.troubles:
        found.gaps.append(Gap(source.number, -1, 0, 0, why))
    _follow(found, planned, marks_by_place)
    _note_losses(found, planned, rows, scope, before, now_ms, is_whole=is_whole)
    for gap in found.gaps:
        if not gap.is_for_good:
            _withhold(found, scope, gap)
    return found


def _follow(found: Coverage, planned: Planned, marks_by_place: Mapping[tuple[int, int], Sequence[Any]]) -> None:
    """Count a planned range as read only if its own cover was read."""
    ranges = defaultdict(list)
    for wanted in planned.all():
        ranges[wanted.source.number, wanted.place.partition].append(wanted)
    for key, each in ranges.items():
        is_fence = each[0].source.log == FENCE
        covers = {(mark["position"], mark["place"]) for mark in marks_by_place[key] if mark["kind"] == int(Kind.COVER)}
        texts = {mark["position"]: mark["text"] for mark in marks_by_place[key] if mark["kind"] == int(Kind.GAP)}
        end = planned.starts.get(key, 0)
        for wanted in sorted(each, key=lambda wanted: wanted.start):
            is_read = bool(covers) and not texts if is_fence else (wanted.start, wanted.end) in covers
            if not is_read:
                why = texts.get(wanted.start, NOT_READ)
                found.gaps.append(Gap(*key, wanted.start, wanted.end, why))
            elif end == wanted.start:
                end = wanted.end
        if not is_fence:
            found.ends[key] = end
    for key, start in planned.starts.items():
        found.ends.setdefault(key, start)


def _note_losses(
    found: Coverage,
    planned: Planned,
    rows: DataFrame,
    scope: Scope,
    before: Mapping[str, Any] | None,
    now_ms: int,
    *,
    is_whole: bool,
) -> None:
    """Record logs that lost their beginning or records after the last step; absence counts only after that part."""
    known = {(each["source"], each["partition"]): each["end"] for each in before["ends"]} if before else {}
    gone = [
        key
        for key, edge in planned.edges.items()
        if (key in known and not edge.first <= known[key] <= edge.end) or (key not in known and edge.is_truncated)
    ]
    if not gone:
        return
    skew_ms = round(scope.loaded.config.audit.skew_s * 1000)
    times = (
        rows.where(F.col("kind") < int(Kind.COVER))
        .groupBy("source", "partition")
        .agg(F.min(F.coalesce("ts_ms", F.col("bucket").cast("bigint") * BUCKET_MS)).alias("first_ms"))
    )
    first_ms = {(each["source"], each["partition"]): each["first_ms"] for each in times.collect()}
    for key in gone:
        source, edge = scope.sources[key[0]], planned.edges[key]
        if key in known or is_whole:
            why = "gone before it was read" if key in known else "its beginning is gone (retention)"
            if key in known and edge.end < known[key]:
                why = "its positions went back: it was created again, or its broker has lost its end"
            found.gaps.append(Gap(*key, known.get(key, 0), edge.first, why, is_for_good=True))
        if key not in known and source.log == OP:
            found.unknown_tokens.append(key)
        for group in groups_of(scope, source.number):
            bound_ms = (edge.whole_from_ms or first_ms.get(key) or now_ms) + skew_ms
            found.judged_from_ms[group] = max(found.judged_from_ms.get(group, 0), bound_ms)


def _withhold(found: Coverage, scope: Scope, gap: Gap) -> None:
    source = scope.sources[gap.source]
    for group in groups_of(scope, gap.source):
        (found.rows_withheld if source.log == FENCE else found.withheld).add(group)


def groups_of(scope: Scope, number: int) -> list[str]:
    """Return the groups whose transactions have records in a source."""
    source = scope.sources[number]
    if source.log != TARGET:
        return [source.group] if source.group in scope.loaded.config.groups else []
    return [group for group in scope.loaded.config.groups if source.backend in scope.backends_of(group)]


def described(scope: Scope, gap: Gap) -> dict[str, Any]:
    """Return a gap with the names of its place."""
    source = scope.sources[gap.source]
    return asdict(gap) | {"backend": source.backend, "log": source.log, "name": source.name, "group": source.group}
