"""`txcore --version`, and the options of all commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer


def _show(value: bool) -> None:  # noqa: FBT001 - typer passes an option's value by position
    if value:
        typer.echo(f"txcore {version('txcore')}")
        raise typer.Exit


def root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show, is_eager=True)
    ] = False,
) -> None:
    """Transactional (half) messages for the brokers you already run: both or neither."""
