"""Coverage of a step: every planned range has its cover or its gap, and these decide where absence is a proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from txcore.findings import counted
from txcore_spark import expressions as F
from txcore_spark.expressions import Column
from txcore_spark.frames import Frame
from txcore_spark.landing import Planned
from txcore_spark.plan import FENCE, OP, OWN_LOGS, TARGET, Edge
from txcore_spark.rows import BUCKET_MS, Kind
from txcore_spark.scope import Scope
from txcore_spark.tally import HIDDEN
from txcore_spark.topics import unseen

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
        sent_from_ms: Per group that uses the message table: the time of birth before which a topic that may hold its
            messages has lost its beginning.
        sent_withheld: Groups of whose messages of the message table not every topic was read.
        hidden: Topics, with their brokers, that halves name and that are not read.
        undecodable: Number of records of the groups' own logs that cannot be decoded, by source.
        ragged: Partitions (source, partition, end) whose records from *end* on a later step reads again.
        unknown_tokens: Op logs (source, partition) whose beginning was gone when they were first read.
        records, strange: Number of records read, and number of those that txcore did not write.
    """

    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    judged_from_ms: dict[str, int] = field(default_factory=dict)
    withheld: set[str] = field(default_factory=set)
    rows_withheld: set[str] = field(default_factory=set)
    horizons: dict[str, bytes] = field(default_factory=dict)
    sent_from_ms: dict[str, int] = field(default_factory=dict)
    sent_withheld: set[str] = field(default_factory=set)
    hidden: set[tuple[str, str]] = field(default_factory=set)
    undecodable: dict[int, int] = field(default_factory=dict)
    ragged: list[tuple[int, int, int]] = field(default_factory=list)
    unknown_tokens: list[tuple[int, int]] = field(default_factory=list)
    records: int = 0
    strange: int = 0

    def judged(self, scope: Scope) -> dict[int, Column]:
        """Return, per group number, for which transactions absence is a proof."""
        return {
            number: F.lit(False)
            if group in self.withheld
            else F.col("born_ms") >= F.lit(self.judged_from_ms.get(group, 0))
            for group, number in scope.groups.items()
        }

    def sent_known(self, scope: Scope) -> dict[int, Column]:
        """Return, per group number, for which transactions no target at all proves that what was sent is lost."""
        return {
            scope.groups[group]: F.col("born_ms") >= F.lit(self.sent_from_ms.get(group, 0))
            for group in scope.by_table
            if group not in self.sent_withheld
        }

    def rows_known(self, scope: Scope) -> dict[int, Column]:
        """Return, per group number, for which transactions a missing fence row proves that none was written."""
        return {
            scope.groups[group]: F.col("tx") >= F.lit(bytes(horizon))
            for group, horizon in self.horizons.items()
            if group not in self.rows_withheld
        }


def measure(
    rows: Frame, planned: Planned, scope: Scope, before: Mapping[str, Any] | None, now_ms: int, *, since_ms: int = 0
) -> Coverage:
    """Return the coverage of this step's landed *rows*.

    Args:
        before: The last step's manifest.
        since_ms: First birth that is judged; a log whose beginning is gone is a gap if it may be of later births.
    """
    found = Coverage()
    if before is not None:
        found.ends = {
            (each["source"], each["partition"]): each["end"]
            for each in before["ends"]
            if scope.is_current(each["source"])
        }
        found.judged_from_ms, found.sent_from_ms = dict(before["judged_from_ms"]), dict(before["sent_from_ms"])
        found.unknown_tokens = [(source, partition) for source, partition in before["unknown_tokens"]]
    marks = rows.where(F.col("kind").isin(int(Kind.COVER), int(Kind.GAP))).select(
        "kind", "source", "partition", "position", "place", "hash", "count", "index", "text"
    )
    marks_by_place: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for mark in marks.collect():
        marks_by_place[mark["source"], mark["partition"]].append(mark)
        found.records += mark["hash"] or 0
        found.strange += mark["count"] or 0
    for source, why in planned.troubles:
        found.gaps.append(Gap(source.number, -1, 0, 0, why))
    _follow(found, planned, marks_by_place)
    _note_undecodable(found, scope, marks_by_place)
    _note_losses(found, planned, rows, scope, before, now_ms, since_ms)
    found.hidden = unseen(scope, planned.topics)
    for gap in found.gaps:
        if not gap.is_for_good:
            _withhold(found, scope, gap)
    for name, topics in planned.topics.items():
        if not topics.is_total or topics.refused:
            found.sent_withheld.update(scope.table_groups_of(name))
    return found


def _note_undecodable(found: Coverage, scope: Scope, marks_by_place: Mapping[tuple[int, int], Sequence[Any]]) -> None:
    """Report records of the groups' own logs that say nothing: each may be a half or an op."""
    for (number, _), marks in marks_by_place.items():
        count = sum(mark["count"] or 0 for mark in marks if mark["kind"] == int(Kind.COVER))
        if count and scope.sources[number].log in OWN_LOGS:
            found.undecodable[number] = found.undecodable.get(number, 0) + count
    for number, count in found.undecodable.items():
        why = (
            f"{counted(count, 'record')} cannot be decoded: damaged, not txcore's, or not signed with the group's keys"
        )
        found.gaps.append(Gap(number, -1, 0, 0, why, is_for_good=True))


