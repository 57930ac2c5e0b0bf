"""Results computed from tallies: verdicts, counts by hour, latencies, and the places of each finding's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from txcore.audit.verdicts import FAR, PREDICATES, SEVERITIES, VIA_TABLE, Severity, Thresholds, Verdict, is_pending
from txcore.records import OpKind
from txcore_spark import expressions as F
from txcore_spark.expressions import Column
from txcore_spark.frames import Frame
from txcore_spark.rows import Kind

PLACES_MAX: Final = 20
"""Most places that one finding names."""
STORY_MAX: Final = 60
"""Most records of one finding's story."""
LATENCY_BASE: Final = 1.25
"""Ratio of the upper bounds of neighbouring buckets of a latency histogram; such buckets can be merged."""
PLACE: Final = ("bucket", "slot", "group", "home")
"""Columns by which transactions are counted."""
COUNTED: Final = (
    "bucket", "born_ms", "group", "home", "halves", "commits", "rollbacks", "pending", "declared", "all_targets",
    "half_ms", "op_ms", "by_table", "elsewhere",
)  # fmt: skip
"""Columns on which the counts rest; `halves`, `commits`, `rollbacks`, `pending` and `by_table` are 0 or 1 there."""
RECENT_MS: Final = 6 * 3_600_000
SHOWN: Final = (
    "tx", "bucket", "born_ms", "group", "home", "halves", "generation", "declared", "targets", "present", "corrupt",
    "altered", "missent", "commits", "rollbacks", "discarded", "overrides", "row", "half_ms", "op_ms", "deadline_ms",
    "fenced", "target_ms", "discarded_ms",
)  # fmt: skip
"""Columns of a tally that are stored with each finding."""


class Columns:
    """A table's columns by attribute, so that the predicates of `txcore.audit.verdicts` judge them like integers."""

    def __getattr__(self, name: str) -> Column:
        return F.col(name)


def verdict_columns(thresholds: Thresholds) -> Column:
    """Return an array of the names of all verdicts on a tally."""
    tally: Any = Columns()
    named = [F.when(holds(tally, thresholds), F.lit(verdict.name)) for verdict, holds in PREDICATES.items()]
    return F.texts(*named)


def judged(tallies: Frame, thresholds: Thresholds) -> Frame:
    """Return one line per verdict on a transaction."""
    return (
        tallies.with_column("verdicts", verdict_columns(thresholds))
        .where(F.size("verdicts") > 0)
        .select(*SHOWN, F.explode("verdicts").alias("verdict"))
    )


def _difference() -> Column:
    """Return what differs from what, for a CORRUPT; an empty array for the other verdicts."""
    texts = {
        "corrupt": "a target differs from the half",
        "altered": "the half differs from the digest in the fence row",
        "missent": "the targets differ from the digest in the fence row",
    }
    named = F.texts(*(F.when(F.col(name) > 0, F.lit(each)) for name, each in texts.items()))
    return F.when(F.col("verdict") == Verdict.CORRUPT.name, named).otherwise(F.texts())


def with_places(findings: Frame, rows: Frame, names: Mapping[int, str]) -> Frame:
    """Return findings with the places of their records, the reasons that operators gave there, and what differs."""
    kinds = {Kind.HALF: "half", Kind.OP: "op", Kind.TARGET: "target", Kind.ROW: "row", Kind.PARKED: "parked"}
    kind = F.lookup({int(each): name for each, name in kinds.items()}, F.col("kind"))
    code = F.lookup({int(each): each.name for each in OpKind}, F.col("code"))
    place = F.concat(
        kind,
        F.when(F.col("kind") == int(Kind.OP), F.concat(F.lit(" "), code)).otherwise(F.lit("")),
        F.lit(" "),
        F.lookup(names, F.col("source")),
        F.lit("/"),
        F.col("partition").cast("string"),
        F.lit("@"),
        F.col("position").cast("string"),
    )
    wanted = findings.where(F.col("verdict") != Verdict.DUP_OP.name).select("tx").distinct()
    near = (
        rows.where(F.col("kind") < int(Kind.COPY))
        .join(wanted.small_if_few(), ["tx"], "left_semi")
        .aggregate(
            ["tx"],
            F.some_of(place, PLACES_MAX).alias("places"),
            F.some_of("text", 3).alias("texts"),
            F.any_of("topic").alias("topic"),
            F.some_of(_record(place), STORY_MAX).alias("story"),
        )
    )
    found = findings.join(near, ["tx"], "left")
    said = F.coalesce("texts", F.texts())
    return found.with_column("texts", F.texts_with(_difference(), said))


def _record(place: Column) -> Column:
    """Return what a finding's story says of one row; such records are sorted by their time."""
    return F.record("ts_ms", "index", place.alias("place"), "kind", "code", "generation", "topic", "text")


def verdict_counts(findings: Frame) -> list[dict[str, Any]]:
    """Return the number of findings of each verdict, by hour of birth, group and broker."""
    counted = findings.aggregate(["bucket", "group", "home", "verdict"], F.count_of().alias("count"))
    return counted.collect()


def unproven_counts(tallies: Frame) -> list[dict[str, Any]]:
    """Return the number of transactions whose missing targets prove nothing, by hour of birth, group and broker."""
    by = ("bucket", "group", "home", "unproven")
    counted = tallies.where(F.col("unproven") > 0).aggregate(by, F.count_of().alias("count"))
    return counted.collect()


