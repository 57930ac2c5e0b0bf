"""The rows that a run adds to the tables of results, and the findings that it closes, from its manifest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from txcore.audit.verdicts import SEVERITIES, Severity, Verdict
from txcore.ids import ID_BYTES, born_ms, id_text, parse_id
from txcore_spark.rows import BUCKET_MS
from txcore_spark.store import Store
from txcore_spark.tables.schemas import COVERAGE, FINDINGS, HOURS, RUNS, SCHEMAS

Manifest = Mapping[str, Any]
FOR_EVER_MS: Final = 1 << 62
"""The end of a window, in ms, that has none."""
TOTALS: Final = ("transactions", "halves", "commits", "rollbacks", "pending", "targets")
_SHOWN: Final = ("tx", "verdict", "group", "home", "topic", "places", "texts", "bucket", "born_ms")


def found_in(store: Store, manifest: Manifest) -> pa.Table:
    """Return the findings of the hours that a run judged, as rows of `findings`; those of DUP_OP are left out."""
    parts = [SCHEMAS[FINDINGS].empty_table()]
    for batch in store.found(manifest["number"], _SHOWN):
        columns = dict(zip(_SHOWN, (batch.column(name).to_pylist() for name in _SHOWN), strict=True))
        rows = [
            _finding(manifest, dict(zip(_SHOWN, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
        parts.append(pa.Table.from_pylist(rows, schema=SCHEMAS[FINDINGS]))
    return pa.concat_tables(parts)


def _finding(manifest: Manifest, each: Mapping[str, Any]) -> dict[str, Any]:
    at, run = manifest["now_ms"] * 1000, manifest["number"]
    return {
        "transaction_id": id_text(each["tx"]),
        "verdict": each["verdict"],
        "producer_group": _name(manifest["groups"], each["group"]),
        "broker": _name(manifest["backends"], each["home"]),
        "severity": _severity(manifest, each["verdict"]),
        "topic": each["topic"],
        "places": each["places"],
        "details": each["texts"],
        "bucket": each["bucket"],
        "born_at": each["born_ms"] * 1000,
        "opened_run": run,
        "opened_at": at,
        "seen_run": run,
        "seen_at": at,
    }


def closed_by(manifest: Manifest, open_ones: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the open findings, which the run has not found, that it could judge: they are closed."""
    at, run = manifest["now_ms"] * 1000, manifest["number"]
    judge = Judge(manifest)
    return [{**each, "closed_run": run, "closed_at": at} for each in open_ones if judge.could_find(each)]


class Judge:
    """What a run could judge; where it could not, a finding that is missing in it stays open."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.hours = judged_hours(manifest)
        groups = {number: name for name, number in manifest["groups"].items()}
        self._unproven = {(each["bucket"], groups.get(each["group"])) for each in manifest["unproven"]}

    def could_find(self, finding: Mapping[str, Any]) -> bool:
        """Return whether the run would have found this again: it had all records of its transaction."""
        manifest, group = self._manifest, finding["producer_group"]
        identity = parse_id(finding["transaction_id"])
        birth_ms = born_ms(identity)
        horizon = bytes.fromhex(manifest["horizons"].get(group, "")).ljust(ID_BYTES, b"\0")
        return (
            finding["bucket"] in self.hours
            and manifest["since_ms"] <= birth_ms < manifest["until_ms"]
            and (group in manifest["groups"] or not group)
            and group not in {*manifest["withheld"], *manifest["rows_withheld"]}
            and birth_ms >= manifest["judged_from_ms"].get(group, 0)
            and birth_ms >= manifest["sent_from_ms"].get(group, 0)
            and identity >= horizon
            and (finding["bucket"], group) not in self._unproven
        )


def judged_hours(manifest: Manifest) -> set[int]:
    """Return the hours of birth that a run judged, not those of the runs on which it builds."""
    return {int(bucket) for bucket, run in manifest["buckets"].items() if run == manifest["number"]}


def whole_hours(manifest: Manifest) -> set[int]:
    """Return the hours that it judged from their beginning to their end."""
    since_ms, until_ms = manifest["since_ms"], manifest["until_ms"]
    return {
        each for each in judged_hours(manifest) if each * BUCKET_MS >= since_ms and (each + 1) * BUCKET_MS <= until_ms
    }


def hours_of(manifest: Manifest) -> pa.Table:
    """Return the rows of `verdicts_by_hour`: a verdict's number, or none and 0 where an hour has no finding."""
    hours = whole_hours(manifest)
    sums: dict[tuple[int, int, int], int] = Counter()
    for each in manifest["transactions"]:
        if each["bucket"] in hours:
            sums[each["bucket"], each["group"], each["home"]] += each["transactions"]
    counts: dict[tuple[int, int, int], Counter[str]] = defaultdict(Counter)
    for each in manifest["verdicts"]:
        if each["bucket"] in hours:
            counts[each["bucket"], each["group"], each["home"]][each["verdict"]] += each["count"]
    rows = []
    for place in sorted({*sums, *counts}):
        bucket, group, home = place
        for verdict, count in [*sorted(counts[place].items())] or [("", 0)]:
            rows.append(
                {
                    "bucket": bucket,
                    "hour": bucket * BUCKET_MS * 1000,
                    "producer_group": _name(manifest["groups"], group),
                    "broker": _name(manifest["backends"], home),
                    "verdict": verdict or None,
                    "severity": _severity(manifest, verdict) if verdict else None,
                    "count": count,
                    "transactions": sums.get(place, 0),
                    "run": manifest["number"],
                    "cut_at": manifest["now_ms"] * 1000,
                }
            )
    return pa.Table.from_pylist(rows, schema=SCHEMAS[HOURS])


