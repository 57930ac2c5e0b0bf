"""The report: one self-contained HTML page, made of a run's manifest and its findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from txcore.audit.verdicts import PARKED, Severity, Verdict
from txcore.ids import id_text
from txcore_spark import charts
from txcore_spark.findings import percentile
from txcore_spark.limits import limits_of, time_text
from txcore_spark.rows import BUCKET_MS
from txcore_spark.store import Store

NAME: Final = "report.html"
FINDINGS_MAX: Final = 200
POINTS_MAX: Final = 400
PARTITIONS_MAX: Final = 60
SHARES: Final = (0.5, 0.9, 0.99)
_SENTENCES: Final = {
    0: "Everything agrees.",
    1: "Everything agrees, with warnings.",
    2: "There are violations.",
    3: "Inconclusive: not everything could be read.",
    4: "The audit failed.",
}
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#1c1c1c}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 8px;border-bottom:1px solid #ddd;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code{font:12px ui-monospace,monospace;overflow-wrap:anywhere}
.verdict{padding:.7em 1em;border-left:6px solid;background:#f5f5f5;font-size:1.1em}
.c0{border-color:#2f8f5b}.c1{border-color:#c9a227}.c2,.c4{border-color:#b3261e}.c3{border-color:#7a7a7a}
.violation{color:#b3261e;font-weight:600}.warning{color:#8a6a00}.inconclusive{color:#555;font-style:italic}
figure{margin:1em 0}figcaption{font-weight:600}svg{width:100%;height:auto;font:12px system-ui,sans-serif}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#e8e8e8}.verdict{background:#22262b}
th,td{border-color:#3a3f46}svg text{fill:#e8e8e8}
.violation{color:#ff8a80}.warning{color:#e6c65c}.inconclusive{color:#bbb}}
"""
REPAIRS: Final[Mapping[Verdict, str]] = {
    Verdict.LOST: "txcore audit repair {run} --only {id} --apply",
    Verdict.STUCK: "txcore show {id} --group {group}; txcore audit repair {run} --only {id} --apply",
    Verdict.DISCARDED: "txcore resume {id} --group {group}",
    Verdict.UNDELIVERABLE: "txcore resume {id} --group {group}",
}
"""The operator's command for each kind that has one; no command withdraws a leaked message."""
RESUME_TABLE: Final = "txcore table resume {id} --group {group}"
"""The operator's command, instead of `txcore resume`, for a message that the relay has parked."""
_ADVICE: Final[Mapping[Verdict, str]] = {
    Verdict.LOST: "this run kept no rows (--no-land): audit again with them, then repair that run",
    Verdict.LEAK: "no command withdraws a message: notify its consumers",
    Verdict.CONFLICT: "look at both decisions: txcore show {id} --group {group}",
    Verdict.MISDECIDED: "compare with the database: txcore show {id} --group {group}",
    Verdict.PHANTOM: "find the writer: txcore show {id} --group {group}",
    Verdict.CORRUPT: "compare target and half: txcore show {id} --group {group}",
}


def write_report(store: Store, manifest: Mapping[str, Any]) -> str:
    """Write a run's report beside its manifest and return its path."""
    found = store.findings(manifest, FINDINGS_MAX)
    return store.write(manifest["number"], NAME, page(manifest, found).encode())


