"""`txcore top`: a live view of one group, or of all groups of a file."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from txcore.cli.operating.listing import now_ms, pending_row
from txcore.cli.operating.place import Place, Session, addresses, at_place, open_session
from txcore.cli.operating.screen import Screen
from txcore.cli.operating.tables import REASON_MAX, counts_of, counts_text, table_of
from txcore.errors import TxcoreError
from txcore.operator import formatting, selection, to_json
from txcore.records import OpKind

if TYPE_CHECKING:
    from txcore.history.journey import Journey
    from txcore.history.log_survey import Survey
    from txcore.outbox.slots import TableStats

POLL_S: Final = 0.1
WINDOW_S: Final = 10.0
"""Seconds over which rates are averaged."""
COUNT_EVERY_S: Final = 5.0
"""Time, in seconds, between two counts of the message table."""
ROWS_MAX: Final = 10
RATES: Final = {
    "halves": (),
    "commits": (OpKind.COMMIT, OpKind.RELEASED),
    "rollbacks": (OpKind.ROLLBACK,),
    "checks": (OpKind.CHECKED,),
    "discards": (OpKind.DISCARD,),
}


@at_place
def top(
    place: Place,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="Time between two refreshes.")] = 2.0,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once; so does --json, or no terminal.")] = False,
) -> None:
    """Watch the pending and parked transactions, the partitions' owners, and the rates. Ctrl-C ends it.

    With --database it counts the messages in the message table, too. Of a file with several groups all are shown,
    unless --group names one. Reads only.

    Exit code: 0, 1 the broker cannot be reached at the start, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    with ExitStack() as stack:
        sessions = [open_session(stack, place, each, screen) for each in addresses(place)]
        with screen.busy():
            views = [View(stack, session) for session in sessions]
        if place.as_json:
            screen.json([view.as_json() for view in views])
        elif once or not screen.out.is_terminal:
            screen.out.print(page(views))
        else:
            _watch(screen, views, every)


def _watch(screen: Screen, views: Sequence[View], every_s: float) -> None:
    try:
        with Live(page(views), console=screen.out, screen=True, auto_refresh=False) as live:
            while True:
                end_s = time.monotonic() + every_s
                while time.monotonic() < end_s:
                    for view in views:
                        view.poll()
                    time.sleep(POLL_S)
                live.update(page(views), refresh=True)
    except KeyboardInterrupt:
        screen.out.print(page(views))


@dataclass(frozen=True, slots=True)
class _Sample:
    """The counts at one moment."""

    at_s: float
    counts: dict[str, int]