def _follow(found: Coverage, planned: Planned, marks_by_place: Mapping[tuple[int, int], Sequence[Any]]) -> None:
    """Count a planned range as read only if its own cover was read."""
    ranges = defaultdict(list)
    for wanted in planned.all():
        ranges[wanted.source.number, wanted.place.partition].append(wanted)
    for key, each in ranges.items():
        texts = {mark["position"]: mark["text"] for mark in marks_by_place[key] if mark["kind"] == int(Kind.GAP)}
        covers = {}
        for mark in marks_by_place[key]:
            if mark["kind"] == int(Kind.COVER):
                covers[mark["position"], mark["place"]] = mark["index"] or 0
        end = planned.starts.get(key, 0)
        for wanted in sorted(each, key=lambda wanted: wanted.start):
            newer_count = covers.get((wanted.start, wanted.end), 0)
            if (wanted.start, wanted.end) not in covers or newer_count:
                newer = f"{counted(newer_count, 'record')} of a newer txcore, not read: upgrade the audit"
                why = newer if newer_count else NOT_READ
                found.gaps.append(Gap(*key, wanted.start, wanted.end, texts.get(wanted.start, why)))
            elif end == wanted.start:
                end = wanted.end
        if each[0].source.log != FENCE:
            found.ends[key] = end
            if end < max(wanted.end for wanted in each):
                found.ragged.append((*key, end))
    for key, start in planned.starts.items():
        found.ends.setdefault(key, start)


def _note_losses(
    found: Coverage,
    planned: Planned,
    rows: Frame,
    scope: Scope,
    before: Mapping[str, Any] | None,
    now_ms: int,
    since_ms: int,
) -> None:
    """Record logs that lost their beginning or records after the last step; absence counts only after that part."""
    known = {(each["source"], each["partition"]): each["end"] for each in before["ends"]} if before else {}
    gone = [
        key
        for key, edge in planned.edges.items()
        if (key in known and not edge.first <= known[key] <= edge.end)
        or (key not in known and (edge.is_truncated or key[0] in planned.renewed))
    ]
    if not gone:
        return
    skew_ms = round(scope.loaded.config.audit.skew_s * 1000)
    times = rows.where(F.col("kind") < int(Kind.COVER)).aggregate(
        ["source", "partition"],
        F.min_of(F.coalesce("ts_ms", F.col("bucket").cast("bigint") * BUCKET_MS)).alias("first_ms"),
    )
    first_ms = {(each["source"], each["partition"]): each["first_ms"] for each in times.collect()}
    for key in gone:
        source, edge, is_renewed = scope.sources[key[0]], planned.edges[key], key[0] in planned.renewed
        whole_from_ms = None if is_renewed else edge.whole_from_ms
        bound_ms = (whole_from_ms or first_ms.get(key) or now_ms) + skew_ms
        groups = scope.groups_of(source.number)
        if groups and (key in known or since_ms < bound_ms):
            why = _loss(edge, known.get(key), is_renewed=is_renewed)
            found.gaps.append(Gap(*key, known.get(key, 0), edge.first, why, is_for_good=True))
        if key not in known and source.log == OP:
            found.unknown_tokens.append(key)
        for group in groups:
            found.judged_from_ms[group] = max(found.judged_from_ms.get(group, 0), bound_ms)
        for group in scope.table_groups_of(source.backend) if source.log == TARGET else ():
            found.sent_from_ms[group] = max(found.sent_from_ms.get(group, 0), bound_ms)


def _loss(edge: Edge, known: int | None, *, is_renewed: bool) -> str:
    if is_renewed:
        return "it was deleted and made anew: records that were written after the last run are gone unread"
    if known is None:
        return "its beginning is gone (retention)"
    if edge.end < known:
        return "its positions went back: it was created again, or its broker has lost its end"
    return "gone before it was read"


def _withhold(found: Coverage, scope: Scope, gap: Gap) -> None:
    source = scope.sources[gap.source]
    (found.rows_withheld if source.log == FENCE else found.withheld).update(scope.groups_of(gap.source))
    if source.log == TARGET:
        found.sent_withheld.update(scope.table_groups_of(source.backend))


def unproven(scope: Scope, covered: Coverage, counts: Sequence[Mapping[str, int]]) -> list[dict[str, Any]]:
    """Return the gaps for transactions whose messages go to topics that are not read."""
    groups = {number: name for name, number in scope.groups.items()}
    backends = {number: name for name, number in scope.backends.items()}
    sums: dict[tuple[int, int, int], int] = defaultdict(int)
    for each in counts:
        sums[each["unproven"], each["group"], each["home"]] += each["count"]
    found = []
    for (kind, number, home), count in sorted(sums.items()):
        group = groups[number]
        name = backends.get(home, scope.loaded.backend_of(group))
        named = sorted(topic for backend, topic in covered.hidden if backend == name) if kind == HIDDEN else []
        where = ", ".join(named) or "topics that nothing names, because the message table sent them"
        why = (
            f"{group} has {counted(count, 'transaction')} with messages for {where}. The broker does not list them, or "
            f'the audit does not read them: name them in audit.backends.{name}.topics, or set "all"; for a queue, name '
            f"a stream that taps it in audit.backends.{name}.taps"
        )
        gap = {"backend": name, "log": TARGET, "name": ", ".join(named), "group": group, "why": why}
        found.append(gap | {"is_for_good": False})
    return found


def described(scope: Scope, gap: Gap) -> dict[str, Any]:
    """Return a gap with the names of its place."""
    source = scope.sources[gap.source]
    return asdict(gap) | {"backend": source.backend, "log": source.log, "name": source.name, "group": source.group}
