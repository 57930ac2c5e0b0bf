"""The contents of the console's pages, as plain values for their templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from txcore.ids import id_text
from txcore.operator import formatting, selection, timeline, to_json
from txcore.operator.next_step import next_step
from txcore.operator.plan import Step, Verb, fence_text
from txcore.operator.requests import Entry
from txcore.records import OpKind
from txcore.sidecar.figures import ANSWERS, NO_ANSWER
from txcore.sidecar.readiness import trouble_of
from txcore.sidecar.web.charts import Chart, Series, make_chart
from txcore.sidecar.web.desk import Case
from txcore.sidecar.web.guard import CONSOLE
from txcore.sidecar.web.history import QUANTILES
from txcore.sidecar.web.history import Step as HistoryStep
from txcore.sidecar.web.lists import Listing

if TYPE_CHECKING:
    from txcore.outbox.relay import RelayStats
    from txcore.sidecar.figures import Alert
    from txcore.sidecar.group import GroupRunner

NOTHING: Final = "-"
BODY_MAX: Final = 2_000
REASON_MAX: Final = 500
OVERRIDE_HINT: Final = "; --override-fence goes against it"
ROW_STATES: Final = {1: "committed", 2: "closed by a check", 3: "via the message table", 4: "forced by an operator"}
TITLES: Final = {Verb.RESUME: "Resume", Verb.COMMIT: "Force commit", Verb.ROLLBACK: "Force rollback"}
KINDS: Final = {Verb.RESUME: "primary", Verb.COMMIT: "danger", Verb.ROLLBACK: "danger"}
RANGES: Final[Mapping[str, tuple[str, float]]] = {"10m": ("10 minutes", 600.0), "1h": ("1 hour", 3_600.0)}
COLUMNS: Final = 60


def path_of(group: str, *parts: str) -> str:
    """Return a page's path below a group."""
    return "/".join((f"{CONSOLE}/groups", quote(group, safe=""), *(quote(part, safe="") for part in parts)))


def transaction_path(group: str, transaction_id: str) -> str:
    """Return the page of one transaction."""
    return path_of(group, "transactions", transaction_id)


def group_info(runner: GroupRunner) -> dict[str, Any]:
    """Return a group's figures on this checker."""
    plan, figures, status = runner.plan, runner.figures, runner.status()
    partitions, policy = status.checker.partitions, plan.section.policy
    pending = sum(each.pending for each in partitions)
    return {
        "name": plan.name,
        "path": path_of(plan.name),
        "state": status.state.value,
        "reasons": [*status.troubles, *status.degraded],
        "pending": f"{pending:,}",
        "oldest": formatting.age(max((each.oldest_age_s for each in partitions), default=0.0)) if pending else NOTHING,
        "parked": _parked_text(runner.parked),
        "is_parked": bool(runner.parked),
        "table": table_info(runner.relay),
        "partitions": len(partitions),
        "commits": f"{figures.ends['COMMIT']:,}",
        "rollbacks": f"{figures.ends['ROLLBACK']:,}",
        "broker_errors": f"{figures.broker_errors:,}",
        "backend": plan.backend,
        "sources": " and ".join(plan.sources),
        "database": plan.database,
        "policy": f"asked again every {policy.interval_s:g} s, parked after {policy.check_max} answers of UNKNOWN",
        "answers": ", ".join(f"{figures.answers[each]:,} {each}" for each in (*ANSWERS, NO_ANSWER)),
    }


def _parked_text(counts: Mapping[str, int] | None) -> str:
    return "not read yet" if counts is None else f"{sum(counts.values()):,}"


def table_info(relay: RelayStats | None) -> dict[str, Any] | None:
    """Return the message table and its relay here; None without a relay, or before the table was counted."""
    if relay is None or relay.waiting is None:
        return None
    found = relay.waiting
    return {
        "waiting": f"{found.waiting:,}",
        "oldest": formatting.age(found.oldest_age_s) if found.waiting else NOTHING,
        "parked": f"{found.parked:,}",
        "dropped": f"{found.dropped:,}",
        "later": f"{found.later:,}" if found.later else "",
        "is_parked": bool(found.parked),
        "sent": f"{relay.sent:,}",
        "reason": formatting.readable(found.reason, REASON_MAX),
        "trouble": trouble_of(relay) or relay.newer,
    }


