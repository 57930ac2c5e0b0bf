"""`txcore doctor`: is the live broker, and the database, as durable as txcore's promises require?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from txcore.backends.options import split_url
from txcore.cli.helping import JSON_HELP
from txcore.cli.operating.place import FILE_NAME, TABLE, Place, the_address
from txcore.cli.operating.screen import Screen
from txcore.errors import BackendNotInstalledError, BackendUnavailableError, UsageError
from txcore.findings import BODY_SIZE, HORIZON_S, Examination, Level, Line, Report, Request, examine, fail
from txcore.message_table import Mode
from txcore.registry import connect, open_doctor

if TYPE_CHECKING:
    from collections.abc import Sequence

STATUS: Final = {Level.OK: 0, Level.FAIL: 1, Level.WARN: 3}
"""Exit codes by level; 2 is the code of a usage error, as for every command."""
STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.DEV: "cyan"}
INDENT: Final = 6


def doctor(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The broker, as given to txcore.connect(). Or TXCORE_BROKER.")
    ] = "",
    *,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="The producer group to examine; it is not created. Or TXCORE_GROUP.")
    ] = "",
    database: Annotated[
        str, typer.Option(metavar="URL", help="The fence's database (SQLAlchemy). Or TXCORE_DATABASE.")
    ] = "",
    table: Annotated[str, typer.Option(metavar="NAME", help="The fence's table there.", show_default=TABLE)] = "",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Take these from a file; {FILE_NAME} here, if there is no URL.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="The producers' mode: table and auto need the message table.")] = Mode.HALF,
    target: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="A target topic to look at; may be repeated.")
    ] = None,
    max_body: Annotated[
        int, typer.Option(metavar="BYTES", min=1, help="Size of one transaction's messages that must fit.")
    ] = BODY_SIZE,
    horizon: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time a half may stay undecided.")
    ] = HORIZON_S,
    monitor: Annotated[
        str, typer.Option(metavar="URL", help="RabbitMQ's management API, or NATS' monitoring port.")
    ] = "",
    callback: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A listener's callback to look at; may be repeated.")
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="A developer's broker: the marks DEV show what one node may lack.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Check whether a live broker and database meet the needs of txcore's promises; changes nothing.

    Exit code: 0 all OK or DEV, 3 warnings, 1 failures or unreachable, 2 misuse.
    """
    given = Place(broker=url, group=group, database=database, table=table, config=config)
    place = the_address(given, called="URL")
    if split_url(place.broker).scheme == "memory":
        raise UsageError("memory:// lives inside one process: there is no live broker to examine")
    split_url(monitor)
    request = Request(place.group, tuple(target or ()), max_body, horizon, monitor)
    report = Report((), ())
    examinations: list[Examination[Any]] = []
    undecided: Callable[[], Mapping[bytes, bytes]] = dict
    with contextlib.ExitStack() as stack, Screen(as_json=as_json).busy("asking broker and database"):
        # All are opened before the first check, so that a mistake is said at once. One that is down hides no other.
        try:
            examinations += _broker(stack, place.broker, request)
            undecided = examinations[-1].subject.undecided
        except BackendUnavailableError as error:
            report = report.joined(_down("broker", error))
        try:
            examinations += _database(stack, place.database, place.table, mode, undecided)
        except BackendUnavailableError as error:
            report = report.joined(_down("database", error))
        examinations += _callbacks(callback or ())
        for examination in examinations:
            report = report.joined(examine(examination))
    report = report.for_developer() if dev else report
    if as_json:
        typer.echo(json.dumps(_as_json(report), indent=2))
    else:
        _show(Console(highlight=False), report)
    raise typer.Exit(STATUS[report.level])


def _down(name: str, error: BackendUnavailableError) -> Report:
    return Report((Line(name, fail(str(error), f"start the {name}, or correct its URL")),), ())


def _broker(stack: contextlib.ExitStack, url: str, request: Request) -> list[Examination[Any]]:
    from txcore.doctor.backend_checks import port_examination  # noqa: PLC0415 - only this command needs it

    # First, because opening a backend may create the objects whose absence the doctor is to report.
    own = open_doctor(url, request)
    if own is not None:
        stack.callback(own.close)
    common = port_examination(stack.enter_context(connect(url)), request)
    return [common] if own is None else [own, common]


def _database(
    stack: contextlib.ExitStack, url: str, table: str, mode: Mode, undecided: Callable[[], Mapping[bytes, bytes]]
) -> list[Examination[Any]]:
    if not url:
        return []
    try:
        import sqlalchemy  # noqa: F401, PLC0415 - only this option needs it
    except ImportError as error:
        raise BackendNotInstalledError("txcore doctor --database", "SQLAlchemy", "sql") from error
    from txcore.doctor.database_checks import database_examination  # noqa: PLC0415

    examination = database_examination(url, table=table, mode=mode, undecided=undecided)
    stack.callback(examination.close)
    return [examination]


def _callbacks(urls: Sequence[str]) -> list[Examination[Any]]:
    from txcore.doctor.callback_checks import callback_examination  # noqa: PLC0415 - only this command needs it

    return [callback_examination(tuple(urls))] if urls else []


def _show(console: Console, report: Report) -> None:
    for line in report.lines:
        level = line.finding.level
        _hang(console, Text(level.value, STYLES[level]), Text.assemble((line.name, "bold"), ": ", line.finding.text))
        if line.finding.change:
            _hang(console, Text(), Text(f"-> {line.finding.change}"))
    for needed in dict.fromkeys(needed for _, needed in report.skipped):
        names = ", ".join(name for name, other in report.skipped if other == needed)
        _hang(console, Text(), Text(f"not checked, because of {needed}: {names}"))
    console.print(_summary(report))


def _hang(console: Console, label: Text, text: Text) -> None:
    """Print *text* wrapped beside *label*."""
    label.pad_right(INDENT - len(label))
    for line in text.wrap(console, console.width - INDENT):
        line.rstrip()
        console.print(Text.assemble(label, line))
        label = Text(" " * INDENT)


def _summary(report: Report) -> Text:
    levels = [line.finding.level for line in report.lines]
    shown = [Level.FAIL, Level.WARN, *([Level.DEV] if Level.DEV in levels else []), Level.OK]
    counts = {level: levels.count(level) for level in shown}
    counted = ", ".join(f"{count} {level.value}" for level, count in counts.items())
    return Text.assemble((counted, STYLES[report.level]), f" of {len(levels)} checks")


def _as_json(report: Report) -> dict[str, Any]:
    lines: Sequence[dict[str, str]] = [
        {
            "check": line.name,
            "level": line.finding.level.value,
            "text": line.finding.text,
            "change": line.finding.change,
        }
        for line in report.lines
    ]
    skipped = [{"check": name, "needs": needed} for name, needed in report.skipped]
    return {"level": report.level.value, "checks": lines, "skipped": skipped}
