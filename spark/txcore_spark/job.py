"""One step of the audit, from frozen ends to a finished run. `once` is a step without a step before it.

Verdicts are stored by the hour of a transaction's birth. A step judges again the hours of its new rows and the hours
with open transactions, from all rows that were ever landed for these hours; the other hours stay unchanged. So the
work is proportional to the new and open hours, and the result is the same as of one audit over everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from txcore.audit.verdicts import Thresholds, Verdict, exit_code
from txcore.clock import Clock, SystemClock
from txcore.config import Loaded
from txcore_spark import copies, coverage, findings, horizons, packs, retention, screening, tally, topics
from txcore_spark import expressions as F
from txcore_spark.coverage import Coverage
from txcore_spark.frames import Engine, Frame, Keep, Say
from txcore_spark.landing import Lander, Planned, births_after
from txcore_spark.origin import origin_of
from txcore_spark.plan import as_builtin
from txcore_spark.report import write_report
from txcore_spark.rows import BUCKET_MS, MARKS, Kind
from txcore_spark.scope import Scope, scope_of
from txcore_spark.store import FINDINGS, TABLES, VERSION, Store
from txcore_spark.tables.keeper import Keeper

NEAR_FEW: Final = 20_000
"""Most rows of suspects for which interpreting the tallies' many columns costs less than compiling them."""


@dataclass(frozen=True, slots=True)
class Window:
    """Range of births to judge, in wall clock milliseconds: [since, until)."""

    since_ms: int = 0
    until_ms: int = 1 << 62


