"""The report: one self-contained HTML page, made of a run's manifest and its findings; and the data that it shows."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from txcore.audit.verdicts import Severity, Verdict
from txcore.findings import counted
from txcore.ids import id_text
from txcore_spark import charts
from txcore_spark.advice import ADVICE
from txcore_spark.axis import Axis, axis_of
from txcore_spark.findings import percentile
from txcore_spark.limits import limits_of, time_text
from txcore_spark.page_script import SCRIPT
from txcore_spark.page_style import STYLE
from txcore_spark.store import Store
from txcore_spark.stories import finding_table

NAME: Final = "report.html"
DATA: Final = "report.json"
"""Name of the file with the report's data, whose SHA-256 is in the report, the manifest and the terminal's lines."""
FINDINGS_MAX: Final = 2_000
KIND_MAX: Final = 200
"""Most findings of one kind that the report shows."""
PARTITIONS_MAX: Final = 60
SHARES: Final = (0.5, 0.9, 0.99)
_SENTENCES: Final = {
    0: "Everything agrees.",
    1: "Everything agrees, with warnings.",
    2: "There are violations.",
    3: "Inconclusive: not everything could be read.",
    4: "The audit failed.",
}


def write_report(
    store: Store, manifest: Mapping[str, Any], acknowledged: Mapping[tuple[str, str, str], str] | None = None
) -> str:
    """Write a run's report and its data beside its manifest, and return the data's SHA-256.

    Args:
        acknowledged: Name and note of each finding that is acknowledged, by id, verdict and group.
    """
    found = store.findings(manifest, FINDINGS_MAX, kind_max=KIND_MAX)
    names, notes = _names(manifest, "groups"), acknowledged or {}
    for each in found:
        note = notes.get((id_text(each["tx"]), each["verdict"], names.get(each["group"], "")))
        if note is not None:
            each["texts"] = [*(each["texts"] or []), f"acknowledged by {note}"]
    store.write(manifest["number"], DATA, data_of(manifest, found))
    store.write(manifest["number"], NAME, page(manifest, found).encode())
    return hash_of(manifest, found)


def data_of(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the data of a report as JSON, the same bytes for the same data; without the key of the hashes."""
    known = {name: value for name, value in manifest.items() if name not in {"report_sha256", "secret"}}
    shown = [{**each, "tx": id_text(each["tx"])} for each in findings]
    return msgspec.json.encode({"run": known, "findings": shown}, order="deterministic")


def hash_of(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of a report's data."""
    return hashlib.sha256(data_of(manifest, findings)).hexdigest()


def page(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page."""
    code = manifest["exit_code"]
    cut = time_text(manifest["now_ms"])
    how = (
        f"Logs cut at {cut}, mode {manifest['mode']}, {counted(manifest['records'], 'record')} read; exit code {code}."
    )
    title = f"txcore audit, run {manifest['number']}"
    body = [
        f"<h1>{title}</h1>",
        f'<p class="verdict c{code}"><b>{_SENTENCES[code]}</b> {how}</p>',
        "<h2>Verdicts</h2>",
        _verdict_table(manifest),
        charts.bars("Findings (logarithmic)", _totals(manifest), is_log=True) if manifest["counts"] else "",
        "<h2>This run</h2>",
        _header(manifest, hash_of(manifest, findings)),
        "<h2>Findings</h2>",
        finding_table(manifest, findings),
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
        "<h2>The rules</h2>",
        _rule_table(),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}<script>{SCRIPT}</script></body></html>\n"
    )


def _header(manifest: Mapping[str, Any], digest: str) -> str:
    """Return the run's origin and extent, and the hash of its data."""
    origin = manifest["origin"]
    ends, bad = manifest["ends"], {(each.get("source"), each.get("partition")) for each in manifest["gaps"]}
    whole = sum((each["source"], each["partition"]) not in bad for each in ends)
    extent = f"{whole:,} of {counted(len(ends), 'partition')} whole, {counted(manifest['records'], 'record')}"
    strange = f", {manifest['strange']:,} of them not txcore's" if manifest["strange"] else ""

    def named(urls: Mapping[str, str]) -> str:
        return "; ".join(f"{name} ({url})" for name, url in urls.items()) or "none"

    facts = {
        "Made by": f"{origin['user']} on {origin['host']} ({origin['system']})",
        "Versions": ", ".join(f"{name} {number}" for name, number in origin["versions"].items()),
        "Brokers": named(origin["brokers"]),
        "Databases": named(origin["databases"]),
        "Groups": ", ".join(manifest["groups"]),
        "Logs cut at": time_text(manifest["now_ms"]),
        "Coverage": f"{extent}{strange}, {counted(len(manifest['gaps']), 'gap')}",
        "Builds on": f"the rows of runs {', '.join(map(str, manifest['rows']))}"
        if manifest["rows"]
        else "no kept rows",
        "Data": f"{DATA}, SHA-256 {digest}",
    }
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(text)}</dd>' for name, text in facts.items())}</dl>"


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
                escape(where),
                escape(ADVICE[Verdict[name]]),
            )
        )
    return _table(("", "verdict", "#count", "rule", "where", "what to do"), rows)


