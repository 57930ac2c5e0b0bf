"""Writes the reference of the commands: the help of each, as the program prints it, under a heading of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import typer

from txcore.cli import build_app

MARK: Final = "```{commands}\n```"
"""What a page holds in place of the reference; the site's build replaces it."""
COLUMNS: Final = 80


def text() -> str:
    """Return the reference in Markdown."""
    os.environ["COLUMNS"] = str(COLUMNS)  # click's formatter asks the terminal otherwise
    root: Any = typer.main.get_command(build_app())
    context = root.make_context("txcore", [], resilient_parsing=True)
    return "\n".join(f"## {path}\n\n```text\n{shown}\n```\n" for path, shown in _helped(root, context))


def _helped(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context).strip()
    for name in getattr(command, "list_commands", lambda _: ())(context):
        below = command.get_command(context, name)
        if not below.hidden:
            yield from _helped(below, below.make_context(name, [], parent=context, resilient_parsing=True))