def partition_rows(runner: GroupRunner, listing: Listing, now_ms: int) -> list[dict[str, Any]]:
    """Return every partition of the group, with the last writer of its log and the figures of this checker."""
    here = {each.partition: each for each in runner.status().checker.partitions}
    rows = []
    for number in range(max([listing.partition_count, *(each + 1 for each in here)])):
        owner, own = listing.owners.get(number), here.get(number)
        is_here = own is not None and own.is_claimed
        rows.append(
            {
                "number": number,
                "is_here": is_here,
                "owner": owner.by if owner else "this checker" if is_here else "not known",
                "wrote": f"{formatting.age((now_ms - owner.at_ms) / 1000)} ago" if owner else NOTHING,
                "pending": own.pending if own else NOTHING,
                "oldest": formatting.age(own.oldest_age_s) if own and own.pending else NOTHING,
                "in_hand": own.in_hand if own else NOTHING,
                "checkpoint": formatting.age(own.checkpoint_age_s) if own else NOTHING,
            }
        )
    return rows


def alert_rows(alerts: Sequence[Alert], group: str) -> list[dict[str, Any]]:
    """Return the latest alerts, newest first; transactions become links."""
    return [
        {
            "at_ms": each.at_ms,
            "event": each.event,
            "facts": [
                {
                    "name": name,
                    "text": formatting.readable(text),
                    "path": transaction_path(group, text) if name == "transaction_id" else "",
                }
                for name, text in each.facts.items()
                if name != "group"
            ],
        }
        for each in reversed(alerts)
    ]