@dataclass(slots=True)
class Step:
    """Result of one step, from which the manifest is made; `again`: hours that the next step judges once more."""

    number: int
    scope: Scope
    covered: Coverage
    thresholds: Thresholds
    keep: Keep
    buckets: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Audit:
    """Runs steps over one configuration and keeps them in one store. It runs one step at a time.

    Args:
        say: Called with the name of each phase that the step begins.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: Loaded,
        store: Store,
        *,
        say: Say = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._loaded = loaded
        self._store = store
        self._say = say
        self._clock = clock or SystemClock()

    def once(self, window: Window | None = None, *, is_landed: bool = True) -> dict[str, Any]:
        """Audit all records of the brokers, or the births of a window, and return the manifest.

        Args:
            is_landed: Keep rows and lines beside the run; a repair needs the rows.
        """
        return self._step(None, window or Window(), is_landed=is_landed)

    def incremental(self) -> dict[str, Any]:
        """Audit the records since the last incremental step and its open transactions, and return the manifest."""
        runs = (each for each in self._store.newest_first() if each["version"] == VERSION)
        before = next((each for each in runs if each["mode"] == "incremental"), None)
        if before is not None:
            retention.forget(before, self._first_bucket(self._clock.wall_ms()))
        return self._step(before, Window(), mode="incremental")

    def landed(self, number: int) -> dict[str, Any]:
        """Judge the rows that a generator has written to run *number*, and return the manifest."""
        scope = scope_of(self._loaded)
        keep = self._engine.keep(self._store, number)
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
        mode: str = "once",
        is_landed: bool = True,
    ) -> dict[str, Any]:
        scope = scope_of(self._loaded, before)
        number = self._store.begin()
        now_ms = self._clock.wall_ms()
        births = births_after(max(self._since_ms(before), window.since_ms), window.until_ms, now_ms, self._margin_ms)
        keep = self._engine.keep(self._store, number, is_landed=is_landed)
        planned = Lander(scope, before, 2 * number, births, self._say).read(keep)
        rows = keep.rows()
        covered = coverage.measure(rows, planned, scope, before, now_ms, since_ms=window.since_ms)
        horizons.read(scope, covered, rows, before, now_ms)
        if mode == "incremental":
            retention.limit(covered, scope, self._first_bucket(now_ms))
        step = Step(number, scope, covered, self._thresholds(now_ms), keep)
        self._judge(step, rows, before, window)
        return self._close(self._manifest(step, planned, before, window, mode))

    def _close(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write the small tables and the report, then the manifest, and then what the store makes of all its runs."""
        number = manifest["number"]
        for name, (key, schema) in TABLES.items():
            self._store.write_table(number, name, manifest[key], schema)
        acknowledged = Keeper(self._store).acknowledged() if self._loaded.config.audit.tables else {}
        manifest["report_sha256"] = write_report(self._store, manifest, acknowledged)
        self._store.finish(number, manifest)
        if self._loaded.config.audit.tables:
            self._say("tables of results")
            Keeper(self._store).catch_up()
        if manifest["mode"] == "incremental":
            self._tidy(manifest)
        return manifest

    def _tidy(self, manifest: dict[str, Any]) -> None:
        """Keep the store small: its files few, and nothing of births that it is not to keep."""
        packs.pack(self._store, manifest)
        if retention.is_due(manifest, self._store.before(manifest["number"], 1)):
            from_bucket = self._first_bucket(manifest["now_ms"])
            if from_bucket:
                retention.prune(self._store, manifest, from_bucket)
            if self._loaded.config.audit.tables:
                Keeper(self._store).tidy(from_bucket)

    def _first_bucket(self, now_ms: int) -> int:
        return retention.first_bucket(now_ms, self._loaded.config.audit.keep_days)

    @property
    def _margin_ms(self) -> int:
        settings = self._loaded.config.audit
        return round((settings.transaction_s + settings.skew_s) * 1000)

    def _since_ms(self, before: Mapping[str, Any] | None) -> int:
        """Return the lowest birth whose fence row may have changed since the last step."""
        if before is None:
            return 0
        again: list[int] = [bucket * BUCKET_MS for bucket in before["again"]]
        return max(min([*again, int(before["now_ms"]) - self._margin_ms]), 0)

    def _rows(self, step: Step, before: Mapping[str, Any]) -> Frame:
        """Return the rows of a step and of all before, without those of a partition that a later one has read again."""
        chain = {**before, "rows": [*before["rows"], *([step.number] if step.keep.is_landed else [])]}
        parts = self._store.parts(chain)
        found: Frame = self._engine.read([each.uri for each in parts if not each.cuts])
        for part in parts:
            if part.cuts:
                frame: Frame = self._engine.read([part.uri])
                for cut in part.cuts:
                    is_there = (F.col("source") == cut["source"]) & (F.col("partition") == cut["partition"])
                    frame = frame.where(~(is_there & (F.col("position") >= cut["end"])))
                found = found.union(frame)
        return found

    def _judge(self, step: Step, rows: Frame, before: Mapping[str, Any] | None, window: Window) -> None:
        """Judge the transactions of every hour with new rows or open transactions."""
        everything, judged = rows, rows
        self._engine.expect(step.covered.records)
        if before is not None:
            self._say("collecting the open transactions")
            facts = rows.where((F.col("kind") < int(Kind.COVER)) & ~screening.is_mark()).select("bucket").distinct()
            touched = {each["bucket"] for each in facts.collect()} | set(before["again"])
            everything = self._rows(step, before)
            everything = everything.where(F.col("bucket").isin([*touched, MARKS]))
            judged = everything.where(F.col("bucket").isin([*touched]))
        everything, judged = (topics.marked(each, step.scope, step.covered.hidden) for each in (everything, judged))
        self._say("one line per transaction")
        lines = step.keep.lines(screening.screened(judged, step.thresholds.late_ms, step.scope.fence_only()))
        step.buckets = {int(bucket): run for bucket, run in before["buckets"].items()} if before else {}
        step.buckets |= {each["bucket"]: step.number for each in lines.select("bucket").distinct().collect()}
        self._say("verdicts")
        is_within = (F.col("born_ms") >= window.since_ms) & (F.col("born_ms") < window.until_ms)
        suspects = lines.where(is_within & (F.col("doubt") == 1)).select("tx")
        near = (
            everything.where(F.col("kind") < int(Kind.COVER))
            .join(suspects.small_if_few(), ["tx"], "left_semi")
            .union(everything.where(screening.is_claim()))
            .kept()
        )
        with self._engine.for_few_rows() if near.count() <= NEAR_FEW else nullcontext():
            tallies = self._tallies(step, self._counting(step, near, everything, rows)).kept()
            step.parts["verdicts"] = self._find(step, tallies, near)
            step.parts["unproven"] = findings.unproven_counts(tallies)
        counted = lines.where(is_within & (F.col("doubt") == 0)).select(*findings.COUNTED)
        transactions, latencies = findings.counts(counted.union(findings.countable(tallies)), step.thresholds.now_ms)
        step.parts |= {"transactions": transactions, "latencies": latencies, "topics": findings.topic_counts(rows)}
        for kept in (tallies, near):
            kept.release()

    def _counting(self, step: Step, near: Frame, everything: Frame, rows: Frame) -> Frame:
        """Return the rows of *near* on which verdicts rest: not those of forged copies."""
        if near.where(copies.is_copy()).is_empty():
            return near
        # The proof of a copy that was written after the ops were frozen is read by the next step, which judges it.
        awaited = copies.unproven(rows, everything).select("bucket").distinct()
        step.again = {each["bucket"] for each in awaited.collect()}
        return copies.counting(near, everything, step.covered.judged(step.scope))

    def _find(self, step: Step, tallies: Frame, near: Frame) -> list[dict[str, Any]]:
        """Write the findings, and return the number of each verdict."""
        place, sources = self._store.place(step.number, FINDINGS), step.scope.sources
        names = {number: source.topic or f"{source.name}.{source.log}" for number, source in sources.items()}
        found = findings.with_places(findings.judged(tallies, step.thresholds), near, names)
        return findings.verdict_counts(self._engine.write(found, place))

    def _tallies(self, step: Step, near: Frame) -> Frame:
        """Return the tallies of all transactions whose rows *near* holds."""
        covered, scope = step.covered, step.scope
        in_force = tally.owned(near, covered.unknown_tokens)
        sums = tally.summed(in_force, tally.sums_of(len(scope.backends)))
        known = (covered.judged(scope), covered.rows_known(scope))
        tallies = tally.derived(sums, len(scope.backends), *known, scope.fence_only())
        if not tallies.where(tally.needs_care()).is_empty():
            tallies = tally.careful(tallies, in_force)
        return tally.with_unproven(tallies, covered.sent_known(scope))

    def _manifest(
        self, step: Step, planned: Planned, before: Mapping[str, Any] | None, window: Window, mode: str
    ) -> dict[str, Any]:
        covered, scope = step.covered, step.scope
        touched = {bucket for bucket, run in step.buckets.items() if run == step.number}
        kept = {
            name: [each for each in (before or {}).get(name, []) if each["bucket"] not in touched]
            for name in ("verdicts", "transactions", "latencies", "unproven")
        }
        for name in ("transactions", "latencies"):
            kept[name] = findings.by_hour(kept[name], step.thresholds.now_ms)
        parts = {name: kept[name] + step.parts[name] for name in kept}
        gaps = [coverage.described(scope, gap) for gap in covered.gaps]
        gaps += coverage.unproven(scope, covered, parts["unproven"])
        found = Counter({Verdict.COVERAGE_GAP.name: len(gaps)})
        for each in parts["verdicts"]:
            found[each["verdict"]] += each["count"]
        counts = {each.name: found[each.name] for each in Verdict if found[each.name]}
        severities = findings.severities_of(counts, self._loaded.config.audit.rules)
        again = {each["bucket"] for each in parts["transactions"] if each["pending"]}
        again |= {each["bucket"] for each in parts["unproven"]} | step.again
        if covered.gaps:
            again |= touched
        return as_builtin(
            {
                "version": VERSION,
                "number": step.number,
                "mode": mode,
                "origin": origin_of(self._loaded),
                "now_ms": step.thresholds.now_ms,
                "since_ms": window.since_ms,
                "until_ms": window.until_ms,
                "exit_code": exit_code(set(severities.values())),
                "severities": {name: severity.name.lower() for name, severity in severities.items()},
                "counts": counts,
                "backends": scope.backends,
                "groups": scope.groups,
                "secret": scope.secret,
                "sources": [as_builtin(each) for each in scope.sources.values()],
                "ends": [_end(planned, before, *key, end) for key, end in sorted(covered.ends.items())],
                "gaps": gaps,
                "judged_from_ms": covered.judged_from_ms,
                "sent_from_ms": covered.sent_from_ms,
                "withheld": sorted(covered.withheld),
                "rows_withheld": sorted(covered.rows_withheld),
                "ragged": _ragged(before, step.number, covered),
                "named": [
                    {"group": group, "backend": backend, "topics": sorted(names)}
                    for (group, backend), names in sorted(scope.named.items())
                ],
                "by_table": sorted(scope.by_table),
                "unread": {name: each.unread for name, each in planned.topics.items() if each.unread},
                "refused": {name: each.refused for name, each in planned.topics.items() if each.refused},
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


def _end(planned: Planned, before: Mapping[str, Any] | None, source: int, partition: int, end: int) -> dict[str, Any]:
    key = (source, partition)
    edge = planned.edges.get(key)
    seal = planned.seals.get(key, "") if edge is not None and edge.end == end else ""
    if not seal:
        olds = [each for each in (before or {}).get("ends", []) if (each["source"], each["partition"]) == key]
        seal = next((each["seal"] for each in olds if each["end"] == end), "")
    return {
        "source": source,
        "partition": partition,
        "start": planned.starts.get(key, end),
        "end": end,
        "gone": edge.first if edge is not None and edge.is_truncated else 0,
        "seal": seal,
    }


def _ragged(before: Mapping[str, Any] | None, run: int, covered: Coverage) -> list[dict[str, int]]:
    """Return the partitions, by run, of which a later run reads the last records again."""
    names = ("run", "source", "partition", "end")
    mine = [dict(zip(names, (run, *each), strict=True)) for each in covered.ragged]
    return [*(before["ragged"] if before else []), *mine]


def _topics(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {(each["backend"], each["topic"]): dict(each) for each in old}
    for each in new:
        known = found.setdefault((each["backend"], each["topic"]), {**each, "declared": 0, "targets": 0})
        for name in ("declared", "targets"):
            known[name] += each[name]
        for name, chosen in (("first_ms", min), ("last_ms", max), ("half_ms", min)):
            known[name] = chosen((ms for ms in (known[name], each[name]) if ms is not None), default=None)
    return [found[key] for key in sorted(found)]