class View:
    """One group, kept up to date. Reading begins at the checkpoints; older parked records are read from the start."""

    def __init__(self, stack: ExitStack, session: Session) -> None:
        self.address = session.address
        self.trouble = ""
        self.table: TableStats | None = None  #: None without a database or a message table there
        self._table_trouble = ""
        self._table = None if session.fence is None else table_of(session.fence, session.address)
        self._count_at_s = 0.0
        self._open: Survey = stack.enter_context(closing(session.operator.look()))
        # A transaction with its DISCARD before the checkpoint may have been resumed or finished before it, too.
        older = {each.transaction_id for each in self._open.journeys() if each.parked and each.discarded_generation < 0}
        self._older: Survey | None = None
        if older:
            self._older = stack.enter_context(closing(session.operator.watch(older, from_checkpoint=False)))
        self._samples: deque[_Sample] = deque([self._sample()])
        self._count()

    def poll(self) -> None:
        """Read the new records; an unreachable broker is shown, and read again when it is back."""
        try:
            while self._open.poll():
                pass
            while self._older is not None and self._older.poll():
                pass
            self.trouble = ""
        except TxcoreError as error:
            self.trouble = str(error)
        self._count()
        self._samples.append(self._sample())
        while self._samples[-1].at_s - self._samples[0].at_s > WINDOW_S:
            self._samples.popleft()

    @property
    def troubles(self) -> list[str]:
        """Why broker or message table cannot be read now."""
        return [each for each in (self.trouble, self._table_trouble) if each]

    def _count(self) -> None:
        """Count the message table, now and then."""
        if self._table is None or time.monotonic() < self._count_at_s:
            return
        self._table_trouble = ""
        try:
            self.table = counts_of(self._table)
        except TxcoreError as error:
            self._table_trouble = str(error)
        self._count_at_s = time.monotonic() + COUNT_EVERY_S

    def pending(self) -> Sequence[Journey]:
        """Return the pending transactions, oldest first."""
        return selection.oldest_first(each for each in self._open.journeys() if each.is_pending)

    def parked(self) -> Sequence[Journey]:
        """Return the parked transactions, oldest first."""
        found = {each.transaction_id: each for each in self._parked()}
        return selection.oldest_first(found.values())

    def _parked(self) -> Iterator[Journey]:
        if self._older is not None:
            yield from (each for each in self._older.journeys() if each.is_parked)
        yield from (each for each in self._open.journeys() if each.is_parked and each.discarded_generation >= 0)

    def rates(self) -> dict[str, float] | None:
        """Return the rates per second, by name; None before there are two samples."""
        first, last = self._samples[0], self._samples[-1]
        span_s = last.at_s - first.at_s
        if span_s <= 0:
            return None
        return {name: (last.counts[name] - first.counts[name]) / span_s for name in RATES}

    def partitions(self) -> list[dict[str, Any]]:
        """Return one object for each partition."""
        oldest: dict[int, float] = {}
        counts: Counter[int] = Counter()
        for journey in self.pending():
            counts[journey.partition] += 1
            oldest.setdefault(journey.partition, selection.age_s(journey, now_ms()))
        found = []
        for partition in range(self._open.partition_count):
            owner = self._open.owners.get(partition)
            found.append(
                {
                    "partition": partition,
                    "pending": counts[partition],
                    "oldest_age_s": _rounded(oldest.get(partition)),
                    "owner": owner.by if owner else None,
                    "owner_seen_age_s": _rounded(max(now_ms() - owner.at_ms, 0) / 1000) if owner else None,
                }
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the group for programs."""
        pending, parked = self.pending(), self.parked()
        return {
            "group": self.address.group,
            "pending": len(pending),
            "oldest_age_s": _rounded(selection.age_s(pending[0], now_ms())) if pending else None,
            "parked": len(parked),
            "parked_by_code": dict(codes(parked)),
            "partitions": self.partitions(),
            "rates": self.rates(),
            "table": None if self.table is None else asdict(self.table),
        }

    def _sample(self) -> _Sample:
        counts = {
            name: sum(self._open.ends[kind] for kind in kinds) if kinds else self._open.halves_read
            for name, kinds in RATES.items()
        }
        return _Sample(time.monotonic(), counts)


def codes(parked: Sequence[Journey]) -> Counter[str]:
    """Return the number of parked transactions by reason."""
    return Counter(to_json.park_code(each) for each in parked)


def page(views: Sequence[View]) -> Group:
    """Return the whole view; of a single group with its partitions and its oldest transactions."""
    parts: list[Any] = [Text(formatting.iso(now_ms()), "dim"), _groups(views)]
    parts += [Text(f"{each.address.group}: {why}", "bold red") for each in views for why in each.troubles]
    parts += [line for each in views for line in _table_lines(each, "" if len(views) == 1 else each.address.group)]
    if len(views) == 1:
        parts += [Text(), _partitions(views[0])]
        pending, parked = views[0].pending(), views[0].parked()
        if parked:
            reasons = ", ".join(f"{count:,} {code}" for code, count in codes(parked).most_common())
            parts += [Text(), Text(f"parked: {reasons}", "bold red")]
        if pending:
            parts += [Text(), _oldest(pending)]
    return Group(*parts)


def _groups(views: Sequence[View]) -> Table:
    table = _table("group", "pending", "oldest", "parked", "halves/s", "ends/s", "checks/s")
    for view in views:
        pending, rates = view.pending(), view.rates()
        oldest = formatting.age(selection.age_s(pending[0], now_ms())) if pending else "-"
        ends = None if rates is None else rates["commits"] + rates["rollbacks"]
        parked = len(view.parked())
        table.add_row(
            Text(view.address.group),
            f"{len(pending):,}",
            oldest,
            Text(f"{parked:,}", "bold red" if parked else ""),
            *(
                "-" if each is None else f"{each:,.1f}"
                for each in (rates and rates["halves"], ends, rates and rates["checks"])
            ),
        )
    return table


def _table_lines(view: View, group: str) -> list[Text]:
    """Return a line with the counts of the message table, if there is one, and one with its last error."""
    found, of = view.table, f" of {group}" if group else ""
    if found is None:
        return []
    style = "bold red" if found.parked or found.reason else ""
    lines = [Text(f"message table{of}: {counts_text(found)}", style)]
    if found.reason:
        lines.append(Text(f"last error: {formatting.readable(found.reason, REASON_MAX)}", style))
    return lines


def _partitions(view: View) -> Table:
    table = _table("partition", "pending", "oldest", "last written by", "ago", left=("last written by",))
    for each in view.partitions():
        table.add_row(
            str(each["partition"]),
            f"{each['pending']:,}",
            "-" if each["oldest_age_s"] is None else formatting.age(each["oldest_age_s"]),
            Text(each["owner"] or "no checker yet"),
            "-" if each["owner_seen_age_s"] is None else formatting.age(each["owner_seen_age_s"]),
        )
    return table


def _oldest(pending: Sequence[Journey]) -> Table:
    names = selection.short_ids([each.transaction_id for each in pending[:ROWS_MAX]])
    table = _table("id", "age", "checks", "partition", "decided by", "topics", left=("decided by", "topics"))
    for each in pending[:ROWS_MAX]:
        table.add_row(*map(Text, pending_row(each, names)))
    return table


def _table(*headings: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if heading in left or not number else "right", overflow="fold")
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
