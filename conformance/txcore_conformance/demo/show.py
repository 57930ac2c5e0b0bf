"""The demo's output: while it runs, on a terminal, and at its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from sqlalchemy import make_url

from txcore.backends.options import split_url
from txcore.ids import id_text
from txcore_conformance.demo.plan import STEPS
from txcore_conformance.demo.run import Report
from txcore_conformance.demo.settings import Settings, is_declined
from txcore_conformance.demo.supervisor import Progress
from txcore_conformance.invariants import Invariant, Violation

VIOLATIONS_SHOWN_MAX: Final = 5


@contextmanager
def watch(console: Console, settings: Settings) -> Iterator[Callable[[Progress], None]]:
    """Announce the run, and yield a function that shows its progress: bars, if standard error is a terminal."""
    broker, database = split_url(settings.broker_url).scheme, make_url(settings.database_url).get_backend_name()
    console.print(
        f"[bold]{settings.orders} orders[/], each a row in {database} and a message on {broker}: both or neither.\n"
        f"{settings.workers} processes take them, and are killed (SIGKILL) at every step of the way.",
        soft_wrap=True,
    )
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description:<20}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=errors, transient=True) as bars:
        declined = sum(is_declined(number) for number in range(1, settings.orders + 1))
        orders = bars.add_task("orders committed", total=settings.orders - declined)
        messages = bars.add_task("messages applied", total=settings.orders - declined)
        kills = bars.add_task("processes killed", total=settings.kills_min)

        def show(progress: Progress) -> None:
            bars.update(orders, completed=progress.ordered)
            bars.update(messages, completed=progress.applied)
            bars.update(kills, completed=progress.kills, total=max(settings.kills_min, progress.kills))

        yield show


def conclude(console: Console, report: Report) -> None:
    """Print whether the run is a proof, and if not, why."""
    console.print()
    console.print(_kills_table(report.progress))
    console.print()
    console.print(_result_table(report))
    console.print()
    _show_trouble(console, report.progress)
    _show_violations(console, report.verdict.violations)
    kills = report.progress.kills
    if report.is_proven:
        console.print(f"[bold green]PROVEN[/] {kills} processes were killed; nothing was lost, nothing leaked.")
    elif report.verdict.is_clean:
        needed = report.settings.kills_min
        console.print(f"[bold red]NOT PROVEN[/] {kills} processes were killed, but {needed} are needed.")
    else:
        console.print("[bold red]BROKEN[/] Database and topic do not agree.")


def point_to(console: Console, settings: Settings, *, is_kept: bool) -> None:
    """Print how to examine the results."""
    if not is_kept:
        console.print("To look closer, keep what it makes: txcore demo --dir FOLDER")
        return
    database = make_url(settings.database_url)
    table = f"{settings.name.replace('-', '_')}_orders"
    query = f"SELECT * FROM {table} LIMIT 3"  # noqa: S608 - to be read, not run
    lines = []
    if split_url(settings.broker_url).scheme == "sqlite":
        path = Path(settings.broker_url.removeprefix("sqlite:///").partition("?")[0])
        lines += [f"cd {path.parent}", f'sqlite3 {path.name} "SELECT key, body FROM target LIMIT 3"']  # noqa: S608
    else:
        lines.append(f"topic {settings.topic}, producer group {settings.group}")
    if database.get_backend_name() == "sqlite" and database.database:
        lines.append(f'sqlite3 {Path(database.database).name} "{query}"')
    else:
        lines += [f"{query};", f"on {database.render_as_string()}"]
    console.print("\nTo look closer:")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _show_trouble(console: Console, progress: Progress) -> None:
    """Show the unplanned events; they do not weaken the proof, but must not be hidden."""
    if progress.again:
        console.print(f"{progress.again} times an order was tried again after an error")
    for failure in progress.failures:
        console.print(f"[yellow]a process failed by itself[/] {escape(failure)}")


def _show_violations(console: Console, violations: Sequence[Violation]) -> None:
    """Show the violations by invariant, each with its meaning and the first few transactions."""
    by_invariant: dict[Invariant, list[Violation]] = {}
    for violation in violations:
        by_invariant.setdefault(violation.invariant, []).append(violation)
    for invariant, found in by_invariant.items():
        console.print(f"[bold red]{invariant.name}[/] {len(found)} times broken: {invariant.value}")
        for violation in found[:VIOLATIONS_SHOWN_MAX]:
            console.print(f"   {id_text(violation.transaction_id)} {violation.text}", markup=False, soft_wrap=True)


def _kills_table(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for width, justify in ((33, "left"), (3, "right"), (34, "left"), (3, "right")):
        table.add_column(width=width, justify=justify)  # type: ignore[arg-type] # a literal, but of a loop
    table.add_row("[bold]processes killed[/]", f"[bold]{progress.kills}[/]")
    cells = [(text, str(progress.killed[step])) for step, text in STEPS.items()]
    half = (len(cells) + 1) // 2
    for left, right in itertools.zip_longest(cells[:half], cells[half:], fillvalue=("", "")):
        table.add_row(*left, *right)
    return table


def _result_table(report: Report) -> Table:
    progress, verdict = report.progress, report.verdict
    rate = verdict.orders / report.orders_s if report.orders_s else 0.0
    declined, half_done = len(progress.declined), verdict.rolled_back
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for width, justify in ((18, "left"), (6, "right"), (50, "left")):
        table.add_column(width=width, justify=justify)  # type: ignore[arg-type]
    counted = (
        ("orders committed", verdict.orders, f"{rate:.0f} orders/s; {report.wall_s:.1f} s in all"),
        (
            "rolled back",
            declined + half_done,
            f"{declined} declined by the shop, {half_done} cut off by a kill",
        ),
        ("messages delivered", progress.delivered, f"{verdict.identical} orders are equal in row and message"),
        ("duplicates removed", progress.duplicates, "by the inbox of a consumer that was killed too"),
    )
    proven = (
        ("in doubt", verdict.in_doubt, "neither committed nor rolled back"),
        ("lost", verdict.lost, "in the database, but not announced"),
        ("leaked", verdict.leaked, "announced, but not in the database"),
    )
    for name, number, text in counted:
        table.add_row(name, str(number), text)
    for name, number, text in proven:
        table.add_row(f"[bold]{name}[/]", f"[bold {'red' if number else 'green'}]{number}[/]", text)
    return table
