"""`txcore pending` and `txcore parked`: the undecided transactions, oldest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated, Final

import typer

from txcore.cli.operating.place import Place, Session, at_place, opened
from txcore.cli.operating.screen import Screen
from txcore.clock import SystemClock
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.operator import formatting, to_json
from txcore.operator.selection import Filter, age_s, oldest_first, reason_code, short_ids, topics_in

LIMIT: Final = 50
NEWER: Final = "a newer txcore"
OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="Only those older than 90s, 15m, 1h, 2d…")]
Topic = Annotated[str, typer.Option("--topic", metavar="NAME", help="Only those with a message for this topic.")]
Reason = Annotated[str, typer.Option("--reason", metavar="CODE", help="Only those parked for this reason.")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="How many of the oldest to show; 0 for all.")]
Long = Annotated[bool, typer.Option("--long", help="Show whole ids.")]


@at_place
def pending(
    place: Place, older_than: OlderThan = "", topic: Topic = "", limit: Limit = LIMIT, *, long: Long = False
) -> None:
    """List the transactions that are not decided yet, oldest first.

    Undecided is normal for a while: a producer is at work, or the checker will ask. Exit code 0, also when there are
    none.
    """
    screen = Screen(as_json=place.as_json)
    chosen = filter_of(older_than, topic)
    with opened(place, screen) as session:
        found = [each for each in pending_journeys(session) if chosen.accepts(each, now_ms())]
    if place.as_json:
        screen.json([to_json.pending(each, now_ms()) for each in found[: limit or None]])
        return
    if not found:
        screen.say(_nothing("pending", chosen, session))
        return
    names = names_of(found, is_long=long)
    rows = [pending_row(each, names) for each in found[: limit or None]]
    screen.table(("id", "age", "checks", "partition", "decided by", "topics"), rows, right=("age", "checks"))
    _end(screen, len(found), limit, f"pending in group {session.address.group}")


@at_place
def parked(
    place: Place,
    older_than: OlderThan = "",
    topic: Topic = "",
    reason: Reason = "",
    limit: Limit = LIMIT,
    *,
    long: Long = False,
) -> None:
    """List the parked transactions, each with its reason, oldest first.

    The checker leaves them alone until `txcore resume`, `commit` or `rollback`. Exit code 0, also when there are none.
    """
    screen = Screen(as_json=place.as_json)
    chosen = filter_of(older_than, topic, reason)
    with opened(place, screen) as session:
        found = [each for each in parked_journeys(session) if chosen.accepts(each, now_ms())]
    if place.as_json:
        screen.json([to_json.parked(each, now_ms()) for each in found[: limit or None]])
        return
    if not found:
        screen.say(_nothing("parked", chosen, session))
        return
    names = names_of(found, is_long=long)
    rows = [_parked_row(each, names) for each in found[: limit or None]]
    screen.table(("id", "parked", "code", "topics", "reason"), rows, right=("parked",))
    _end(screen, len(found), limit, f"parked in group {session.address.group}")


def filter_of(older_than: str, topic: str, reason: str = "", *, is_all: bool = False) -> Filter:
    """Return the filter that the options make."""
    older_than_s = formatting.duration_s(older_than, "--older-than") if older_than else None
    return Filter(older_than_s, topic, reason_code(reason), is_all)


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


def _parked_row(journey: Journey, names: dict[bytes, str]) -> Sequence[str]:
    entry = journey.parked[-1]
    return (
        names[journey.transaction_id],
        formatting.age(age_s(journey, now_ms())),
        entry.code,
        " ".join(topics_in(journey)),
        formatting.readable(entry.reason),
    )


def _nothing(what: str, chosen: Filter, session: Session) -> str:
    like = " like that" if chosen else ""
    return f"nothing{like} is {what} in group {session.address.group}"


def _end(screen: Screen, count: int, limit: int, what: str) -> None:
    shown = count if not limit else min(count, limit)
    more = f"; the oldest {shown:,} are shown, --limit 0 shows all" if shown < count else ""
    screen.say(f"{count:,} {what}{more}")
