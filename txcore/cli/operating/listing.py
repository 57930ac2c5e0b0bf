"""`txcore pending` and `txcore parked`: the undecided transactions of one group or of all, oldest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from txcore.cli.operating.place import Place, Session, addresses, at_place, open_session
from txcore.cli.operating.screen import Screen
from txcore.clock import SystemClock
from txcore.errors import TxcoreError
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.operator import formatting, to_json
from txcore.operator.selection import Filter, age_s, oldest_first, reason_code, short_ids, topics_in

LIMIT: Final = 50
NEWER: Final = "a newer txcore"
OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="Only those older than 90s, 15m, 1h, 2d…")]
Topic = Annotated[str, typer.Option("--topic", metavar="NAME", help="Only those with a message for this topic.")]
Key = Annotated[str, typer.Option("--key", metavar="KEY", help="Only those with a message of this key.")]
Reason = Annotated[str, typer.Option("--reason", metavar="CODE", help="Only those parked for this reason.")]
Limit = Annotated[
    int, typer.Option("--limit", metavar="COUNT", min=0, help="How many of the oldest to show; 0 for all.")
]
Long = Annotated[bool, typer.Option("--long", help="Show whole ids.")]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The list of one command: its name, its transactions, their JSON, and their table."""

    name: str
    read: Callable[[Session], Sequence[Journey]]
    json: Callable[[Journey, int], dict[str, Any]]
    headings: Sequence[str]
    right: Sequence[str]
    row: Callable[[Journey, Mapping[bytes, str]], Sequence[str]]


@at_place
def pending(
    place: Place,
    older_than: OlderThan = "",
    topic: Topic = "",
    key: Key = "",
    limit: Limit = LIMIT,
    *,
    long: Long = False,
) -> None:
    """List the transactions that are not decided yet, oldest first.

    Undecided is normal for a while: a producer is at work, or the checker will ask. Of a file with several groups all
    are listed, unless --group names one.

    Exit code: 0, also when there are none; 1 a group cannot be read; 2 misuse.
    """
    headings = ("id", "age", "checks", "partition", "decided by", "topics")
    kind = _Kind("pending", pending_journeys, to_json.pending, headings, ("age", "checks"), pending_row)
    _list(place, kind, filter_of(older_than, topic, key=key), limit, is_long=long)


@at_place
def parked(
    place: Place,
    older_than: OlderThan = "",
    topic: Topic = "",
    key: Key = "",
    reason: Reason = "",
    limit: Limit = LIMIT,
    *,
    long: Long = False,
) -> None:
    """List the parked transactions, each with its reason, oldest first.

    The checker leaves them alone until `txcore resume`, `commit` or `rollback`. Of a file with several groups all are
    listed, unless --group names one.

    Exit code: 0, also when there are none; 1 a group cannot be read; 2 misuse.
    """
    headings = ("id", "parked", "code", "topics", "reason")
    kind = _Kind("parked", parked_journeys, to_json.parked, headings, ("parked",), _parked_row)
    _list(place, kind, filter_of(older_than, topic, reason, key=key), limit, is_long=long)


def _list(place: Place, kind: _Kind, chosen: Filter, limit: int, *, is_long: bool) -> None:
    """Show the list of each group; one that cannot be read does not hide the others."""
    screen = Screen(as_json=place.as_json)
    places = addresses(place)
    listed: list[dict[str, Any]] = []
    is_whole = True
    for address in places:
        try:
            with ExitStack() as stack:
                session = open_session(stack, place, address, screen)
                found = [each for each in kind.read(session) if chosen.accepts(each, now_ms())]
        except TxcoreError as error:
            if len(places) == 1:
                raise
            screen.note(f"group {address.group}: {error}")
            is_whole = False
            continue
        if screen.as_json:
            listed += [kind.json(each, now_ms()) for each in found[: limit or None]]
            continue
        _show(screen, kind, chosen, found, limit, address.group, is_long=is_long)
    if screen.as_json:
        screen.json(listed)
    if not is_whole:
        raise typer.Exit(1)


def _show(
    screen: Screen, kind: _Kind, chosen: Filter, found: Sequence[Journey], limit: int, group: str, *, is_long: bool
) -> None:
    if not found:
        screen.say(f"nothing{' like that' if chosen else ''} is {kind.name} in group {group}")
        return
    shown = found[: limit or None]
    names = names_of(found, is_long=is_long)
    screen.table(kind.headings, [kind.row(each, names) for each in shown], right=kind.right)
    more = f"; the oldest {len(shown):,} are shown, --limit 0 shows all" if len(shown) < len(found) else ""
    screen.say(f"{len(found):,} {kind.name} in group {group}{more}")


def filter_of(older_than: str, topic: str, reason: str = "", *, key: str = "", is_all: bool = False) -> Filter:
    """Return the filter that the options make."""
    older_than_s = formatting.duration_s(older_than, "--older-than") if older_than else None
    return Filter(older_than_s, topic, reason_code(reason), is_all, key)


def pending_journeys(session: Session) -> Sequence[Journey]:
    """Return the pending transactions, oldest first."""
    with session.screen.busy(), closing(session.operator.look()) as survey:
        return oldest_first(journey for journey in survey.journeys() if journey.is_pending)


def parked_journeys(session: Session) -> Sequence[Journey]:
    """Return the parked transactions, oldest first; the whole logs are read if any transaction ever was parked."""
    operator = session.operator
    with session.screen.busy():
        with closing(operator.look()) as survey:
            entries = survey.open_entries()
        return oldest_first(operator.still_parked(entries))


def now_ms() -> int:
    """Return the wall clock's time, for ages."""
    return SystemClock().wall_ms()


def names_of(journeys: Sequence[Journey], *, is_long: bool = False) -> dict[bytes, str]:
    """Return the name of each transaction in a table."""
    identities = [journey.transaction_id for journey in journeys]
    return {identity: id_text(identity) for identity in identities} if is_long else short_ids(identities)


def pending_row(journey: Journey, names: Mapping[bytes, str]) -> Sequence[str]:
    """Return a line of the table: id, age, checks, partition, decider, topics."""
    half = journey.half
    if half is None or journey.is_newer:
        decider = NEWER
    elif journey.awaits_release:
        decider = to_json.AWAITS_TURN if half.order_key else to_json.AWAITS_RELEASE
    elif journey.decided:
        decider = f"{to_json.kind_name(journey.decided)}, journaled"
    elif journey.request is not None:
        decider = f"{journey.request.by} asks"
    else:
        decider = "fence" if half.fence_decides else "fence, listener" if half.asks_fence else "listener"
    checks = f"{journey.count}/{half.check_max}" if half and half.check_max else str(journey.count)
    return (
        names[journey.transaction_id],
        formatting.age(age_s(journey, now_ms())),
        checks,
        str(journey.partition),
        decider,
        " ".join(topics_in(journey)),
    )


def _parked_row(journey: Journey, names: Mapping[bytes, str]) -> Sequence[str]:
    entry = journey.parked[-1]
    return (
        names[journey.transaction_id],
        formatting.age(age_s(journey, now_ms())),
        entry.code,
        " ".join(topics_in(journey)),
        formatting.readable(entry.reason),
    )
