"""`txcore audit outbox`: an outbox table of another library against its topics, without txcore in the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from txcore.cli.audit import code_of, module
from txcore.cli.comparison import WORDS, show_findings
from txcore.cli.helping import JSON_HELP
from txcore.cli.operating.relaying import pair_of
from txcore.cli.operating.screen import Screen
from txcore.errors import UsageError
from txcore.findings import counted
from txcore.operator.formatting import ms_of_iso
from txcore.outbox.foreign_layouts import layout_of

EXTRA: Final = "audit"

Broker = Annotated[str, typer.Option(metavar="URL", help="The broker of the topics.")]
Database = Annotated[str, typer.Option(metavar="URL", help="The database of the table, as SQLAlchemy names it.")]
Table = Annotated[str, typer.Option(metavar="NAME", help="The outbox table.")]
LayoutName = Annotated[str, typer.Option(metavar="NAME", help="debezium, eventuate or masstransit.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=NAME", help="Its column for id, topic, body, order, key, headers, done…"),
]
Kept = Annotated[str, typer.Option(metavar="NAME", help="The table to which a trigger copies each row.")]
Created = Annotated[str, typer.Option(metavar="COLUMN", help="The column with the time of a row.")]
Since = Annotated[str, typer.Option(metavar="TIME", help="Judge only rows of this ISO time or later.")]
Grace = Annotated[
    float, typer.Option("--grace-s", metavar="SECONDS", min=0.0, help="Time that the relay may take for a row.")
]
Match = Annotated[
    str, typer.Option(metavar="WHERE", help="Where a message has the row's id: header:NAME or body:PATH.")
]
Payload = Annotated[
    str | None, typer.Option(metavar="PATH", help="Where a JSON body has the row's body; empty for all of it.")
]
Skipped = Annotated[
    list[str] | None, typer.Option(metavar="PART", help="Do not compare key, body or headers. Repeatable.")
]
Topics = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Read this topic too. Repeatable.")]
Taps = Annotated[
    list[str] | None,
    typer.Option(metavar="TOPIC=STREAM", help="RabbitMQ: the stream beside the topic's queue. Repeatable."),
]


def outbox(
    *,
    broker: Broker,
    database: Database,
    table: Table,
    layout: LayoutName = "",
    column: Columns = None,
    kept: Kept = "",
    created: Created = "",
    since: Since = "",
    grace_s: Grace = 60.0,
    match: Match = "",
    payload: Payload = None,
    skip: Skipped = None,
    topic: Topics = None,
    tap: Taps = None,
    keep_sql: Annotated[
        bool, typer.Option("--keep-sql", help="Print the SQL of table and trigger for --kept, and do nothing else.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Compare an outbox table with its topics: lost, doubled, altered and forged messages. Needs no Spark.

    Ends with 0 pass, 1 warnings, 2 violations, 3 inconclusive (not everything could be seen), 4 error.
    """
    screen = Screen(as_json=as_json)

    def action() -> int:
        if keep_sql:
            typer.echo(module("outboxes.keeping", EXTRA).keeping_sql(database, table, kept or f"{table}_kept"))
            return 0
        asked = module("outboxes.asked", EXTRA).Asked(
            broker,
            database,
            table,
            layout_of(layout, dict(map(pair_of, column or ()))),
            _convention(layout, match, payload),
            kept=kept,
            created=created,
            since_ms=ms_of_iso(since) if since else 0,
            grace_s=grace_s,
            topics=tuple(topic or ()),
            taps=dict(map(_tap, tap or ())),
            skipped=frozenset(skip or ()),
        )
        command = module("outboxes.command", EXTRA)
        with screen.busy("reading the table and its topics"):
            examined = command.examine(asked)
        _show(screen, examined)
        return int(examined.exit_code)

    raise typer.Exit(code_of(action))


def _convention(layout: str, match: str, payload: str | None) -> Any:
    """Return how the relay of a layout writes a row into a topic, with what the command line changes of it."""
    conventions = module("outboxes.asked", EXTRA).CONVENTIONS
    own = conventions.get(layout, conventions[""])
    return replace(own, identity=match or own.identity, payload=own.payload if payload is None else payload)


def _tap(text: str) -> tuple[str, str]:
    topic, equals, stream = text.partition("=")
    if not equals:
        raise UsageError(f"--tap {text!r} must be TOPIC=STREAM")
    return topic, stream


def _show(screen: Screen, examined: Any) -> None:
    if screen.as_json:
        screen.json(examined.as_builtin())
        return
    words = WORDS.get(examined.exit_code, "pass: each row has its message")
    screen.say(f"{words} ({counted(examined.rows, 'row')}, {counted(examined.messages, 'message')})")
    show_findings(screen, examined.findings)
    if examined.strange:
        screen.say(f"\n{counted(examined.strange, 'message')} in these topics without a row's id")
    for gap in examined.gaps:
        screen.hang("not seen: ", gap)
