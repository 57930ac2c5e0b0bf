"""One step of the audit, from frozen ends to a finished run. `once` is a step without a step before it.

Verdicts are stored by the hour of a transaction's birth. A step judges again the hours of its new rows and the hours
with open transactions, from all rows that were ever landed for these hours; the other hours stay unchanged. So the
work is proportional to the new and open hours, and the result is the same as of one audit over everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txcore.audit.verdicts import Thresholds, exit_code
from txcore.clock import Clock, SystemClock
from txcore.config import Loaded
from txcore.ids import first_id_at
from txcore_spark import coverage, findings, screening, tally
from txcore_spark.coverage import Coverage
from txcore_spark.keeping import ROWS, Keep
from txcore_spark.landing import Lander, Planned
from txcore_spark.plan import as_builtin
from txcore_spark.readers.fence import pruned_below
from txcore_spark.report import write_report
from txcore_spark.rows import BUCKET_MS, CLAIMS, SPARK_SCHEMA, Kind
from txcore_spark.scope import Scope, scope_of
from txcore_spark.session import interpreted
from txcore_spark.store import TABLES, Store

VERSION: Final = 1
"""Version of the format of the manifest and of the files beside it."""
FINDINGS: Final = "findings"
PARTS_MIN: Final = 8
PART_RECORDS: Final = 400_000
NEAR_FEW: Final = 20_000
"""Most rows of suspects for which interpreting the tallies' many columns costs less than compiling them."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Window:
    """Range of births to judge, in wall clock milliseconds: [since, until)."""

    since_ms: int = 0
    until_ms: int = 1 << 62


