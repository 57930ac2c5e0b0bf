"""`txcore table`: the message table; counted, its parked messages listed, sent again, or dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from txcore import wire
from txcore.cli.operating.place import Place, acting_name, at_place, open_fence, the_database
from txcore.cli.operating.screen import Screen
from txcore.errors import UsageError, WireFormatError
from txcore.ids import id_text, parse_id
from txcore.operator import formatting

if TYPE_CHECKING:
    from txcore.outbox.slots import ParkedMessage
    from txcore.outbox.sql_table import SqlMessageTable

Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="Whole transaction ids.")]
LIMIT: Final = 50
UNREADABLE: Final = "(unreadable)"

app = typer.Typer(no_args_is_help=True, help="The messages that wait in the service's database for a relay.")


def stats(place: Place) -> None:
    """Count the messages to be sent and the parked ones. Reads only.

    Exit code: 0 done, 1 the database cannot be reached, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    with _table(place) as table, screen.busy("counting"):
        found = table.stats()
    if place.as_json:
        screen.json(asdict(found))
        return
    age = f", the oldest for {formatting.age(found.oldest_age_s)}" if found.waiting else ""
    dropped = f", {found.dropped:,} dropped" if found.dropped else ""
    screen.say(f"{formatting.many(found.waiting, 'message')} to be sent{age}; {found.parked:,} parked{dropped}")


def parked(
    place: Place,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of the oldest to show.")] = LIMIT,
    *,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Those that an operator dropped, with name and reason.")
    ] = False,
) -> None:
    """List the parked messages, which no relay tries any more, with their reasons. Reads only.

    Exit code: 0 done, 1 the database cannot be reached, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    with _table(place) as table:
        found = table.parked(limit, is_dropped=dropped)
    if place.as_json:
        screen.json([_row(each) for each in found])
        return
    if not found:
        screen.say(f"nothing {'was dropped from' if dropped else 'is parked in'} the message table")
        return
    rows = [(id_text(each.transaction_id), each.index, _topic(each), each.tries, each.reason) for each in found]
    screen.table(("transaction", "message", "topic", "tries", "reason"), _texts(rows), right=("message", "tries"))


def resume(
    place: Place, ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Whole transaction ids.")]
) -> None:
    """Let a relay send the parked messages of these transactions again, with a fresh number of tries.

    Exit code: 0 done, 1 the database cannot be reached, or one of them has none parked, 2 misuse.
    """
    asked = [parse_id(each) for each in ids]
    with _table(place) as table:
        counts = {identity: table.resume(identity) for identity in asked}
    _show_counts(place, counts, "to be sent again")


def drop(
    place: Place,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Whole transaction ids.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept with the messages.")],
) -> None:
    """Drop the parked messages of these transactions for good: no consumer will ever see them.

    They stay in the table with the operator's name, the time and the reason; the audit names each transaction FORCED.

    Exit code: 0 done, 1 the database cannot be reached, or one of them has none parked, 2 misuse.
    """
    asked = [parse_id(each) for each in ids]
    by = acting_name(place)
    with _table(place) as table:
        counts = {identity: table.give_up(identity, why, by) for identity in asked}
    _show_counts(place, counts, "dropped")


for _command in (stats, parked, resume, drop):
    app.command(_command.__name__)(at_place(_command))


@contextmanager
def _table(place: Place) -> Iterator[SqlMessageTable]:
    address = the_database(place)
    if not address.group:
        raise UsageError("which producer group? Name it with --group or TXCORE_GROUP")
    with open_fence(address) as fence:
        from sqlalchemy import Engine  # noqa: PLC0415 - an extra

        from txcore.outbox.sql_table import SqlMessageTable  # noqa: PLC0415 - needs SQLAlchemy

        assert isinstance(fence.engine, Engine)  # `open_fence` always makes one
        yield SqlMessageTable(fence.engine, address.group, "operator", table=address.table)


def _show_counts(place: Place, counts: Mapping[bytes, int], verb: str) -> None:
    """Print the number of messages of each transaction, and fail where one had none."""
    screen = Screen(as_json=place.as_json)
    if place.as_json:
        screen.json({id_text(identity): count for identity, count in counts.items()})
    else:
        for identity, count in counts.items():
            screen.say(f"{id_text(identity)}: {formatting.many(count, 'message')} {verb}")
    if not all(counts.values()):
        raise typer.Exit(1)


def _row(each: ParkedMessage) -> dict[str, Any]:
    return {
        "transaction_id": id_text(each.transaction_id),
        "index": each.index,
        "topic": _topic(each),
        "tries": each.tries,
        "reason": each.reason,
    }


def _topic(each: ParkedMessage) -> str:
    try:
        return wire.decode_message(each.body).topic
    except WireFormatError:
        return UNREADABLE


def _texts(rows: Sequence[Sequence[Any]]) -> list[Sequence[str]]:
    return [[str(cell) for cell in row] for row in rows]