def coverage_of(manifest: Manifest) -> pa.Table:
    """Return the rows of `coverage`: each partition with what was read of it, and each gap with its reason."""
    sources = {each["number"]: each for each in manifest["sources"]}
    run = {"run": manifest["number"], "cut_at": manifest["now_ms"] * 1000}
    ends = [
        {
            "broker": sources[each["source"]]["backend"],
            "log": sources[each["source"]]["log"],
            "name": sources[each["source"]]["topic"] or sources[each["source"]]["name"],
            "producer_group": sources[each["source"]]["group"],
            "partition": each["partition"],
            "from_position": each["start"],
            "to_position": each["end"],
            "gone_before": each["gone"],
        }
        for each in manifest["ends"]
    ]
    gaps = [
        {
            "broker": each["backend"],
            "log": each["log"],
            "name": each["name"],
            "producer_group": each["group"],
            "partition": each.get("partition"),
            "from_position": each.get("start"),
            "to_position": each.get("end"),
            "gap": each["why"],
        }
        for each in manifest["gaps"]
    ]
    rows = [run | each for each in (*ends, *gaps)]
    return pa.Table.from_pylist(rows, schema=SCHEMAS[COVERAGE])


def run_of(manifest: Manifest) -> pa.Table:
    """Return the row of `runs`."""
    totals = {name: sum(each[name] for each in manifest["transactions"]) for name in TOTALS}
    by_severity = Counter[str]()
    for name, count in manifest["counts"].items():
        by_severity[_severity(manifest, name)] += count
    until_ms = manifest["until_ms"]
    row = {
        "run": manifest["number"],
        "mode": manifest["mode"],
        "cut_at": manifest["now_ms"] * 1000,
        "since_at": manifest["since_ms"] * 1000 or None,
        "until_at": until_ms * 1000 if until_ms < FOR_EVER_MS else None,
        "exit_code": manifest["exit_code"],
        "records": manifest["records"],
        "violations": by_severity["violation"],
        "warnings": by_severity["warning"],
        "gaps": len(manifest["gaps"]),
        "started_by": manifest["origin"]["user"],
        "host": manifest["origin"]["host"],
        "version": manifest["origin"]["versions"].get("txcore", ""),
        "report_sha256": manifest["report_sha256"],
    }
    return pa.Table.from_pylist([row | totals], schema=SCHEMAS[RUNS])


def _name(numbers: Mapping[str, int], number: int) -> str:
    return next((name for name, each in numbers.items() if each == number), "")


def _severity(manifest: Manifest, verdict: str) -> str:
    own: Severity = SEVERITIES[Verdict[verdict]]
    return str(manifest["severities"].get(verdict, own.name.lower()))
