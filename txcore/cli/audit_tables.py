"""`txcore audit sql` and `acknowledge`: questions to the results of all runs, and findings that a person knows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcore.audit.verdicts import Verdict
from txcore.cli.audit import Config, Settings, audit, code_of, loaded_of, module
from txcore.cli.helping import JSON_HELP
from txcore.cli.operating.screen import GAP, Screen
from txcore.clock import SystemClock
from txcore.errors import UsageError
from txcore.findings import counted
from txcore.ids import id_text, parse_id
from txcore.operator.formatting import one_line
from txcore.operator.login import login_name

__all__ = ["audit"]  # with the commands of this module


@audit.command("sql")
def sql(
    query: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT, in quotes.")],
    *,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    settings: Settings = None,
) -> None:
    """Ask the results of all runs in SQL; nothing is changed. Needs DuckDB, no Spark and no broker.

    The views: findings, open_findings, verdicts_by_hour, coverage, runs; records (the landed rows of the newest run
    and of those it builds on), transactions (what these say of each transaction). Ends with 0, or 4 for an error.
    """
    loaded = loaded_of(config, settings)
    views, screen = module("tables.views"), Screen(as_json=as_json)

    def action() -> int:
        store = module("store").Store(loaded.config.audit.store)
        with screen.busy("reading the tables"):
            answer = views.ask(store, query)
        if as_json:
            screen.json(answer.as_builtin())
        else:
            _show(screen, answer.columns, [[_cell(each) for each in row] for row in answer.rows])
        return 0

    raise typer.Exit(code_of(action))


@audit.command("acknowledge")
def acknowledge(
    verdict: Annotated[str, typer.Argument(metavar="VERDICT", help="The finding's verdict, such as LOST.")],
    transaction: Annotated[str, typer.Argument(metavar="ID", help="The transaction's whole id.")],
    *,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What is known about it; kept with the finding.")],
    by: Annotated[str, typer.Option(metavar="NAME", help="A person's name.", show_default="your login name")] = "",
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    settings: Settings = None,
) -> None:
    """Note at an open finding that a person knows it. It stays a finding, and exit codes stay as they are.

    Ends with 0, or 4 for an error, such as a finding that is not open.
    """
    loaded = loaded_of(config, settings)
    keeping, screen = module("tables.keeper"), Screen(as_json=as_json)

    def action() -> int:
        name, identity, person = verdict.upper(), parse_id(transaction), by or login_name()
        if name not in Verdict.__members__:
            raise UsageError(f"there is no verdict {verdict!r}; the verdicts are {', '.join(Verdict.__members__)}")
        store = module("store").Store(loaded.config.audit.store)
        keeping.Keeper(store).acknowledge(name, identity, person, note, SystemClock().wall_ms())
        if as_json:
            found = {"verdict": name, "transaction_id": id_text(identity), "acknowledged_by": person, "note": note}
            screen.json(found)
        screen.say(f"{name} on {id_text(identity)} is acknowledged by {person}; it stays a finding")
        return 0

    raise typer.Exit(code_of(action))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return "" if value is None else one_line(str(value))


def _show(screen: Screen, columns: list[str], rows: list[list[str]]) -> None:
    """Show a table, or one line for each value where a table would not fit into the screen's width."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) <= screen.out.width:
        screen.table(columns, rows)
    else:
        width = max(map(len, columns)) + GAP
        for number, row in enumerate(rows, start=1):
            screen.say(f"row {number}")
            for name, value in zip(columns, row, strict=True):
                screen.hang(f"  {name:<{width}}", value)
    screen.note(counted(len(rows), "row"))
