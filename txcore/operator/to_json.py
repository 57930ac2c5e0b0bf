"""Transactions as JSON for programs; `docs/operating.md` documents these stable fields."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from txcore.history.journey import Journey
from txcore.history.parked_entries import half_in
from txcore.ids import id_text
from txcore.operator import formatting
from txcore.operator.selection import age_s, short_id, topics_in
from txcore.records import Forced, Half, Op, OpKind

if TYPE_CHECKING:
    from txcore.fence import FenceReading
    from txcore.sqlfence import FenceRow

FORCED: Final[Mapping[int, str]] = {Forced.NO: "", Forced.YES: "forced", Forced.OVERRIDE: "forced against the fence"}


AWAITS_RELEASE: Final = "committed, waits for release"
"""The state of a half that its producer has committed and its partition's owner has not published."""
AWAITS_TURN: Final = "committed, waits for its turn"
"""Of a half that is released after all earlier ones of its order key."""


def kind_name(kind: int) -> str | None:
    """Return the name of an op kind, None for 0."""
    try:
        return OpKind(kind).name if kind else None
    except ValueError:
        return f"KIND_{kind}"


def park_code(journey: Journey) -> str:
    """Return the reason code of a parked transaction, as far as the logs that were read hold it."""
    if journey.parked:
        return journey.parked[-1].code
    return next((op.reason for _, op in reversed(journey.ops) if op.kind == OpKind.DISCARD), "")


def pending(journey: Journey, now_ms: int) -> dict[str, Any]:
    """Return a line of `txcore pending --json`."""
    half, request = journey.half, journey.request
    return {
        **_line(journey, half, now_ms),
        "generation": journey.generation,
        "born": formatting.iso(journey.born_ms),
        "checks": journey.count,
        "checks_max": half.check_max or None if half else None,
        "by": half.by if half else "",
        "newer_version": journey.newer_version if journey.is_newer else None,
        "request": None if request is None else _op(request),
    }


def parked(journey: Journey, now_ms: int) -> dict[str, Any]:
    """Return a line of `txcore parked --json`."""
    entry, half = journey.parked[-1], journey.any_half
    return {
        **_line(journey, half, now_ms),
        "generation": entry.generation,
        "code": entry.code,
        "reason": entry.reason,
        "parked": formatting.iso(entry.at_ms),
        "born": formatting.iso(half.born_ms) if half else None,
        "checks": entry.count,
        "missing": list(entry.missing),
        "by": entry.by,
    }


def fence(reading: FenceReading | None) -> dict[str, str] | None:
    """Return the fence's answer; None where it was not asked."""
    return None if reading is None else {"answer": reading.answer.value, "reason": reading.reason}


def fence_row(row: FenceRow | None) -> dict[str, Any] | None:
    """Return the fence's row; None where there is none, or the fence was not asked."""
    if row is None:
        return None
    return {"state": row.state, "group": row.group, "created": formatting.iso(row.created_ms), "checks": row.checks}


def journey(journey: Journey, now_ms: int, *, bodies: bool) -> dict[str, Any]:
    """Return `txcore show --json`, without the fence's part."""
    half = journey.any_half
    entry = journey.parked_as
    return {
        **_common(journey, half),
        "state": journey.state,
        "generation": journey.generation,
        "newer_version": journey.newer_version if journey.is_newer else None,
        "age_s": round(max(now_ms - half.born_ms, 0) / 1000, 3) if half else None,
        "checks": journey.count,
        "missing": list(entry.missing) if entry else [],
        "messages": [_message(index, each, bodies=bodies) for index, each in enumerate(half.messages)] if half else [],
        "halves": [
            _copy(each, appended_ms) for each, appended_ms in zip(journey.halves, journey.half_times_ms, strict=True)
        ],
        "ops": [{"position": position, **_op(op)} for position, op in journey.ops],
        "parked": [
            {
                "generation": each.generation,
                "code": each.code,
                "reason": each.reason,
                "at": formatting.iso(each.at_ms),
                "checks": each.count,
                "by": each.by,
                "missing": list(each.missing),
                "poison": None if half_in(each) else b64encode(each.half).decode(),
            }
            for each in journey.parked
        ],
    }


def _common(journey: Journey, half: Half | None) -> dict[str, Any]:
    """Return the fields that every form of a transaction has."""
    return {
        "transaction_id": id_text(journey.transaction_id),
        "short_id": short_id(journey.transaction_id),
        "group": journey.group,
        "partition": journey.partition,
        "fenced": half.fence_decides if half else None,
        "asks_fence": half.asks_fence if half else None,
        "decided": kind_name(journey.decided),
        "awaits_release": journey.awaits_release,
        "order_key": formatting.readable(half.order_key) if half and half.order_key else None,
    }


def _line(journey: Journey, half: Half | None, now_ms: int) -> dict[str, Any]:
    """Return the fields that a line of each list has."""
    return {
        **_common(journey, half),
        "age_s": round(age_s(journey, now_ms), 3),
        "topics": list(topics_in(journey)),
        "messages": len(half.messages) if half else 0,
    }


def _message(index: int, message: Any, *, bodies: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "index": index,
        "topic": message.topic,
        "key": None if message.key is None else formatting.readable(message.key),
        "size": len(message.body),
        "headers": {name: formatting.readable(value) for name, value in message.headers.items()},
    }
    if bodies:
        shown["body_base64"] = b64encode(message.body).decode()
    return shown


def _copy(half: Half, appended_ms: int | None) -> dict[str, Any]:
    return {
        "generation": half.generation,
        "born": formatting.iso(half.born_ms),
        "appended": None if appended_ms is None else formatting.iso(appended_ms),
        "by": half.by,
        "immunity_s": half.immunity_ms / 1000,
        "is_carried": half.folded_to >= 0 and half.generation == 0,
        "reason": half.reason,
    }


def _op(op: Op) -> dict[str, Any]:
    return {
        "kind": kind_name(op.kind),
        "generation": op.generation,
        "by": op.by,
        "at": formatting.iso(op.at_ms),
        "count": op.count,
        "decision": kind_name(op.decision),
        "forced": FORCED.get(op.forced, ""),
        "reason": op.reason,
    }