def _group_table(manifest: Mapping[str, Any]) -> str:
    names = (
        "transactions", "halves", "commits", "rollbacks", "pending", "wanted", "targets", "elsewhere", "by_table",
        "table_targets",
    )  # fmt: skip
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
        *(f"#{name}" for name in ("seen", *names[1:5], "to deliver", "targets", "on other brokers")),
        "#by message table",
        "#its targets",
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
            time_text(each["first_ms"]) if each["first_ms"] else "",
            time_text(each["last_ms"]) if each["last_ms"] else "",
        )
        for each in manifest["topics"]
    ]
    return _table(("broker", "topic", "#declared by halves", "#targets", "first record", "last record"), rows)


def _series(manifest: Mapping[str, Any]) -> list[str]:
    axis = axis_of(manifest, manifest["transactions"])
    sums = [Counter[str]() for _ in axis.moments]
    for number, rows in enumerate(axis.rows):
        for each in rows:
            sums[number].update(
                {"halves": each["halves"], "decided": each["commits"] + each["rollbacks"],
                 "by table": each["by_table"], "targets": each["targets"], "to deliver": each["wanted"],
                 "in doubt": each["pending"]}
            )  # fmt: skip

    def line(*names: str) -> dict[str, list[float]]:
        return {name: [float(found[name]) for found in sums] for name in names}

    shown = {
        "Halves, decisions, and transactions by the message table": ("halves", "decided", "by table"),
        "Messages to deliver and targets": ("to deliver", "targets"),
        "In doubt": ("in doubt",),
    }
    drawn = [
        charts.lines(f"{title}, by {axis.unit} of birth", axis.marks, line(*each)) for title, each in shown.items()
    ]
    return [_outside(axis), *drawn]


def _outside(axis: Axis) -> str:
    """Return in words what no chart over time shows."""
    count = sum(each["transactions"] for each in axis.outside)
    if not count:
        return ""
    outside = counted(count, "transaction")
    return f"<p>No chart shows {outside} with a claimed birth outside of the time that was judged.</p>"


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
    axis = axis_of(manifest, manifest["latencies"])
    series: dict[str, list[float]] = {f"p{share * 100:g}": [] for share in SHARES}
    for found in axis.rows:
        steps = [(each["step"], each["count"]) for each in found]
        for share in SHARES:
            series[f"p{share * 100:g}"].append(percentile(steps, share))
    heads = ("group", "broker", "#decided", *(f"#p{share * 100:g}" for share in SHARES), "#longest")
    chart = charts.lines(f"Percentiles by {axis.unit} of birth", axis.marks, series, charts.duration)
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


def _rule_table() -> str:
    rows = [(each.name, each.severity.name.lower(), escape(each.value), escape(ADVICE[each])) for each in Verdict]
    return _table(("verdict", "severity", "rule", "what to do"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    is_number = [head.startswith("#") for head in heads]
    head = "".join(
        f"<th{' class=n' if n else ''}>{escape(name.removeprefix('#'))}</th>"
        for name, n in zip(heads, is_number, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(
            f'<td{" class=n" if n else ""} data-h="{escape(name.removeprefix("#"))}"><div>{cell}</div></td>'
            for name, cell, n in zip(heads, row, is_number, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
