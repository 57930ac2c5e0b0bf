"""`txcore table`: the message table, counted; its parked messages listed, sent again, or dropped; `txcore cancel`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from txcore import wire
from txcore.cli.helping import SectionedGroup
from txcore.cli.operating.place import Address, Place, acting_name, at_place, open_fence, the_database
from txcore.cli.operating.screen import ASKING, Screen
from txcore.errors import UsageError, WireFormatError
from txcore.findings import counted
from txcore.ids import id_text, parse_id
from txcore.message_table import CancelState
from txcore.operator import formatting

if TYPE_CHECKING:
    from txcore.outbox.slots import ParkedMessage, TableStats
    from txcore.outbox.sql_table import SqlMessageTable
    from txcore.sqlfence import SqlFence

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Whole transaction ids.")]
LIMIT: Final = 50
REASON_MAX: Final = 500
UNREADABLE: Final = "(unreadable)"

app = typer.Typer(
    cls=SectionedGroup, no_args_is_help=True, help="The messages that wait in the service's database for a relay."
)


def stats(place: Place) -> None:
    """Count the messages to be sent and the parked ones, and show why the last one was refused. Reads only.

    Exit code: 0 done, 1 the database cannot be reached, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    with _table(place) as table, screen.busy("counting"):
        found = table.stats()
    if place.as_json:
        screen.json(asdict(found))
        return
    screen.say(counts_text(found))
    if found.reason:
        screen.hang("last error: ", formatting.readable(found.reason, REASON_MAX))


def parked(
    place: Place,
    limit: Annotated[
        int, typer.Option("--limit", metavar="COUNT", min=1, help="How many of the oldest to show.")
    ] = LIMIT,
    *,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Those that an operator dropped, with name and reason.")
    ] = False,
) -> None:
    """List the parked messages, which no relay tries any more, with their reasons. Reads only.

    Exit code: 0 done, 1 the database cannot be reached, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    with _table(place) as table, screen.busy(ASKING):
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
    place: Place, ids: Annotated[list[str], typer.Argument(metavar="ID", help="Whole transaction ids.")]
) -> None:
    """Let a relay send the parked messages of these transactions again, with a fresh number of tries.

    Exit code: 0 done, 1 the database cannot be reached, or one of them has none parked, 2 misuse.
    """
    asked = [parse_id(each) for each in ids]
    with _table(place) as table, Screen(as_json=place.as_json).busy(ASKING):
        counts = {identity: table.resume(identity) for identity in asked}
    _show_counts(place, counts, "to be sent again")


def drop(
    place: Place,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Whole transaction ids.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept with the messages.")],
) -> None:
    """Drop the parked messages of these transactions for good: no consumer will ever see them.

    They stay in the table with the operator's name, the time and the reason; the audit names each transaction FORCED.

    Exit code: 0 done, 1 the database cannot be reached, or one of them has none parked, 2 misuse.
    """
    asked = [parse_id(each) for each in ids]
    by = acting_name(place)
    with _table(place) as table, Screen(as_json=place.as_json).busy(ASKING):
        counts = {identity: table.give_up(identity, why, by) for identity in asked}
    _show_counts(place, counts, "dropped")


def cancel(
    place: Place,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Whole transaction ids.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept with the messages.")],
) -> None:
    """Cancel the delayed messages of these transactions before they are due: all of a transaction, or none.

    A record stays, with the operator's name, the time and the reason. The answers are CANCELLED, also when repeated;
    TOO_LATE once a relay has queued a message that was due, or where none was delayed; and NOT_FOUND.

    Exit code: 0 all are cancelled, 1 one is not, or the database cannot be reached, 2 misuse.
    """
    asked = [parse_id(each) for each in ids]
    by, screen = acting_name(place), Screen(as_json=place.as_json)
    with _table(place) as table, screen.busy(ASKING):
        states = {id_text(identity): table.cancel(identity, why, by) for identity in asked}
    if place.as_json:
        screen.json({name: state.value for name, state in states.items()})
    else:
        for name, state in states.items():
            screen.say(f"{name}: {state.value}")
    if any(state is not CancelState.CANCELLED for state in states.values()):
        raise typer.Exit(1)


for _command in (stats, parked, resume, drop):
    app.command(_command.__name__)(at_place(_command))


def counts_text(found: TableStats) -> str:
    """Return the counts of a message table as a line."""
    age = f", the oldest for {formatting.age(found.oldest_age_s)}" if found.waiting else ""
    dropped = f", {found.dropped:,} dropped" if found.dropped else ""
    cancelled = f", {found.cancelled:,} cancelled" if found.cancelled else ""
    later = f"; {found.later:,} later{_next(found)}" if found.later else ""
    to_send = f"{counted(found.waiting, 'message')} to be sent{age}"
    return f"{to_send}; {found.parked:,} parked{dropped}{cancelled}{later}{_unserved(found)}"


def _unserved(found: TableStats) -> str:
    """Return for how long no relay has been seen, where messages wait for one."""
    if not found.is_unserved:
        return ""
    since = "ever" if found.relay_seen_s is None else f"for {formatting.age(found.relay_seen_s)}"
    return f"; no relay was seen {since}: nothing is sent"


def _next(found: TableStats) -> str:
    """Return when the next delayed message is due."""
    if found.next_due_s is None:
        return ""
    return f", the next in {formatting.age(found.next_due_s)}" if found.next_due_s > 0 else ", the next is due"


def table_of(fence: SqlFence, address: Address) -> SqlMessageTable:
    """Return the message table beside an open fence; nothing is asked yet."""
    from sqlalchemy import Engine  # noqa: PLC0415 - an extra

    from txcore.outbox.sql_table import SqlMessageTable  # noqa: PLC0415 - needs SQLAlchemy

    assert isinstance(fence.engine, Engine)  # `open_fence` always makes one
    return SqlMessageTable(fence.engine, address.group, "operator", table=address.table)


def counts_of(table: SqlMessageTable) -> TableStats | None:
    """Return the counts of a message table; None where the database has none.

    Raises:
        BackendUnavailableError: the database failed.
    """
    from txcore.outbox.sql_table import NoTableError  # noqa: PLC0415 - needs SQLAlchemy

    try:
        return table.stats()
    except NoTableError:
        return None


@contextmanager
def _table(place: Place) -> Iterator[SqlMessageTable]:
    address = the_database(place)
    if not address.group:
        raise UsageError("which producer group? Name it with --group or TXCORE_GROUP")
    with open_fence(address) as fence:
        yield table_of(fence, address)


def _show_counts(place: Place, counts: Mapping[bytes, int], verb: str) -> None:
    """Print the number of messages of each transaction, and fail where one had none."""
    screen = Screen(as_json=place.as_json)
    if place.as_json:
        screen.json({id_text(identity): count for identity, count in counts.items()})
    else:
        for identity, count in counts.items():
            screen.say(f"{id_text(identity)}: {counted(count, 'message')} {verb}")
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
