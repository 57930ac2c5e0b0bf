"""The help of commands with subcommands: their sentences in full, under headings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMANDS: Final = "Commands"


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


def first_sentence(text: str) -> str:
    """Return the first paragraph of a help text, on one line."""
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def _in_order(sections: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return sorted(sections, key=lambda each: each[0] != COMMANDS)
