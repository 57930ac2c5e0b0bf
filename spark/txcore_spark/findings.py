"""From tallies to what is said of them: verdicts, counts by hour, latencies, and the places behind each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txcore.records import OpKind
from txcore.verdicts import FAR, PREDICATES, SEVERITIES, Severity, Thresholds, Verdict
from txcore_spark.rows import Kind

PLACES_MAX: Final = 20
"""Places that one finding names."""
LATENCY_BASE: Final = 1.25
"""Each bucket of a latency histogram ends this many times as high as the one before; such buckets can be merged."""
RECENT_MS: Final = 6 * 3_600_000
SHOWN: Final = (
    "tx", "bucket", "born_ms", "group", "home", "halves", "generation", "declared", "targets", "present", "corrupt",
    "commits", "rollbacks", "discarded", "overrides", "row", "half_ms", "op_ms", "deadline_ms",
)  # fmt: skip
"""Columns of a tally that stand beside each finding."""


class Columns:
    """A table's columns by attribute, so that the predicates of `txcore.verdicts` judge them like integers."""

    def __getattr__(self, name: str) -> Column:
        return F.col(name)


def verdict_columns(thresholds: Thresholds) -> Column:
    """Return an array of the names of all verdicts on a tally."""
    tally: Any = Columns()
    named = [F.when(holds(tally, thresholds), F.lit(verdict.name)) for verdict, holds in PREDICATES.items()]
    return F.array_compact(F.array(*named))


def judged(tallies: DataFrame, thresholds: Thresholds) -> DataFrame:
    """Return one line per verdict on a transaction."""
    return (
        tallies.withColumn("verdicts", verdict_columns(thresholds))
        .where(F.size("verdicts") > 0)
        .select(*SHOWN, F.explode("verdicts").alias("verdict"))
    )


def with_places(findings: DataFrame, rows: DataFrame, names: Mapping[int, str]) -> DataFrame:
    """Return findings with the places of the records behind them, and what operators said there."""
    kinds = {Kind.HALF: "half", Kind.OP: "op", Kind.TARGET: "target", Kind.ROW: "row", Kind.PARKED: "parked"}
    kind = _mapped({int(each): name for each, name in kinds.items()}, F.col("kind"))
    code = _mapped({int(each): each.name for each in OpKind}, F.col("code"))
    place = F.concat(
        kind,
        F.when(F.col("kind") == int(Kind.OP), F.concat(F.lit(" "), code)).otherwise(F.lit("")),
        F.lit(" "),
        _mapped(names, F.col("source")),
        F.lit("/"),
        F.col("partition"),
        F.lit("@"),
        F.col("position"),
    )
    wanted = findings.where(F.col("verdict") != Verdict.DUP_OP.name).select("tx").distinct()
    near = (
        rows.where(F.col("kind") < int(Kind.COVER))
        .join(wanted, "tx", "left_semi")
        .groupBy("tx")
        .agg(
            F.slice(F.sort_array(F.collect_set(place)), 1, PLACES_MAX).alias("places"),
            F.slice(F.sort_array(F.collect_set("text")), 1, 3).alias("texts"),
            F.first("topic", ignorenulls=True).alias("topic"),
        )
    )
    return findings.join(near, "tx", "left")


def _mapped(names: Mapping[int, str], column: Column) -> Column:
    pairs = [F.lit(each) for item in names.items() for each in item]
    return F.coalesce(F.create_map(*pairs)[column], column.cast("string")) if pairs else column.cast("string")


def verdict_counts(findings: DataFrame) -> list[dict[str, Any]]:
    """Return how often each verdict stands, by hour of birth, group and broker."""
    counted = findings.groupBy("bucket", "group", "home", "verdict").agg(F.count("*").alias("count"))
    return [each.asDict() for each in counted.collect()]


def slot(now_ms: int) -> Column:
    """Return the minute of birth of what is recent, so that a chart of a short time has more than one point."""
    return F.when(F.col("born_ms") >= now_ms - RECENT_MS, F.floor(F.col("born_ms") / 60_000)).cast("bigint")


