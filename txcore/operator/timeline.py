"""One transaction's journey as lines in order: who wrote what, when and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txcore.history.journey import Journey, half_in
from txcore.operator import formatting as words
from txcore.operator import to_json as telling
from txcore.records import FINAL_KINDS, OWNED_KINDS, Half, Op, OpKind, Parked


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the journey; `at_ms` is the writer's wall clock, or the broker's for a half."""

    at_ms: int | None
    what: str
    text: str


def events(journey: Journey) -> Iterator[Event]:
    """Yield what happened: copies of the half, parked records and ops, by their writers' clocks."""
    found: list[tuple[int, int, Event]] = []
    for half, appended_ms in zip(journey.halves, journey.half_times_ms, strict=True):
        at_ms = appended_ms if appended_ms is not None else _time_of(half)
        found.append((at_ms or half.born_ms, 0, Event(at_ms, "half", _half_text(half))))
    found.extend((each.at_ms, 1, Event(each.at_ms, "parked", _parked_text(each))) for each in journey.parked)
    newest_ms = 0
    for _, op in journey.ops:
        # Ops stay in the order of their log, which is the truth, whatever their writers' clocks say.
        newest_ms = max(newest_ms, op.at_ms)
        found.append((newest_ms, 2, Event(op.at_ms, (telling.kind_name(op.kind) or "").lower(), op_text(op))))
    for _, _, event in sorted(found, key=lambda each: each[:2]):
        yield event


def missing(journey: Journey) -> Sequence[int]:
    """Return the indexes of the messages that are known not to be out."""
    return journey.parked[-1].missing if journey.is_parked and journey.parked else ()


def op_text(op: Op) -> str:
    """Return an op in words, without its kind and time."""
    told: list[Any] = [f"by {op.by}"]
    if op.kind == OpKind.FORCE and op.token:
        told = [f"request for {telling.kind_name(op.decision)} refused by {op.by}"]
    elif op.kind == OpKind.FORCE:
        against = " AGAINST THE FENCE" if telling.FORCED.get(op.forced) == telling.FORCED[2] else ""
        told = [f"{op.by} asks for {telling.kind_name(op.decision)}{against}"]
    elif op.kind == OpKind.CHECKED:
        told = [f"answered UNKNOWN, {words.many(op.count, 'time')} now", *told]
    elif op.kind == OpKind.DECIDED:
        told = [f"{telling.kind_name(op.decision)}", *told]
    if op.forced and op.kind in FINAL_KINDS | OWNED_KINDS:
        told.append(telling.FORCED.get(op.forced, ""))
    if op.reason:
        told.append(words.readable(op.reason))
    return ", ".join(told)


def _time_of(half: Half) -> int | None:
    return half.born_ms if half.generation == 0 and half.folded_to < 0 else None


def _half_text(half: Half) -> str:
    told = [f"generation {half.generation}", f"by {half.by}", f"immune for {half.immunity_ms / 1000:g} s"]
    if half.generation:
        told = [f"generation {half.generation}: resumed", half.reason]
    elif half.folded_to >= 0:
        told.append("carried forward")
    return ", ".join(each for each in told if each)


def _parked_text(parked: Parked) -> str:
    by = f"generation {parked.generation}, after {words.many(parked.count, 'check')}, by {parked.by}"
    poison = "" if half_in(parked) else ", poison"
    return f"{parked.code}: {words.readable(parked.reason)} ({by}{poison})"
