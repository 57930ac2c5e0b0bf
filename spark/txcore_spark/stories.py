"""The findings as a part of the report: one line each, with the transaction's story below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from txcore.audit.verdicts import CANCELLED, DROPPED, FAR, PARKED, SENT, Verdict
from txcore.ids import id_text
from txcore_spark.advice import advice_of, command_of
from txcore_spark.limits import exact_time_text
from txcore_spark.rows import Kind

PLACES_MAX: Final = 8
"""Most positions on the line of a finding; its story has all that the run kept."""
CLAIM_MS: Final = 60_000
"""Difference in milliseconds from which the birth that an id claims is shown beside the records' time."""
ROW_STATES: Final[Mapping[int, str]] = {
    0: "no row",
    1: "committed",
    2: "rolled back",
    3: "committed, in the message table",
    4: "forced by an operator",
    SENT: "committed, sent by the message table",
    DROPPED: "committed, dropped from the message table",
    PARKED: "committed, parked by the relay",
    CANCELLED: "committed, its delayed messages cancelled",
}
"""The state of a fence row in words."""
_HEADS: Final = ("verdict", "transaction", "group", "time (UTC)", "fence row", "positions", "what to do")
_CLASSES: Final[Mapping[str, str]] = {"positions": ' class="places"'}
_NUMBERS: Final = (
    ("copies of the half", "halves"), ("generation", "generation"), ("declared messages", "declared"),
    ("targets on its broker", "targets"), ("different ones", "present"), ("COMMITs", "commits"),
    ("ROLLBACKs", "rollbacks"), ("decisions against the fence", "overrides"),
)  # fmt: skip
_TIMES: Final = (
    ("born, as its id claims", "born_ms"), ("half", "half_ms"), ("decision", "op_ms"),
    ("newest target", "target_ms"), ("discarded", "discarded_ms"), ("all checks over", "deadline_ms"),
)  # fmt: skip


