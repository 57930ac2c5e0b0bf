"""One transaction's journey as lines in order, each with its writer, time and reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txcore.findings import counted
from txcore.history.journey import Journey
from txcore.history.parked_entries import half_in
from txcore.operator import formatting, to_json
from txcore.records import FINAL_KINDS, OWNED_KINDS, Half, Op, OpKind, Parked


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the journey; `at_ms` is the writer's wall clock, or the broker's for a half."""

    at_ms: int | None
    what: str
    text: str


def events(journey: Journey) -> Iterator[Event]:
    """Yield the events: copies of the half, parked records and ops, by their writers' clocks."""
    found: list[tuple[int, int, Event]] = []
    for half, appended_ms in zip(journey.halves, journey.half_times_ms, strict=True):
        at_ms = appended_ms
        if at_ms is None and half.generation == 0 and half.folded_to < 0:
            at_ms = half.born_ms
        found.append((at_ms or half.born_ms, 0, Event(at_ms, "half", _half_text(half))))
    found.extend((each.at_ms, 1, Event(each.at_ms, "parked", _parked_text(each))) for each in journey.parked)
    newest_ms = 0
    for _, op in journey.ops:
        # Ops stay in the order of their log, which is the truth, also against their writers' clocks.
        newest_ms = max(newest_ms, op.at_ms)
        found.append((newest_ms, 2, Event(op.at_ms, (to_json.kind_name(op.kind) or "").lower(), op_text(op))))
    for _, _, event in sorted(found, key=lambda each: each[:2]):
        yield event


def missing(journey: Journey) -> Sequence[int]:
    """Return the indexes of the messages that are known to be undelivered."""
    entry = journey.parked_as
    return () if entry is None else entry.missing


def op_text(op: Op) -> str:
    """Return an op as text, without its kind and time."""
    parts: list[Any] = [f"by {op.by}"]
    if op.kind == OpKind.FORCE and op.token:
        parts = [f"request for {to_json.kind_name(op.decision)} refused by {op.by}"]
    elif op.kind == OpKind.FORCE:
        against = " AGAINST THE FENCE" if to_json.FORCED.get(op.forced) == to_json.FORCED[2] else ""
        parts = [f"{op.by} asks for {to_json.kind_name(op.decision)}{against}"]
    elif op.kind == OpKind.CHECKED:
        parts = [f"answered UNKNOWN, {counted(op.count, 'time')} now", *parts]
    elif op.kind == OpKind.DECIDED:
        parts = [f"{to_json.kind_name(op.decision)}", *parts]
    if op.forced and op.kind in FINAL_KINDS | OWNED_KINDS:
        parts.append(to_json.FORCED.get(op.forced, ""))
    if op.reason:
        parts.append(formatting.readable(op.reason))
    return ", ".join(parts)


def _half_text(half: Half) -> str:
    parts = [f"generation {half.generation}", f"by {half.by}", f"immune for {half.immunity_ms / 1000:g} s"]
    if half.generation:
        parts = [f"generation {half.generation}: resumed", half.reason.strip().removesuffix(":")]
    elif half.folded_to >= 0:
        parts.append("carried forward")
    return ", ".join(each for each in parts if each)


def _parked_text(parked: Parked) -> str:
    by = f"generation {parked.generation}, after {counted(parked.count, 'check')}, by {parked.by}"
    poison = "" if half_in(parked) else ", poison"
    return f"{parked.code}: {formatting.readable(parked.reason)} ({by}{poison})"