def slot(now_ms: int) -> Column:
    """Return the minute of birth of recent transactions, so that a chart of a short time has several points."""
    return F.when(F.col("born_ms") >= now_ms - RECENT_MS, F.quotient("born_ms", 60_000)).cast("bigint")


def countable(tallies: Frame) -> Frame:
    """Return the columns of `COUNTED`."""
    has_half = F.col("halves") > 0
    flags = {
        "commits": (F.col("commits") > 0) & (F.col("first_commit") < F.col("first_rollback")),
        "rollbacks": F.col("first_rollback") < F.col("first_commit"),
        "pending": is_pending(Columns()),
        "halves": has_half,
        "by_table": ~has_half & F.col("row").isin(VIA_TABLE),
    }
    elsewhere = tallies.with_column("elsewhere", F.col("all_targets") - F.col("targets"))
    return elsewhere.select(*(flags[name].cast("int").alias(name) if name in flags else name for name in COUNTED))


def counts(lines: Frame, now_ms: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the numbers of transactions, decisions and targets, and histograms of the time from half to decision.

    Both by hour of birth, group and broker; recent transactions by the minute too.

    Args:
        lines: Lines with the columns of `COUNTED`.
    """
    took = F.greatest(F.col("op_ms") - F.col("half_ms"), F.lit(0))
    step = F.when(took < 1, 0).otherwise(F.ceil(F.log(took.cast("double")) / F.log(F.lit(LATENCY_BASE))) + 1)
    is_timed = (F.col("op_ms") < FAR) & (F.col("half_ms") < FAR)
    by = ("bucket", slot(now_ms).alias("slot"), "group", "home", F.when(is_timed, step).cast("int").alias("step"))
    counted = lines.aggregate(
        by,
        F.count_of().alias("transactions"),
        *(
            F.sum_of(name).alias(name)
            for name in ("halves", "commits", "rollbacks", "pending", "by_table", "elsewhere")
        ),
        F.min_of(F.when(F.col("pending") == 1, F.least("half_ms", "born_ms"))).alias("oldest_ms"),
        F.sum_of("all_targets").alias("targets"),
        F.sum_of(F.col("all_targets") * F.col("by_table")).alias("table_targets"),
        F.sum_of(F.when(F.col("commits") == 1, F.col("declared")).otherwise(0)).alias("wanted"),
    )
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    latencies = []
    for each in counted.collect():
        own_step = each.pop("step")
        place = {name: each.pop(name) for name in PLACE}
        if own_step is not None:
            latencies.append({**place, "step": own_step, "count": each["transactions"]})
        oldest_ms = each.pop("oldest_ms")
        known = found.setdefault(tuple(place.values()), {**place, **dict.fromkeys(each, 0), "oldest_ms": None})
        for name, value in each.items():
            known[name] += value
        known["oldest_ms"] = min((ms for ms in (known["oldest_ms"], oldest_ms) if ms is not None), default=None)
    return list(found.values()), latencies


def by_hour(counted: Sequence[Mapping[str, Any]], now_ms: int) -> list[dict[str, Any]]:
    """Return counts of earlier steps, those of transactions that are not recent any more without their minute."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in counted:
        minute = each["slot"]
        is_recent = minute is not None and minute * 60_000 >= now_ms - RECENT_MS
        plain = {**each, "slot": minute if is_recent else None}
        known = found.setdefault(tuple(plain.get(name) for name in (*PLACE, "step")), plain)
        if known is plain:
            continue
        for name in each.keys() - {*PLACE, "step", "oldest_ms"}:
            known[name] += each[name]
        if "oldest_ms" in each:
            ages = (known["oldest_ms"], each["oldest_ms"])
            known["oldest_ms"] = min((ms for ms in ages if ms is not None), default=None)
    return list(found.values())


def topic_counts(rows: Frame) -> list[dict[str, Any]]:
    """Return how many messages were declared and how many targets were read, by broker and topic, and from when on."""
    known = rows.where(F.col("kind").isin(int(Kind.HALF), int(Kind.TARGET)) & F.col("topic").is_not_null())
    counted = known.aggregate(
        ["backend", "topic"],
        F.count_of(F.when(F.col("kind") == int(Kind.HALF), 1)).alias("declared"),
        F.count_of(F.when(F.col("kind") == int(Kind.TARGET), 1)).alias("targets"),
        F.min_of(F.when(F.col("ts_ms") > 0, F.col("ts_ms"))).alias("first_ms"),
        F.max_of("ts_ms").alias("last_ms"),
        F.min_of(F.when(F.col("kind") == int(Kind.HALF), F.col("ts_ms"))).alias("half_ms"),
    )
    return counted.collect()


def severities_of(counts: Mapping[str, int], rules: Mapping[str, Any]) -> dict[str, Severity]:
    """Return the severity of each verdict that was found, by the configuration's thresholds."""
    found: dict[str, Severity] = {}
    for name, count in counts.items():
        rule = rules.get(name)
        severity = SEVERITIES[Verdict[name]]
        if rule is not None and rule.severity:
            severity = Severity[rule.severity.upper()]
        if rule is not None and count <= rule.count_max:
            severity = Severity.INFO
        found[name] = severity
    return found


def percentile(histogram: Sequence[tuple[int, int]], share: float) -> float:
    """Return an upper bound, in ms, of the latency that *share* of all transactions do not exceed; 0 without any."""
    total = sum(count for _, count in histogram)
    seen = 0
    for step, count in sorted(histogram):
        seen += count
        if seen >= share * total:
            return 0.0 if step == 0 else LATENCY_BASE ** (step - 1)
    return 0.0