def finding_table(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the findings with its search, each finding with its story."""
    if not findings:
        return "<p>None.</p>"
    verdicts = defaultdict(list)
    for each in findings:
        verdicts[bytes(each["tx"])].append(each["verdict"])
    bodies = "".join(_finding(manifest, each, verdicts[bytes(each["tx"])]) for each in findings)
    heads = "".join(f"<th><button>{escape(each)}</button></th>" for each in _HEADS)
    return (
        f"{_counts(manifest, findings)}{_tools(manifest, findings)}"
        f'<table id="findings" class="cards"><thead><tr>{heads}</tr></thead>{bodies}</table>'
    )


def _counts(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    shown: dict[str, int] = defaultdict(int)
    for each in findings:
        shown[each["verdict"]] += 1
    cut = [
        f"{shown[name]:,} of {count:,} {name}"
        for name, count in sorted(manifest["counts"].items())
        if name in shown and shown[name] < count
    ]
    more = f" Shown are {', '.join(cut)}; all are in the run's Parquet files." if cut else ""
    return f"<p>Each kind has lines of its own.{more}</p>"


def _tools(manifest: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    kinds = list(dict.fromkeys(each["verdict"] for each in findings))
    groups = sorted({_group(manifest, each) for each in findings})

    def options(first: str, names: Sequence[str]) -> str:
        return "".join(f"<option>{escape(each)}</option>" for each in (first, *names))

    return (
        '<div class="tools" hidden><input type="search" placeholder="id, topic, position, reason" aria-label="search">'
        f'<select aria-label="verdict">{options("every verdict", kinds)}</select>'
        f'<select aria-label="group">{options("every group", groups)}</select><output></output></div>'
    )


def _group(manifest: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    return next((name for name, number in manifest["groups"].items() if number == finding["group"]), "?")


def _broker(manifest: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    return next((name for name, number in manifest["backends"].items() if number == finding["home"]), "no broker")


def _finding(manifest: Mapping[str, Any], finding: Mapping[str, Any], verdicts: Sequence[str]) -> str:
    verdict, identity, group = Verdict[finding["verdict"]], id_text(finding["tx"]), _group(manifest, finding)
    severity = manifest["severities"].get(verdict.name, "info")
    places = [f"<code>{escape(each)}</code>" for each in finding["places"] or []]
    more = f"<br>and {len(places) - PLACES_MAX} more" if len(places) > PLACES_MAX else ""
    said = "".join(f"<br>{escape(each)}" for each in finding["texts"] or [])
    has_rows = bool(manifest["rows"])
    command = command_of(verdict, finding["row"], has_rows=has_rows)
    command = command.format(run=manifest["number"], id=identity, group=group)
    advice = escape(advice_of(verdict, has_rows=has_rows)) + (f"<br><code>{escape(command)}</code>" if command else "")
    first_ms, time = _time(finding)
    cells = (
        (severity, f'<span class="{severity}">{verdict.name}</span>'),
        (identity, f"<code>{identity}</code>"),
        (group, f"{escape(group)}<br>on {escape(_broker(manifest, finding))}"),
        (str(first_ms), time),
        (str(finding["row"]), escape(ROW_STATES.get(finding["row"], f"state {finding['row']}"))),
        (str(len(places)), "<br>".join(places[:PLACES_MAX]) + more + said),
        (command, advice),
    )
    line = "".join(
        f'<td data-h="{head}" data-v="{escape(value, quote=True)}"><div{_CLASSES.get(head, "")}>{shown}</div></td>'
        for head, (value, shown) in zip(_HEADS, cells, strict=True)
    )
    return (
        f'<tbody data-kind="{verdict.name}" data-group="{escape(group, quote=True)}"><tr>{line}</tr>'
        f'<tr class="story"><td colspan="{len(_HEADS)}">{_story(finding, identity, verdicts)}</td></tr></tbody>'
    )


def _time(finding: Mapping[str, Any]) -> tuple[int, str]:
    """Return the time of a finding's first record, as a number and as text; without one, what its id claims."""
    times = [finding[name] for name in ("half_ms", "op_ms", "target_ms") if 0 < finding[name] < FAR]
    first_ms = min(times, default=finding["born_ms"])
    claim = exact_time_text(finding["born_ms"])
    if not times:
        return first_ms, f"its id claims {claim}"
    is_other = abs(first_ms - finding["born_ms"]) > CLAIM_MS
    return first_ms, exact_time_text(first_ms) + (f"<br>its id claims {claim}" if is_other else "")


def _order(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the place of a record in its story: a fence row has no time, and comes first."""
    return (record["ts_ms"] or 0, record["index"], record["place"], record["kind"])


def _story(finding: Mapping[str, Any], identity: str, verdicts: Sequence[str]) -> str:
    records = sorted(finding["story"] or [], key=_order)
    rows = "".join(_record(each) for each in records)
    numbers = [f"{name} {finding[key]:,}" for name, key in _NUMBERS]
    times = [f"{name} {exact_time_text(finding[key])}" for name, key in _TIMES if 0 < finding[key] < FAR]
    decides = "The fence decides alone." if finding["fenced"] else ""
    table = f'<table class="records"><tbody>{rows}</tbody></table>' if rows else "<p>No record of it was read.</p>"
    return (
        f"<details><summary>Story of {identity}: {len(records)} record{'' if len(records) == 1 else 's'}</summary>"
        f"<p>{escape(', '.join(verdicts))}. {decides}</p>{table}"
        f"<p>{escape('; '.join(times))}</p><p>{escape('; '.join(numbers))}</p></details>"
    )


def _record(record: Mapping[str, Any]) -> str:
    at = exact_time_text(record["ts_ms"]) if record["ts_ms"] is not None else "no time"
    parts = []
    if record["kind"] in (Kind.HALF, Kind.TARGET) and record["topic"] is not None:
        parts.append(f"message {record['index']} to {record['topic']}")
    if record["kind"] == Kind.ROW:
        parts.append(ROW_STATES.get(record["code"], f"state {record['code']}"))
    if record["generation"]:
        parts.append(f"generation {record['generation']}")
    parts.append(record["text"] or "")
    said = ", ".join(each for each in parts if each)
    return f"<tr><td>{at}</td><td><code>{escape(record['place'])}</code></td><td>{escape(said)}</td></tr>"