def transaction_counts(tallies: DataFrame, now_ms: int) -> list[dict[str, Any]]:
    """Return the numbers of transactions, decisions and targets, by hour of birth, group and broker."""
    is_open = (F.col("commits") + F.col("rollbacks")) == 0
    is_pending = is_open & (F.col("halves") > 0) & (F.col("discarded") < F.col("generation"))
    has_half = F.col("halves") > 0
    is_commit = F.col("first_commit") < F.col("first_rollback")
    is_rollback = F.col("first_rollback") < F.col("first_commit")
    counted = tallies.groupBy("bucket", slot(now_ms).alias("slot"), "group", "home").agg(
        F.count("*").alias("transactions"),
        F.count(F.when(has_half, 1)).alias("halves"),
        F.count(F.when(is_commit, 1)).alias("commits"),
        F.count(F.when(is_rollback, 1)).alias("rollbacks"),
        F.count(F.when(is_pending, 1)).alias("pending"),
        F.min(F.when(is_pending & has_half, F.least("half_ms", "born_ms"))).alias("oldest_ms"),
        F.sum("all_targets").alias("targets"),
        F.sum(F.when(is_commit, F.col("declared")).otherwise(0)).alias("wanted"),
    )
    return [each.asDict() for each in counted.collect()]


def latencies(tallies: DataFrame, now_ms: int) -> list[dict[str, Any]]:
    """Return histograms of the time from half to decision, by hour, group and broker."""
    took = F.greatest(F.col("op_ms") - F.col("half_ms"), F.lit(0))
    step = F.when(took < 1, 0).otherwise(F.ceil(F.log(took.cast("double")) / F.log(F.lit(LATENCY_BASE))) + 1)
    known = tallies.where((F.col("op_ms") < FAR) & (F.col("half_ms") < FAR))
    by = ("bucket", slot(now_ms).alias("slot"), "group", "home", step.cast("int").alias("step"))
    counted = known.groupBy(*by).agg(F.count("*").alias("count"))
    return [each.asDict() for each in counted.collect()]


def topic_counts(rows: DataFrame) -> list[dict[str, Any]]:
    """Return how many messages were declared and how many targets stand, by broker and topic."""
    known = rows.where(F.col("kind").isin(int(Kind.HALF), int(Kind.TARGET)) & F.col("topic").isNotNull())
    counted = known.groupBy("backend", "topic").agg(
        F.count(F.when(F.col("kind") == int(Kind.HALF), 1)).alias("declared"),
        F.count(F.when(F.col("kind") == int(Kind.TARGET), 1)).alias("targets"),
        F.count(F.when(F.col("flags") >= 2, 1)).alias("unseen"),
    )
    return [each.asDict() for each in counted.collect()]


def severities_of(counts: Mapping[str, int], rules: Mapping[str, Any], gap_count: int) -> dict[str, Severity]:
    """Return how bad each verdict that stands is, after the configuration's thresholds."""
    found: dict[str, Severity] = {}
    for name, count in {**counts, **({Verdict.COVERAGE_GAP.name: gap_count} if gap_count else {})}.items():
        rule = rules.get(name)
        severity = SEVERITIES[Verdict[name]]
        if rule is not None and rule.severity:
            severity = Severity[rule.severity.upper()]
        if rule is not None and count <= rule.count_max:
            severity = Severity.INFO
        if count:
            found[name] = severity
    return found


def percentile(histogram: Sequence[tuple[int, int]], share: float) -> float:
    """Return an upper bound, in ms, of the latency that *share* of all do not exceed; 0 without any."""
    total = sum(count for _, count in histogram)
    seen = 0
    for step, count in sorted(histogram):
        seen += count
        if seen >= share * total:
            return 0.0 if step == 0 else LATENCY_BASE ** (step - 1)
    return 0.0