def list_row(group: str, row: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return a line of the pending or parked page."""
    since_ms = row["parked_ms"] if "code" in row else row["born_ms"]
    times = row["check_times"]
    maximum = row.get("checks_max")
    if row.get("newer_version"):
        decider = f"a newer txcore (wire version {row['newer_version']})"
    elif row.get("awaits_release"):
        decider = to_json.AWAITS_TURN if row.get("order_key") else to_json.AWAITS_RELEASE
    elif row.get("decided"):
        decider = f"{row['decided']}, journaled"
    elif row.get("request"):
        decider = f"{row['request']['by']} asks for {row['request']['decision']}"
    else:
        decider = "fence" if row["fenced"] else "fence, listener" if row["asks_fence"] else "listener"
    return {
        "path": transaction_path(group, row["transaction_id"]),
        "short_id": row["short_id"],
        "age": formatting.age((now_ms - since_ms) / 1000) if since_ms is not None else NOTHING,
        "checks": f"{times}/{maximum}" if maximum else str(times),
        "decider": decider,
        "partition": row["partition"],
        "topics": ", ".join(row["topics"]) or NOTHING,
        "history": row["history"],
        "code": row.get("code", ""),
        "reason": formatting.readable(row.get("reason", "")),
    }


def entry_row(group: str, entry: Entry) -> dict[str, Any]:
    """Return a line of the decisions page."""
    return {
        "at_ms": entry.at_ms,
        "by": formatting.readable(entry.by),
        "what": entry.what,
        "against": entry.forced == to_json.FORCED[2],
        "short_id": selection.short_id(entry.transaction_id),
        "path": transaction_path(group, id_text(entry.transaction_id)),
        "reason": formatting.readable(entry.reason, REASON_MAX),
    }


def transaction_page(group: str, case: Case, now_ms: int, *, has_bodies: bool) -> dict[str, Any]:
    """Return everything about one transaction."""
    journey, row = case.journey, case.asked.row
    half = journey.any_half
    shown = to_json.journey(journey, now_ms, bodies=False)
    entry = journey.parked[-1] if journey.parked else None
    poison = ""
    if half is None and entry is not None:
        poison = (
            formatting.readable(entry.half, BODY_MAX) if has_bodies else f"{formatting.size(len(entry.half))} of poison"
        )
    return {
        "shown": shown,
        "short_id": shown["short_id"],
        "born_ms": half.born_ms if half else None,
        "age": formatting.age((now_ms - half.born_ms) / 1000) if half else "",
        "by": half.by if half else "",
        "fence_text": fence_text(journey, case.asked.reading),
        "row": to_json.fence_row(row),
        "row_state": ROW_STATES.get(row.state, "unknown") if row else "",
        "trouble": case.asked.trouble,
        "next_step": next_step(journey),
        "actions": [] if journey.final else [_action(group, case, verb) for verb in Verb],
        "events": list(timeline.events(journey)),
        "messages": _messages(case, has_bodies=has_bodies),
        "poison": poison,
        "has_bodies": has_bodies,
    }


def plain(text: str) -> str:
    """Return a plan's text without hints for the command line."""
    return text.removesuffix(OVERRIDE_HINT).replace("; give --database", "").replace("no --database", "no database")


def _action(group: str, case: Case, verb: Verb) -> dict[str, str]:
    path = f"{transaction_path(group, id_text(case.journey.transaction_id))}/{verb.value}"
    each = case.plan(verb)
    can_override = (
        verb is not Verb.RESUME and each.step is Step.REFUSED and case.plan(verb, override=True).step is Step.ACT
    )
    return {
        "name": verb.value,
        "title": TITLES[verb],
        "kind": KINDS[verb],
        "text": plain(each.text),
        "path": path if each.step is Step.ACT else "",
        "override_path": f"{path}?override=1" if can_override else "",
    }


def _messages(case: Case, *, has_bodies: bool) -> list[dict[str, Any]]:
    half = case.journey.any_half
    if half is None:
        return []
    return [
        {
            "index": index,
            "topic": each.topic,
            "key": NOTHING if each.key is None else formatting.readable(each.key),
            "size": formatting.size(len(each.body)),
            "headers": {formatting.readable(name): formatting.readable(value) for name, value in each.headers.items()},
            "target": _target(case, index),
            "body": formatting.readable(each.body, BODY_MAX) if has_bodies else None,
        }
        for index, each in enumerate(half.messages)
    ]


def _target(case: Case, index: int) -> str:
    journey = case.journey
    if journey.final:
        return "delivered" if journey.final == OpKind.COMMIT else "never to be delivered"
    if journey.is_parked and journey.decided:
        return "MISSING" if index in timeline.missing(journey) else "delivered"
    return "being delivered" if journey.decided == OpKind.COMMIT else "not delivered"


def charts(steps: Sequence[HistoryStep | None], range_s: float) -> list[Chart]:
    """Return a group's charts."""

    def rates(*names: str) -> list[Series]:
        shown = [name.removeprefix("checks ").lower() for name in names]
        return [
            Series(label, [None if step is None else step.rates[name] for step in steps])
            for label, name in zip(shown, names, strict=True)
        ]

    def quantiles(name: str) -> list[Series]:
        return [
            Series(f"p{part * 100:g}", [None if step is None else getattr(step, name)[part] for step in steps])
            for part in QUANTILES
        ]

    pending = [Series("pending", [None if step is None else float(step.pending) for step in steps])]
    oldest = [Series("oldest", [None if step is None else step.oldest_s for step in steps])]
    drawn = (
        ("pending", "Pending here", pending, lambda value: f"{value:,.0f}"),
        ("oldest", "Age of the oldest", oldest, _duration),
        ("ends", "Halves read and ended, per second", rates("halves", "COMMIT", "ROLLBACK", "parked"), _rate),
        ("checks", "Answers to checks, per second", rates(*(f"checks {e}" for e in (*ANSWERS, NO_ANSWER))), _rate),
        ("asked", "Time of an answered question", quantiles("asked_s"), _duration),
        ("visible", "From birth to delivery", quantiles("visible_s"), _duration),
    )
    return [make_chart(key, title, series, range_s, show, NOTHING) for key, title, series, show in drawn]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0"
    return f"{seconds:.3g} s" if seconds < 60 else formatting.age(seconds)
