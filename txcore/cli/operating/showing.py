"""`txcore show`: one transaction's whole journey, in order."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from txcore.cli.operating.listing import now_ms
from txcore.cli.operating.place import Place, at_place, opened
from txcore.cli.operating.screen import Screen
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.operator import formatting, selection, timeline, to_json
from txcore.operator.lookup import Asked, ask_fence, find
from txcore.operator.next_step import next_step
from txcore.operator.plan import decider_text, fence_text
from txcore.records import ParkCode

BODY_MAX: Final = 2_000
STATE_STYLES: Final = {"committed": "green", "rolled back": "green", "parked": "bold red", "pending": "yellow"}


@at_place
def show(
    place: Place,
    transaction: Annotated[str, typer.Argument(metavar="ID", help="Its first or last digits are enough.")],
    *,
    bodies: Annotated[bool, typer.Option("--bodies", help="Also show message bodies.")] = False,
) -> None:
    """Show one transaction's journey: half, checks, requests, end, parked records, and the fence's answer.

    Reads only; the fence is asked without leaving a tombstone. Exit code: 0, 2 if there is no such transaction.
    """
    wanted = selection.wanted(transaction)
    screen = Screen(as_json=place.as_json)
    with opened(place, screen) as session:
        with screen.busy():
            journey = find(session.operator, session.address.group, wanted)
        with screen.busy("asking the fence"):
            asked = ask_fence(session.fence, journey)
    if place.as_json:
        shown = to_json.journey(journey, now_ms(), bodies=bodies)
        screen.json(shown | {"fence": to_json.fence(asked.reading), "fence_row": to_json.fence_row(asked.row)})
        return
    _Page(screen, journey, asked, bodies=bodies).print()


class _Page:
    """The journey for people."""

    def __init__(self, screen: Screen, journey: Journey, asked: Asked, *, bodies: bool) -> None:
        self._screen = screen
        self._journey = journey
        self._asked = asked
        self._bodies = bodies
        self._half = journey.any_half

    def print(self) -> None:
        """Print all of it."""
        self._head()
        self._messages()
        self._screen.say()
        self._screen.say("journey", "bold")
        for event in timeline.events(self._journey):
            at = formatting.iso(event.at_ms) if event.at_ms is not None else ""
            self._screen.hang(f"  {at:24}  {event.what:9} ", event.text)
        self._screen.say()
        self._facts()

    def _head(self) -> None:
        journey, half = self._journey, self._half
        state = journey.state
        self._screen.say(f"{id_text(journey.transaction_id)}  {state.upper()}", STATE_STYLES.get(state, ""))
        if half is None:
            return
        age = formatting.age((now_ms() - half.born_ms) / 1000)
        decider = f"{decider_text(half)} decides"
        self._screen.hang(
            "  ",
            f"born {age} ago, partition {journey.partition}, generation {max(half.generation, 0)}, {decider}",
        )

    def _messages(self) -> None:
        half = self._half
        if half is None:
            entry = self._journey.parked[-1] if self._journey.parked else None
            if entry is not None and entry.half:
                kind = "poison" if entry.code == ParkCode.POISON else "bytes"
                self._screen.hang(f"  {kind:8}", formatting.readable(entry.half))
            return
        missing = set(timeline.missing(self._journey))
        for index, message in enumerate(half.messages):
            key = "no key" if message.key is None else f"key {formatting.readable(message.key)}"
            lost = "  MISSING" if index in missing else ""
            self._screen.hang(f"  [{index}] ", f"{message.topic}  {key}  {formatting.size(len(message.body))}{lost}")
            for name, value in message.headers.items():
                self._screen.hang("      ", f"{formatting.readable(name)}: {formatting.readable(value)}")
            if self._bodies:
                self._screen.hang("      ", f"body: {formatting.readable(message.body, BODY_MAX)}")

    def _facts(self) -> None:
        journey, half, asked = self._journey, self._half, self._asked
        if half is not None:
            self._screen.hang("fence   ", fence_text(journey, asked.reading))
        if asked.row is not None:
            row = asked.row
            shown = f"row: state {row.state}, group {row.group}, made {formatting.iso(row.created_ms)}"
            self._screen.hang("        ", f"{shown}, read by {formatting.many(row.checks, 'check')}")
        if asked.trouble:
            self._screen.hang("        ", asked.trouble)
        missing = timeline.missing(self._journey)
        if missing:
            self._screen.hang("missing ", ", ".join(f"[{index}]" for index in missing))
        self._screen.hang("next    ", next_step(journey, selection.short_id(journey.transaction_id)))
