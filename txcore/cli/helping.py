"""The parser's texts: help whose sentences are in full, under headings, and mistakes as one sentence."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from txcore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typer import Typer

COMMANDS: Final = "Commands"
JSON_HELP: Final = "The result as JSON, for programs."
Misuse: Final[type[Exception]] = BadParameter.__mro__[1]
"""The parser's exception for any mistake on the command line; newer typers include a click of their own."""


class SectionedGroup(TyperGroup):
    """Lists its commands by their panel; each sentence is wrapped, where click's own list would cut it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None) or COMMANDS
                sections.setdefault(heading, []).append((name, first_sentence(command.help or "")))
        for heading, rows in _in_order(sections.items()):
            with formatter.section(heading):
                formatter.write_dl(rows)


class PlainCommand(TyperCommand):
    """Shows an argument by its name alone, `ID`, not `ID <list[str]>`, and names itself in its mistakes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See `TyperCommand`."""
        super().__init__(*args, **kwargs)
        for each in self.params:
            if each.param_type_name == "argument" and each.metavar:
                each.display_type_rich = lambda ctx: None  # type: ignore[attr-defined]  # noqa: ARG005 - typer's name

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command's own arguments."""
        try:
            return super().parse_args(ctx, args)
        except Misuse as error:
            error.ctx = ctx  # type: ignore[attr-defined]
            raise


def make_plain(app: Typer) -> None:
    """Have each command of *app* show its arguments by their names alone."""
    for command in app.registered_commands:
        command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            make_plain(group.typer_instance)


def misuse(error: Exception) -> UsageError:
    """Return a mistake on the command line as one sentence, with the command whose help shows what is right."""
    parser: Any = error
    where = parser.ctx.command_path if parser.ctx is not None else "txcore"
    said = " ".join(parser.format_message().split()).rstrip(".").replace("Value error, ", "")
    return UsageError(f"{said[:1].lower()}{said[1:]} ({where} --help)")


def first_sentence(text: str) -> str:
    """Return the first paragraph of a help text, on one line."""
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def _in_order(sections: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return sorted(sections, key=lambda each: each[0] != COMMANDS)
