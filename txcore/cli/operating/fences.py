"""`txcore fence`: the table that makes a check decisive; made, counted, pruned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from txcore.cli.helping import JSON_HELP, SectionedGroup
from txcore.cli.operating.listing import now_ms
from txcore.cli.operating.place import (
    Address,
    Place,
    Session,
    acting_name,
    addresses,
    at_place,
    open_fence,
    open_session,
    the_database,
)
from txcore.cli.operating.screen import ASKING, Screen
from txcore.errors import UsageError
from txcore.findings import counted
from txcore.history.resuming import resumable_id
from txcore.ids import TransactionId, born_ms, first_id_at, id_text
from txcore.operator import formatting

if TYPE_CHECKING:
    from txcore.sqlfence import FenceStats, SqlFence
    from txcore.sqlfence.identity import Database

STATES: Final = {1: "committed", 2: "rolled back", 3: "via table", 4: "forced"}
YOUNGEST_S: Final = 3_600.0
"""Least age, in seconds, of a horizon; a younger one could refuse producers that are still at work."""
PAGE: Final = 500
DRY_MAX: Final = 1_000_000
"""Number of rows after which a dry run stops counting."""

app = typer.Typer(
    cls=SectionedGroup,
    no_args_is_help=True,
    help="Create, count, prune or adopt the fence table in the service's database.",
)


def create(place: Place) -> None:
    """Create the fence table and its companion, if they are missing. Repeating it is harmless.

    Exit code: 0 done, 1 the database refused, 2 misuse.
    """
    screen, address = Screen(as_json=place.as_json), the_database(place)
    with open_fence(address, may_create=True) as fence, screen.busy(ASKING):
        fence.create()
    if place.as_json:
        screen.json({"table": address.table, "exists": True})
    else:
        screen.say(f"tables {address.table} and {address.table}_meta exist")


def identity(place: Place) -> None:
    """Show which database this is: the identity that halves carry, and the ones that it has adopted. Reads only.

    Exit code: 0 done, 1 the database cannot be reached, 2 misuse.
    """
    screen, address = Screen(as_json=place.as_json), the_database(place)
    with open_fence(address) as fence, screen.busy(ASKING):
        found: Database = fence.identity()
    _show_identity(screen, address, found, {})


def adopt(
    place: Place,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the time and your login.")],
    former: Annotated[
        str, typer.Option(metavar="HEX", help="The identity of the database that this one replaces, if not its copy.")
    ] = "",
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else it is a dry run.")] = False,
) -> None:
    """Make this database decide for the one that it replaces for good: after a dump and restore, or pg_upgrade.

    Until then, checks here do not decide halves of the former one. Only do it when no producer works on the former one
    any more: a transaction that commits there from now on is rolled back here. A failover needs no adoption.

    Exit code: 0 done (or dry run), 1 the database refused, 2 misuse, or nothing to adopt.
    """
    screen, address = Screen(as_json=place.as_json), the_database(place)
    with open_fence(address) as fence, screen.busy(ASKING):
        found: Database = fence.adopt(reason, acting_name(place), _identity_of(former)) if yes else fence.identity()
    _show_identity(screen, address, found, {"dry_run": not yes})
    if not yes:
        screen.say("dry run, nothing was done; add --yes to do it")


def _identity_of(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.replace("-", ""))
    except ValueError as error:
        raise UsageError(f"--former {text!r} is not an identity: give 32 hexadecimal digits") from error
    return found


def _show_identity(screen: Screen, address: Address, found: Database, more: Mapping[str, bool]) -> None:
    if screen.as_json:
        screen.json(
            {
                **more,
                "table": address.table,
                "identity": found.current.hex() or None,
                "is_copy": found.is_copy,
                "former": found.stored.hex() if found.is_copy else None,
                "adopted": [
                    {"identity": each.identity, "at": each.at, "by": each.by, "reason": each.reason}
                    for each in found.adopted
                ],
            }
        )
        return
    if not found.stored:
        screen.say("no identity: the tables are of schema version 1; `txcore fence create` gives them one")
        return
    screen.say(f"identity: {found.current.hex()}")
    if found.is_copy:
        screen.say(f"a copy of: {found.stored.hex()}, which it does not decide for until it is adopted")
    for each in found.adopted:
        screen.say(f"adopted: {each.identity} at {each.at} by {each.by}: {each.reason}")


def stats(place: Place) -> None:
    """Count the fence's rows by group and state, and show its oldest row and its horizon. Reads only.

    Exit code: 0 done, 1 the database cannot be reached, 2 misuse.
    """
    screen, address = Screen(as_json=place.as_json), the_database(place)
    with open_fence(address) as fence, screen.busy("counting"):
        found = fence.stats()
    if place.as_json:
        screen.json(_stats_json(address, found))
        return
    if found.groups:
        rows = [_stats_row(group, counts) for group, counts in sorted(found.groups.items())]
        screen.table(("group", *STATES.values(), "all"), rows, right=(*STATES.values(), "all"))
    oldest = f"{formatting.iso(born_ms(found.oldest))}" if found.oldest else "none"
    screen.say(f"{counted(sum(found.states.values()), 'row')} in {address.table}, the oldest of {oldest}")
    screen.say(_horizon_text(found.pruned_below))


def prune(
    place: Place,
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="Prune rows older than 7d, 36h…")],
    also: Annotated[
        list[str] | None, typer.Option("--also-group", metavar="NAME", help="Another group in this table.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--ignore-group", metavar="NAME", help="A group that was removed; its rows stay."),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="A time longer than any statement of a producer.")
    ] = 11.0,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else it is a dry run.")] = False,
) -> None:
    """Delete old rows of transactions whose end is in the log, or which a relay has sent; undecided ones stay.

    First the horizon is raised: below it no producer inserts a row any more, and a check that finds no row answers
    PRUNED. It is never raised above an undecided transaction. Can be interrupted and run again.

    Exit code: 0 done (or dry run), 1 failed, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    age_s = formatting.duration_s(older_than, "--older-than")
    if age_s < YOUNGEST_S:
        raise UsageError(
            f"--older-than must be at least {formatting.age(YOUNGEST_S)}: producers may still be at work below"
        )
    with ExitStack() as stack:
        pruning = _Pruning(screen, _sessions(stack, place, screen, also or ()), set(without or ()))
        below, bound = pruning.horizon(first_id_at(now_ms() - round(age_s * 1000)))
        plan = pruning.plan(below, bound)
        if not yes:
            pruned = _Pruned(plan.below, plan.bound, plan.closed, plan.kept, is_dry=True)
        else:
            pruned = pruning.run(plan, wait)
    _show_prune(screen, pruned)