@dataclass(slots=True)
class Step:
    """Result of one step, from which the manifest is made."""

    number: int
    scope: Scope
    covered: Coverage
    thresholds: Thresholds
    keep: Keep
    buckets: dict[int, int] = field(default_factory=dict)
    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Audit:
    """Runs steps over one configuration and keeps them in one store. It runs one step at a time.

    Args:
        say: Called with the name of each phase that the step begins.
    """

    def __init__(
        self,
        session: SparkSession,
        loaded: Loaded,
        store: Store,
        *,
        say: Say = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._session = session
        self._loaded = loaded
        self._store = store
        self._say = say
        self._clock = clock or SystemClock()

    def once(self, window: Window | None = None, *, is_landed: bool = True) -> dict[str, Any]:
        """Audit all records of the brokers, or the births of a window, and return the manifest.

        Args:
            is_landed: Keep rows and lines beside the run; a repair needs the rows.
        """
        return self._step(None, window or Window(), is_whole=window is None, is_landed=is_landed)

    def incremental(self) -> dict[str, Any]:
        """Audit the records since the last incremental step and its open transactions, and return the manifest."""
        before = None
        for number in reversed(self._store.finished()):
            manifest = self._store.manifest(number)
            if manifest["mode"] == "incremental":
                before = manifest
                break
        return self._step(before, Window(), is_whole=False, mode="incremental")

    def landed(self, number: int) -> dict[str, Any]:
        """Judge the rows that a generator has written to run *number*, and return the manifest."""
        scope = scope_of(self._loaded)
        keep = Keep(self._session, self._store, number)
        rows = keep.rows()
        now_ms = self._clock.wall_ms()
        covered = Coverage(horizons=dict.fromkeys(self._loaded.config.groups, bytes(16)), records=rows.count())
        step = Step(number, scope, covered, self._thresholds(now_ms), keep)
        self._judge(step, rows, None, Window())
        return self._close(self._manifest(step, Planned(), None, Window(), "once"))

    def _thresholds(self, now_ms: int) -> Thresholds:
        settings = self._loaded.config.audit
        return Thresholds(
            now_ms, round(settings.grace_s * 1000), round(settings.late_s * 1000), round(settings.release_s * 1000)
        )

    def _step(
        self,
        before: dict[str, Any] | None,
        window: Window,
        *,
        is_whole: bool,
        mode: str = "once",
        is_landed: bool = True,
    ) -> dict[str, Any]:
        scope = scope_of(self._loaded, before)
        number = self._store.begin()
        ends = {(each["source"], each["partition"]): each["end"] for each in before["ends"]} if before else {}
        lander = Lander(self._session, scope, ends, 2 * number, self._lower(before), self._say)
        keep = Keep(self._session, self._store, number, is_landed=is_landed)
        self._say("reading the fence tables")
        early = lander.fence_ranges(is_late=False)
        lander.land(early, keep)
        self._say("freezing the ends: op, target, half")
        now_ms = self._clock.wall_ms()
        planned = lander.freeze()
        late = lander.fence_ranges(is_late=True)
        self._say(f"reading {len(planned.all())} ranges of {len(planned.edges)} partitions")
        lander.land(planned.ranges, keep)
        lander.land(late, keep)
        for ranges in (early, late):
            for name, each in ranges.items():
                planned.ranges[f"{name} (fence)"] += each
        rows = keep.rows()
        covered = coverage.measure(rows, planned, scope, before, now_ms, is_whole=is_whole)
        self._read_horizons(scope, covered)
        step = Step(number, scope, covered, self._thresholds(now_ms), keep)
        self._judge(step, rows, before, window)
        return self._close(self._manifest(step, planned, before, window, mode))

    def _close(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write the small tables and the report, and last of all the manifest."""
        number = manifest["number"]
        for name, (key, schema) in TABLES.items():
            self._store.write_table(number, name, manifest[key], schema)
        write_report(self._store, manifest)
        self._store.finish(number, manifest)
        return manifest

    def _lower(self, before: Mapping[str, Any] | None) -> bytes:
        """Return the lowest id whose fence row may have changed since the last step."""
        if before is None:
            return b""
        margin_ms = round((self._loaded.config.audit.transaction_s + self._loaded.config.audit.skew_s) * 1000)
        again_ms = min((bucket * BUCKET_MS for bucket in before["again"]), default=before["now_ms"])
        return bytes(first_id_at(max(min(again_ms, before["now_ms"] - margin_ms), 0)))  # plain: it goes into a plan

    def _read_horizons(self, scope: Scope, covered: Coverage) -> None:
        """Read the horizons last: rows leave a table only after its horizon was raised."""
        for group in self._loaded.config.groups:
            tables = scope.tables(group)
            if tables:
                urls = [self._loaded.secret("databases", each.backend, "url") for each in tables]
                try:
                    covered.horizons[group] = max(
                        pruned_below(url, each.name) for url, each in zip(urls, tables, strict=True)
                    )
                except Exception:  # noqa: BLE001 - without a horizon no absent row proves anything
                    covered.rows_withheld.add(group)

    def _rows(self, numbers: Sequence[int]) -> DataFrame:
        places = [self._store.place(number, ROWS) for number in numbers if self._store.has(number, ROWS)]
        if not places:
            return self._session.createDataFrame([], SPARK_SCHEMA)
        return self._session.read.schema(SPARK_SCHEMA).parquet(*places)

    def _judge(self, step: Step, rows: DataFrame, before: Mapping[str, Any] | None, window: Window) -> None:
        """Judge the transactions of every hour with new rows or open transactions."""
        everything, judged = rows, rows
        # The rows of one task fit into its memory; each part is a task in every stage, so small runs have few.
        parts = max(PARTS_MIN, step.covered.records // PART_RECORDS)
        self._session.conf.set("spark.sql.shuffle.partitions", str(parts))
        if before is not None:
            self._say("collecting the open transactions")
            facts = rows.where((F.col("kind") < int(Kind.COVER)) & ~screening.is_claim()).select("bucket").distinct()
            touched = {each["bucket"] for each in facts.collect()} | set(before["again"])
            everything = self._rows([*before["rows"], step.number]).where(F.col("bucket").isin([*touched, CLAIMS]))
            judged = everything.where(F.col("bucket").isin([*touched]))
        self._say("one line per transaction")
        lines = step.keep.lines(screening.screened(judged, step.thresholds.late_ms))
        step.buckets = {int(bucket): run for bucket, run in before["buckets"].items()} if before else {}
        step.buckets |= {each["bucket"]: step.number for each in lines.select("bucket").distinct().collect()}
        self._say("verdicts")
        is_within = (F.col("born_ms") >= window.since_ms) & (F.col("born_ms") < window.until_ms)
        suspects = lines.where(is_within & (F.col("doubt") == 1)).select("tx")
        near = (
            everything.where(F.col("kind") < int(Kind.COVER))
            .join(tally.sent_if_few(suspects), "tx", "left_semi")
            .unionByName(everything.where(screening.is_claim()))
            .persist()
        )
        with interpreted(self._session) if near.count() <= NEAR_FEW else nullcontext():
            tallies = self._tallies(step, near).persist()
            step.parts["verdicts"] = self._find(step, tallies, near)
        counted = lines.where(is_within & (F.col("doubt") == 0)).select(*findings.COUNTED)
        transactions, latencies = findings.counts(
            counted.unionByName(findings.countable(tallies)), step.thresholds.now_ms
        )
        step.parts |= {"transactions": transactions, "latencies": latencies, "topics": findings.topic_counts(rows)}
        for kept in (tallies, near):
            kept.unpersist()

    def _find(self, step: Step, tallies: DataFrame, near: DataFrame) -> list[dict[str, Any]]:
        """Write the findings, and return the number of each verdict."""
        place, sources = self._store.place(step.number, FINDINGS), step.scope.sources
        names = {number: source.topic or f"{source.name}.{source.log}" for number, source in sources.items()}
        found = findings.with_places(findings.judged(tallies, step.thresholds), near, names)
        found.write.parquet(place)
        return findings.verdict_counts(self._session.read.schema(found.schema).parquet(place))

    def _tallies(self, step: Step, near: DataFrame) -> DataFrame:
        """Return the tallies of all transactions whose rows *near* holds."""
        covered, scope = step.covered, step.scope
        in_force = tally.owned(near, covered.unknown_tokens)
        sums = tally.summed(in_force, tally.sums_of(len(scope.backends)))
        tallies = tally.derived(sums, len(scope.backends), covered.judged(scope), covered.rows_known(scope))
        if tallies.where(tally.needs_care()).limit(1).count():
            tallies = tally.careful(tallies, in_force)
        return tally.with_unseen(tallies)

    def _manifest(
        self, step: Step, planned: Planned, before: Mapping[str, Any] | None, window: Window, mode: str
    ) -> dict[str, Any]:
        covered, scope = step.covered, step.scope
        touched = {bucket for bucket, run in step.buckets.items() if run == step.number}
        kept = {
            name: [each for each in (before or {}).get(name, []) if each["bucket"] not in touched]
            for name in ("verdicts", "transactions", "latencies")
        }
        parts = {name: kept[name] + step.parts[name] for name in kept}
        gaps = [coverage.described(scope, gap) for gap in covered.gaps]
        gaps += [_unseen(scope, each) for each in step.parts["topics"] if each["unseen"]]
        counts = Counter[str]()
        for each in parts["verdicts"]:
            counts[each["verdict"]] += each["count"]
        severities = findings.severities_of(counts, self._loaded.config.audit.rules, len(gaps))
        again = {each["bucket"] for each in parts["transactions"] if each["pending"]}
        if covered.gaps:
            again |= touched
        return as_builtin(
            {
                "version": VERSION,
                "number": step.number,
                "mode": mode,
                "now_ms": step.thresholds.now_ms,
                "since_ms": window.since_ms,
                "until_ms": window.until_ms,
                "exit_code": exit_code(set(severities.values())),
                "severities": {name: severity.name.lower() for name, severity in severities.items()},
                "counts": dict(counts) | ({"COVERAGE_GAP": len(gaps)} if gaps else {}),
                "backends": scope.backends,
                "groups": scope.groups,
                "sources": [as_builtin(each) for each in scope.sources.values()],
                "ends": [_end(planned, *key, end) for key, end in sorted(covered.ends.items())],
                "gaps": gaps,
                "judged_from_ms": covered.judged_from_ms,
                "withheld": sorted(covered.withheld),
                "unknown_tokens": [list(each) for each in covered.unknown_tokens],
                "horizons": {group: horizon.hex() for group, horizon in covered.horizons.items()},
                "records": covered.records,
                "strange": covered.strange,
                "buckets": {str(bucket): run for bucket, run in sorted(step.buckets.items())},
                "again": sorted(again),
                "rows": [*(before["rows"] if before else []), *([step.number] if step.keep.is_landed else [])],
                "topics": _topics((before or {}).get("topics", []), step.parts["topics"]),
                **parts,
            }
        )


def _end(planned: Planned, source: int, partition: int, end: int) -> dict[str, Any]:
    edge = planned.edges.get((source, partition))
    return {
        "source": source,
        "partition": partition,
        "start": planned.starts.get((source, partition), end),
        "end": end,
        "gone": edge.first if edge is not None and edge.is_truncated else 0,
    }


def _topics(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {(each["backend"], each["topic"]): dict(each) for each in old}
    for each in new:
        known = found.setdefault((each["backend"], each["topic"]), {**each, "declared": 0, "targets": 0, "unseen": 0})
        for name in ("declared", "targets", "unseen"):
            known[name] += each[name]
    return [found[key] for key in sorted(found)]


def _unseen(scope: Scope, topic: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gap for a topic that halves name and that the audit does not read."""
    backend = next(name for name, number in scope.backends.items() if number == topic["backend"])
    why = (
        f"{topic['unseen']} messages go to topic {topic['topic']}, which is not read: name it in "
        f"audit.backends.{backend}.topics, or, if it is a queue, a stream that taps it in audit.backends.{backend}.taps"
    )
    return {"backend": backend, "log": "target", "name": topic["topic"], "group": "", "why": why, "is_for_good": False}
