"""What the demo says: while it runs, on a terminal or line by line, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from sqlalchemy import make_url

from txcore.cli.demo.plan import STEPS
from txcore.cli.demo.run import Report
from txcore.cli.demo.settings import Settings, is_declined
from txcore.cli.demo.supervisor import Progress
from txcore.clock import SystemClock

LINE_EVERY_S: Final = 2.0
VIOLATIONS_SHOWN_MAX: Final = 20


def introduce(console: Console, settings: Settings) -> None:
    """Say what is about to happen."""
    broker, database = urlsplit(settings.broker_url).scheme, make_url(settings.database_url).get_backend_name()
    console.print(
        f"[bold]{settings.orders} orders[/], taken by {settings.workers} processes: each is a row in {database} and a "
        f"message on {broker}, both or\nneither. Meanwhile processes are killed (SIGKILL) at every step of the way.",
        soft_wrap=True,
    )


@contextmanager
def live(console: Console, settings: Settings) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows the progress: bars on a terminal, else a line every two seconds."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (TextColumn("{task.description:<20}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        declined = sum(is_declined(number) for number in range(1, settings.orders + 1))
        orders = bars.add_task("orders committed", total=settings.orders - declined)
        messages = bars.add_task("messages applied", total=settings.orders - declined)
        kills = bars.add_task("processes killed", total=settings.kills_min)

        def show(progress: Progress) -> None:
            bars.update(orders, completed=progress.ordered)
            bars.update(messages, completed=progress.applied)
            bars.update(kills, completed=progress.kills, total=max(settings.kills_min, progress.kills))

        yield show


def _lines(console: Console) -> Callable[[Progress], None]:
    clock = SystemClock()
    began_s = clock.elapsed_s()
    next_s = began_s

    def show(progress: Progress) -> None:
        nonlocal next_s
        now_s = clock.elapsed_s()
        if now_s >= next_s:
            next_s = now_s + LINE_EVERY_S
            console.print(
                f"{now_s - began_s:5.1f} s  {progress.ordered:5} orders  {progress.applied:5} applied  "
                f"{progress.kills:3} killed  {progress.pending:3} in doubt",
                highlight=False,
            )

    return show


def conclude(console: Console, report: Report) -> None:
    """Say what was proven, or what was not and why."""
    console.print(_kills_table(report.progress))
    console.print(_proof_table(report))
    verdict = report.verdict
    for violation in verdict.violations[:VIOLATIONS_SHOWN_MAX]:
        console.print(f"[red]violation[/] {violation}", soft_wrap=True)
    hidden = len(verdict.violations) - VIOLATIONS_SHOWN_MAX
    if hidden > 0:
        console.print(f"[red]… and {hidden} more violations[/]")
    if report.is_proven:
        console.print(
            f"[bold green]PROVEN[/] {report.progress.kills} killed processes, and each order has its message: "
            "none lost, none leaked.",
            highlight=False,
        )
        return
    if not report.is_killed_enough:
        console.print(
            f"[bold red]NOT PROVEN[/] only {report.progress.kills} processes were killed; "
            f"{report.settings.kills_min} are needed to prove anything.",
            highlight=False,
        )
    if not verdict.is_clean:
        console.print("[bold red]BROKEN[/] database and topic do not agree; see above.")


def point_to(console: Console, settings: Settings, *, is_kept: bool) -> None:
    """Say how to look closer."""
    if not is_kept:
        console.print("To look closer, keep what it made: txcore demo --dir demo")
        return
    prefix = settings.name.replace("-", "_")
    lines = [f"broker:   {settings.broker_url}", f"database: {make_url(settings.database_url).render_as_string()}"]
    if make_url(settings.database_url).get_backend_name() == "sqlite":
        path = make_url(settings.database_url).database
        lines.append(f'sqlite3 {path} "SELECT * FROM {prefix}_orders LIMIT 3"')
    else:
        lines.append(f"SELECT * FROM {prefix}_orders LIMIT 3;")
    if settings.broker_url.startswith("sqlite:"):
        path = settings.broker_url.removeprefix("sqlite:///").partition("?")[0]
        lines.append(f'sqlite3 {path} "SELECT position, key, body FROM target LIMIT 3"')
    console.print("[bold]To look closer[/]")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _kills_table(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(width=34)
    table.add_column(justify="right", width=3)
    table.add_column(width=38)
    table.add_column(justify="right", width=3)
    cells = [(STEPS[step], str(progress.killed[step])) for step in STEPS]
    half = (len(cells) + 1) // 2
    table.add_row("[bold]processes killed[/]", f"[bold]{progress.kills}[/]", "", "")
    for index in range(half):
        right = cells[index + half] if index + half < len(cells) else ("", "")
        table.add_row(*cells[index], *right)
    return table


def _proof_table(report: Report) -> Table:
    progress, verdict = report.progress, report.verdict
    rate = verdict.orders / report.orders_s if report.orders_s else 0.0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(width=20)
    table.add_column(justify="right", width=6)
    table.add_column()
    for name, number, text in (
        ("orders committed", verdict.orders, f"in {report.wall_s:.1f} s, {rate:.0f} orders/s while they were taken"),
        (
            "rolled back",
            len(progress.declined) + verdict.rolled_back,
            f"{len(progress.declined)} declined, {verdict.rolled_back} by the check after a kill",
        ),
        ("messages delivered", progress.delivered, "to a consumer that was killed too"),
        ("duplicates removed", progress.duplicates, "by its inbox"),
        ("identical", verdict.identical, "orders whose row and message say the same"),
    ):
        table.add_row(name, str(number), text)
    for name, number, text in (
        ("in doubt", verdict.in_doubt, "neither committed nor rolled back"),
        ("lost", verdict.lost, "committed, but never announced"),
        ("leaked", verdict.leaked, "announced, but never committed"),
    ):
        style = "red" if number else "green"
        table.add_row(f"[bold]{name}[/]", f"[bold {style}]{number}[/]", text)
    return table
