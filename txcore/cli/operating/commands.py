"""The operator's commands by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txcore.cli.operating import deciding, fences, listing, relaying, showing, tables, top, topics
from txcore.cli.operating.place import at_place

if TYPE_CHECKING:
    from typer import Typer

PANEL: Final = "Operating a group"


def add_to(app: Typer) -> None:
    """Add all commands to *app*."""
    for name, command in (
        ("pending", listing.pending),
        ("parked", listing.parked),
        ("show", showing.show),
        ("resume", deciding.resume),
        ("commit", deciding.commit),
        ("rollback", deciding.rollback),
        ("cancel", at_place(tables.cancel)),
        ("top", top.top),
        ("relay", relaying.relay),
    ):
        app.command(name, rich_help_panel=PANEL)(command)
    app.add_typer(topics.app, name="topics", rich_help_panel=PANEL)
    app.add_typer(fences.app, name="fence", rich_help_panel=PANEL)
    app.add_typer(tables.app, name="table", rich_help_panel=PANEL)
