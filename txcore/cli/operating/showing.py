"""`txcore show`: one transaction's whole journey, in order."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer

from txcore.cli.operating.listing import now_ms
from txcore.cli.operating.place import Address, Place, at_place, opened
from txcore.cli.operating.screen import Screen
from txcore.digest import message_digest
from txcore.errors import BackendNotInstalledError, TxcoreError
from txcore.findings import counted
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
    targets: Annotated[
        bool, typer.Option("--targets", help="Also read the target topics whole, and show each message there.")
    ] = False,
) -> None:
    """Show one transaction's journey: half, checks, requests, end, parked records, and the fence's answer.

    Reads only; the fence is asked without leaving a tombstone. --targets needs the extra `spark`, but no Java.
    Exit code: 0, 2 if there is no such transaction.
    """
    wanted = selection.wanted(transaction)
    screen = Screen(as_json=place.as_json)
    with opened(place, screen) as session:
        with screen.busy():
            journey = find(session.operator, session.address.group, wanted)
        with screen.busy("asking the fence"):
            asked = ask_fence(session.fence, journey)
        found = _Targets(session.address, journey, screen) if targets else None
    if place.as_json:
        shown = to_json.journey(journey, now_ms(), bodies=bodies)
        shown |= {"fence": to_json.fence(asked.reading), "fence_row": to_json.fence_row(asked.row)}
        if found is not None:
            shown |= {"targets": found.rows(), "unread_topics": found.troubles}
        screen.json(shown)
        return
    _Page(screen, journey, asked, found, bodies=bodies).print()


class _Targets:
    """What the target topics hold of a transaction, read by the audit's readers."""

    def __init__(self, address: Address, journey: Journey, screen: Screen) -> None:
        looking = _looking()
        self._half = journey.any_half
        self._found: list[Any] = []
        self.troubles: dict[str, str] = {}
        for topic in sorted({each.topic for each in self._half.messages} if self._half else ()):
            try:
                with screen.busy(f"reading {topic}"):
                    self._found += looking.targets_of(address.broker, address.group, topic, journey.transaction_id)
            except TxcoreError as error:
                self.troubles[topic] = str(error)

    def lines(self, index: int) -> list[str]:
        """Return what is to be said of the message with this index."""
        message = self._half.messages[index] if self._half else None
        found = [each for each in self._found if each.index == index]
        lines = [f"target {each.place}{_at(each.at_ms)}{self._difference(each)}" for each in found]
        if message is not None and message.topic in self.troubles:
            return [*lines, f"its topic was not read: {self.troubles[message.topic]}"]
        return lines or ["no target in its topic"]

    def rows(self) -> list[dict[str, Any]]:
        """Return every target for programs."""
        return [
            {
                "index": each.index,
                "place": each.place,
                "at": None if each.at_ms is None else formatting.iso(each.at_ms),
                "is_as_half": not self._difference(each),
            }
            for each in self._found
        ]

    def _difference(self, target: Any) -> str:
        messages = self._half.messages if self._half else []
        if target.index >= len(messages):
            return "  NOT IN THE HALF"
        message = messages[target.index]
        own = message_digest(message.topic, message.key, message.body, message.headers)
        return "" if own == target.digest else "  DIFFERS FROM THE HALF"


def _at(at_ms: int | None) -> str:
    return "" if at_ms is None else f"  {formatting.iso(at_ms)}"


def _looking() -> Any:
    try:
        return importlib.import_module("txcore_spark.looking")
    except ModuleNotFoundError as error:
        raise BackendNotInstalledError("txcore show --targets", str(error.name), "spark") from error


class _Page:
    """The journey for people."""

    def __init__(
        self, screen: Screen, journey: Journey, asked: Asked, targets: _Targets | None, *, bodies: bool
    ) -> None:
        self._screen = screen
        self._journey = journey
        self._asked = asked
        self._targets = targets
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
            for line in self._targets.lines(index) if self._targets else ():
                self._screen.hang("      ", line)
            if self._bodies:
                self._screen.hang("      ", f"body: {formatting.readable(message.body, BODY_MAX)}")

    def _facts(self) -> None:
        journey, half, asked = self._journey, self._half, self._asked
        if half is not None:
            self._screen.hang("fence   ", fence_text(journey, asked.reading))
        if asked.row is not None:
            row = asked.row
            shown = f"row: state {row.state}, group {row.group}, made {formatting.iso(row.created_ms)}"
            self._screen.hang("        ", f"{shown}, read by {counted(row.checks, 'check')}")
        if asked.trouble:
            self._screen.hang("        ", asked.trouble)
        missing = timeline.missing(self._journey)
        if missing:
            self._screen.hang("missing ", ", ".join(f"[{index}]" for index in missing))
        self._screen.hang("next    ", next_step(journey, selection.short_id(journey.transaction_id)))
