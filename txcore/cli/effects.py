"""`txcore audit effects`: the newest run of the audit against business rows and consumers' inboxes."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from txcore.audit.verdicts import Severity, exit_code
from txcore.cli.audit import Config, Settings, code_of, loaded_of, module
from txcore.cli.comparison import WORDS, show_findings
from txcore.cli.helping import JSON_HELP
from txcore.cli.operating.screen import Screen
from txcore.findings import counted

EXTRA: Final = "audit"


def effects(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default="all that have ends")] = "",
    *,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    settings: Settings = None,
) -> None:
    """Compare committed transactions with business rows, and their messages with the inboxes of consumers.

    Uses the records of the newest run, so run txcore audit first. Ends with 0 pass, 1 warnings, 2 violations, 3
    inconclusive (not everything could be seen), 4 error; the highest of 4, 2, 3, 1 that applies.
    """
    screen = Screen(as_json=as_json)
    loaded = loaded_of(config, settings)

    def action() -> int:
        command = module("effects.command", EXTRA)
        with screen.busy("reading both ends"):
            found = [*command.examine_all(loaded, group)]
        _show(screen, found)
        return exit_code({Severity(each.exit_code) for each in found})

    raise typer.Exit(code_of(action))


def _show(screen: Screen, found: list[Any]) -> None:
    if screen.as_json:
        screen.json([each.as_builtin() for each in found])
        return
    for each in found:
        words = WORDS.get(each.exit_code, "pass: both ends agree")
        sides = [counted(each.transactions, "transaction")]
        sides += [f"{each.business:,} in business rows"] if each.business is not None else []
        sides += [f"{count:,} received by {name}" for name, count in each.received.items()]
        screen.say(f"{each.group}, run {each.run}: {words} ({', '.join(sides)})")
        show_findings(screen, each.findings)
        for note in each.notes:
            screen.hang("not judged: ", note)
        for gap in each.gaps:
            screen.hang("not seen: ", gap)