def page(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page."""
    code = manifest["exit_code"]
    cut = time_text(manifest["now_ms"])
    how = f"Logs cut at {cut}, mode {manifest['mode']}, {manifest['records']:,} records read; exit code {code}."
    title = f"txcore audit, run {manifest['number']}"
    body = [
        f"<h1>{title}</h1>",
        f'<p class="verdict c{code}"><b>{_SENTENCES[code]}</b> {how}</p>',
        "<h2>Verdicts</h2>",
        _verdict_table(manifest),
        charts.bars("Findings (logarithmic)", _totals(manifest), is_log=True) if manifest["counts"] else "",
        "<h2>Brokers and groups</h2>",
        _group_table(manifest),
        "<h2>Topics</h2>",
        _topic_table(manifest),
        "<h2>Over time</h2>",
        *_series(manifest),
        "<h2>Latency from half to decision</h2>",
        *_latency(manifest),
        "<h2>What was judged</h2>",
        "".join(f"<p>{escape(sentence)}</p>" for sentence in limits_of(manifest)),
        "<h2>Coverage</h2>",
        _coverage(manifest),
        "<h2>Findings</h2>",
        _finding_table(manifest, findings),
        "<h2>The rules</h2>",
        _rule_table(),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _names(manifest: Mapping[str, Any], what: str) -> dict[int, str]:
    return {number: name for name, number in manifest[what].items()}


def _totals(manifest: Mapping[str, Any]) -> dict[str, float]:
    return {
        verdict.name: manifest["counts"][verdict.name] for verdict in Verdict if manifest["counts"].get(verdict.name)
    }


def _verdict_table(manifest: Mapping[str, Any]) -> str:
    counts = manifest["counts"]
    if not counts:
        return "<p>No finding.</p>"
    backends, groups = _names(manifest, "backends"), _names(manifest, "groups")
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for each in manifest["verdicts"]:
        place = f"{groups.get(each['group'], '?')} on {backends.get(each['home'], 'no broker')}"
        places[each["verdict"]][place] += each["count"]
    rows = []
    for name in sorted(counts, key=lambda name: -Severity[manifest["severities"][name].upper()]):
        severity = manifest["severities"][name]
        most = sorted(places[name].items(), key=lambda item: (-item[1], item[0]))[:6]
        where = ", ".join(f"{place}: {count:,}" for place, count in most)
        rows.append(
            (
                f'<span class="{severity}">{severity}</span>',
                name,
                f"{counts[name]:,}",
                escape(Verdict[name].value),
                where,
            )
        )
    return _table(("", "verdict", "#count", "rule", "where"), rows)


def _group_table(manifest: Mapping[str, Any]) -> str:
    names = ("transactions", "halves", "commits", "rollbacks", "pending", "wanted", "targets")
    sums: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    oldest: dict[tuple[int, int], int] = {}
    for each in manifest["transactions"]:
        key = (each["group"], each["home"])
        sums[key].update({name: each[name] or 0 for name in names})
        if each["oldest_ms"] is not None:
            oldest[key] = min(oldest.get(key, each["oldest_ms"]), each["oldest_ms"])
    backends, groups = _names(manifest, "backends"), _names(manifest, "groups")
    rows = [
        (
            escape(groups.get(group, "?")),
            escape(backends.get(home, "(fence only)")),
            *(f"{found[name]:,}" for name in names),
            charts.duration(manifest["now_ms"] - oldest[group, home]) if (group, home) in oldest else "",
        )
        for (group, home), found in sorted(sums.items())
    ]
    heads = (
        "group",
        "broker",
        *(f"#{name}" for name in ("seen", *names[1:5], "to deliver", "targets")),
        "#in doubt since",
    )
    return _table(heads, rows)


def _topic_table(manifest: Mapping[str, Any]) -> str:
    backends = _names(manifest, "backends")
    rows = [
        (
            escape(backends[each["backend"]]),
            f"<code>{escape(each['topic'])}</code>",
            f"{each['declared']:,}",
            f"{each['targets']:,}",
        )
        for each in manifest["topics"]
    ]
    return _table(("broker", "topic", "#declared by halves", "#targets"), rows)


def _moments(rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[int, list[Mapping[str, Any]]]]:
    """Return rows by their time in ms: by the minute where all are recent, else by the hour."""
    is_recent = bool(rows) and all(each.get("slot") is not None for each in rows)
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for each in rows:
        found[each["slot"] * 60_000 if is_recent else each["bucket"] * BUCKET_MS].append(each)
    return "minute" if is_recent else "hour", found


def _series(manifest: Mapping[str, Any]) -> list[str]:
    unit, moments = _moments(manifest["transactions"])
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for moment, rows in moments.items():
        for each in rows:
            sums[moment].update(
                {"halves": each["halves"], "decided": each["commits"] + each["rollbacks"],
                 "targets": each["targets"] or 0, "to deliver": each["wanted"] or 0, "in doubt": each["pending"]}
            )  # fmt: skip
    shown = sorted(sums)[-POINTS_MAX:]
    marks = [time_text(moment)[:16] for moment in shown]

    def line(*names: str) -> dict[str, list[float]]:
        return {name: [float(sums[moment][name]) for moment in shown] for name in names}

    return [
        charts.lines(f"Halves and decisions by {unit} of birth", marks, line("halves", "decided")),
        charts.lines(f"Messages to deliver and targets by {unit} of birth", marks, line("to deliver", "targets")),
        charts.lines(f"In doubt by {unit} of birth", marks, line("in doubt")),
    ]


def _latency(manifest: Mapping[str, Any]) -> list[str]:
    by_place: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for each in manifest["latencies"]:
        by_place[each["group"], each["home"]][each["step"]] += each["count"]
    if not by_place:
        return ["<p>No decided transaction.</p>"]
    backends, groups = _names(manifest, "backends"), _names(manifest, "groups")
    rows = [
        (
            escape(groups.get(group, "?")),
            escape(backends.get(home, "?")),
            f"{sum(steps.values()):,}",
            *(charts.duration(percentile(list(steps.items()), share)) for share in (*SHARES, 1)),
        )
        for (group, home), steps in sorted(by_place.items())
    ]
    unit, moments = _moments(manifest["latencies"])
    shown = sorted(moments)[-POINTS_MAX:]
    series: dict[str, list[float]] = {f"p{share * 100:g}": [] for share in SHARES}
    for moment in shown:
        steps = [(each["step"], each["count"]) for each in moments[moment]]
        for share in SHARES:
            series[f"p{share * 100:g}"].append(percentile(steps, share))
    marks = [time_text(moment)[:16] for moment in shown]
    heads = ("group", "broker", "#decided", *(f"#p{share * 100:g}" for share in SHARES), "#longest")
    chart = charts.lines(f"Percentiles by {unit} of birth", marks, series, charts.duration)
    return [_table(heads, rows), chart]


def _coverage(manifest: Mapping[str, Any]) -> str:
    sources = {each["number"]: each for each in manifest["sources"]}
    bad = {(each.get("source"), each.get("partition")) for each in manifest["gaps"]}
    bars = []
    for each in manifest["ends"][:PARTITIONS_MAX]:
        source = sources[each["source"]]
        end = max(each["end"], 1)
        name = f"{source['backend']} {source['topic'] or source['name'] + ' ' + source['log']}/{each['partition']}"
        bars.append((name[-46:], each["gone"] / end, 1.0, (each["source"], each["partition"]) not in bad))
    rows = [
        (escape(each["backend"]), escape(each["log"]), f"<code>{escape(each['name'])}</code>", escape(each["why"]))
        for each in manifest["gaps"]
    ]
    gaps = _table(("broker", "log", "name", "why it was not read"), rows) if rows else "<p>No gap.</p>"
    left = len(manifest["ends"]) - PARTITIONS_MAX
    more = f"<p>{left} more partitions are in the manifest.</p>" if left > 0 else ""
    return gaps + charts.coverage("Share of each partition that was read (grey: gone before the audit)", bars) + more


def _repair(verdict: Verdict, row: int, *, has_rows: bool) -> str:
    if verdict is Verdict.LOST and not has_rows:
        return ""
    if verdict is Verdict.UNDELIVERABLE and row == PARKED:
        return RESUME_TABLE
    return REPAIRS.get(verdict, "")


def _finding_table(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    groups = _names(manifest, "groups")
    rows = []
    for each in findings:
        verdict, identity = Verdict[each["verdict"]], id_text(each["tx"])
        values = {"id": identity, "group": groups.get(each["group"], "?"), "run": manifest["number"]}
        command = _repair(verdict, each["row"], has_rows=bool(manifest["rows"])).format(**values)
        advice = f"<code>{escape(command)}</code>" if command else escape(_ADVICE.get(verdict, "").format(**values))
        places = "<br>".join(f"<code>{escape(place)}</code>" for place in (each["places"] or [])[:8])
        said = "<br>".join(escape(text) for text in each["texts"] or [])
        rows.append(
            (
                verdict.name,
                f"<code>{identity}</code>",
                escape(values["group"]),
                places + ("<br>" + said if said else ""),
                advice,
            )
        )
    total = sum(manifest["counts"].values()) - manifest["counts"].get(Verdict.DUP_OP.name, 0)
    more = f"<p>{total:,} findings in all; those shown are the worst. All are in the run's Parquet files.</p>"
    return (
        (_table(("verdict", "transaction", "group", "places", "what to do"), rows) + more) if rows else "<p>None.</p>"
    )


def _rule_table() -> str:
    return _table(("verdict", "rule"), [(each.name, escape(each.value)) for each in Verdict])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    is_number = [head.startswith("#") for head in heads]
    head = "".join(
        f"<th{' class=n' if n else ''}>{escape(name.removeprefix('#'))}</th>"
        for name, n in zip(heads, is_number, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if n else ''}>{cell}</td>" for cell, n in zip(row, is_number, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