def ddl(
    dialect: Annotated[str, typer.Option("--dialect", metavar="NAME", help="postgresql, mysql, mariadb or sqlite.")],
    table: Annotated[str, typer.Option("--table", metavar="NAME", help="Name of the fence table.")] = "txcore_tx",
    inbox: Annotated[
        str, typer.Option("--inbox", metavar="NAME", help="Print the tables of this inbox instead, not the fence's.")
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Print the statements that create the fence's tables, for psql, mysql or sqlite3. Connects to nothing.

    Exit code: 0 done, 2 misuse.
    """
    from txcore.inbox import Inbox  # noqa: PLC0415 - both need SQLAlchemy
    from txcore.sqlfence import SqlFence  # noqa: PLC0415

    statements = Inbox.ddl(dialect, table=inbox) if inbox else SqlFence.ddl(dialect, table=table)
    if as_json:
        Screen(as_json=True).json({"dialect": dialect, "statements": list(statements)})
        return
    for statement in statements:
        typer.echo(f"{statement};\n")


for _command in (create, identity, adopt, stats, prune):
    app.command(_command.__name__)(at_place(_command))
app.command("ddl")(ddl)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How far to prune, the cause that holds the horizon, and how many rows would go and stay (None: uncounted)."""

    below: bytes
    bound: str
    closed: int
    kept: int
    is_closed: Callable[[Sequence[bytes]], Collection[bytes]]


@dataclass(frozen=True, slots=True)
class _Pruned:
    """The result of a prune."""

    below: bytes
    bound: str
    deleted: int
    kept: int
    is_dry: bool


class _Pruning:
    """One fence table and every group in it."""

    def __init__(self, screen: Screen, sessions: Sequence[Session], ignored: set[str]) -> None:
        self._screen = screen
        self._sessions = sessions
        assert sessions[0].fence is not None  # `_sessions` ensures it
        self._fence: SqlFence = sessions[0].fence
        known = {session.address.group for session in sessions} | ignored
        with screen.busy("counting"):
            found = self._fence.stats().groups
        strangers = sorted(set(found) - known)
        if strangers:
            raise UsageError(
                f"the table holds rows of {', '.join(strangers)} too, for which the horizon would rise as well: name "
                "each with --also-group, or with --ignore-group if it was removed"
            )

    def horizon(self, asked: bytes) -> tuple[bytes, str]:
        """Return how far the horizon may rise, and the reason why it does not rise to *asked*."""
        below, bound = asked, ""
        for session in self._sessions:
            with self._screen.busy(f"reading the logs of {session.address.group}"):
                identity = min(_undecided(session), default=None)
            if identity is not None and identity < below:
                below, bound = identity, f"{id_text(identity)} of group {session.address.group} is undecided"
        return below, bound

    def plan(self, below: bytes, bound: str) -> _Plan:
        """Find the closed rows below: their final op is in a log, or a relay has sent their messages."""
        finished: set[bytes] = set()
        for session in self._sessions:
            with self._screen.busy(f"reading the logs of {session.address.group}"):
                finished |= session.operator.finished(lambda identity: identity < below)
        closed = count = 0
        with self._screen.busy("counting"):
            for page in self._pages(below):
                count += len(page)
                closed += len(finished.intersection(page) | self._fence.sent(page))
                if count >= DRY_MAX:
                    break
        return _Plan(below, bound, closed, count - closed, _Closed(self._fence, self._sessions, finished))

    def run(self, plan: _Plan, wait_s: float) -> _Pruned:
        """Prune."""
        with self._screen.busy(f"raising the horizon, waiting {wait_s:g} s, deleting"):
            result = self._fence.prune(plan.below, plan.is_closed, wait_s=wait_s)
        return _Pruned(result.horizon, plan.bound, result.deleted, result.kept, is_dry=False)

    def _pages(self, below: bytes) -> Iterator[list[bytes]]:
        after = bytes(16)
        while page := self._fence.ids_below(below, after, PAGE):
            yield page
            after = page[-1]


class _Closed:
    """The rows that may go: the logs hold their end, or a relay has sent their messages and no half of theirs is open.

    Open halves are read once more after the horizon was raised, as another half may have come since.
    """

    def __init__(self, fence: SqlFence, sessions: Sequence[Session], finished: set[bytes]) -> None:
        self._fence = fence
        self._sessions = sessions
        self._finished = finished
        self._undecided: set[bytes] | None = None

    def __call__(self, ids: Sequence[bytes]) -> Collection[bytes]:
        if self._undecided is None:
            self._undecided = set[bytes]().union(*(_undecided(session) for session in self._sessions))
        sent: set[bytes] = self._fence.sent(ids)
        return self._finished.intersection(ids) | (sent - self._undecided)


def _undecided(session: Session) -> set[TransactionId]:
    """Return the ids of a group's halves that are pending or parked.

    Only the whole logs show the state of an entry. That one read decides about it: it may have been resumed since the
    first one, so that it is pending, perhaps under the id of the half inside it.
    """
    with closing(session.operator.look()) as survey:
        pending = {each.transaction_id for each in survey.journeys() if each.is_pending}
        entries = [each for each in survey.journeys() if each.entry is not None]
    if not entries:
        return pending
    ids = {each.transaction_id for each in entries} | {resumable_id(each) for each in entries}
    with closing(session.operator.watch(ids, from_checkpoint=False)) as survey:
        return pending | {resumable_id(each) for each in survey.journeys() if each.is_pending or each.is_parked}


def _sessions(stack: ExitStack, place: Place, screen: Screen, also: Sequence[str]) -> list[Session]:
    """Open every group that shares the table."""
    found = addresses(replace(place, group="") if place.config and also else place)
    found += [replace(found[0], group=group) for group in also if group not in {each.group for each in found}]
    if not all(each.database for each in found):
        raise UsageError("a prune needs the fence's database: --database URL, or `database` in the file")
    if len({(each.database, each.table) for each in found}) > 1:
        raise UsageError("these groups have several fence tables: name one with --group and its companions")
    return [open_session(stack, place, each, screen) for each in found]


def _show_prune(screen: Screen, pruned: _Pruned) -> None:
    if screen.as_json:
        screen.json(
            {
                "dry_run": pruned.is_dry,
                "horizon": id_text(pruned.below),
                "horizon_time": formatting.iso(born_ms(pruned.below)),
                "bound_by": pruned.bound or None,
                "deleted": 0 if pruned.is_dry else pruned.deleted,
                "closed": pruned.deleted,
                "kept": pruned.kept,
            }
        )
        return
    if pruned.bound:
        screen.hang("note: ", f"the horizon stops early, as {pruned.bound}")
    verb = "would be deleted" if pruned.is_dry else "deleted"
    screen.say(f"{counted(pruned.deleted, 'row')} {verb}, {pruned.kept:,} stay: no log holds their end")
    screen.say(_horizon_text(pruned.below) if not pruned.is_dry else "dry run, nothing was done; add --yes to do it")


def _horizon_text(below: bytes) -> str:
    return f"horizon: {formatting.iso(born_ms(below))}" if below != bytes(16) else "horizon: never pruned"


def _stats_row(group: str, counts: Mapping[int, int]) -> Sequence[str]:
    return (group, *(f"{counts.get(state, 0):,}" for state in STATES), f"{sum(counts.values()):,}")


def _stats_json(address: Address, found: FenceStats) -> dict[str, Any]:
    def named(counts: Mapping[int, int]) -> dict[str, int]:
        return {name.replace(" ", "_"): counts.get(state, 0) for state, name in STATES.items()}

    return {
        "table": address.table,
        "states": named(found.states),
        "groups": {group: named(counts) for group, counts in sorted(found.groups.items())},
        "oldest": formatting.iso(born_ms(found.oldest)) if found.oldest else None,
        "horizon": formatting.iso(born_ms(found.pruned_below)) if found.pruned_below != bytes(16) else None,
    }
