"""`txcore backends`: the brokers that this installation can use, and the promises of each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from txcore.cli import guarantees
from txcore.cli.helping import JSON_HELP
from txcore.registry import InstalledBackend, installed_backends

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class Promise:
    """One column of the table: a capability and its heading."""

    name: str
    heading: str


PROMISES: Final = (
    Promise("atomic_release", "atomic\nrelease"),
    Promise("resolution_is_unique", "one\ndecision"),
    Promise("fences_checkers", "fences\ncheckers"),
    Promise("fsync_before_ack", "fsync\nbefore ack"),
)


def backends(
    *,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="All guarantees, as a page to read.")] = False,
) -> None:
    """List the brokers that this installation can use, the missing packages, and the promises of each broker."""
    if as_markdown:
        typer.echo(guarantees.markdown().rstrip())
        return
    lines = [(backend, _capabilities(backend)) for backend in installed_backends()]
    if as_json:
        typer.echo(json.dumps([_as_json(*line) for line in lines], indent=2))
        return
    console = Console()
    console.print(_table(lines))
    for backend, capabilities in lines:
        note = backend.missing or ("" if capabilities else "its plugin names no guarantees")
        if note:
            console.print(f"{backend.scheme}: {note}", soft_wrap=True, markup=False)


def _table(lines: list[tuple[InstalledBackend, Mapping[str, Any]]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("scheme", "from", "version", "driver"):
        table.add_column(heading, vertical="top", overflow="fold", no_wrap=heading == "scheme")
    for promise in PROMISES:
        table.add_column(promise.heading)
    for backend, capabilities in lines:
        promises = [_cell(promise.name, capabilities) for promise in PROMISES]
        state = "missing" if backend.missing else "present"
        table.add_row(backend.scheme, backend.distribution, backend.version, state, *promises)
    return table


def _cell(name: str, capabilities: Mapping[str, Any]) -> str:
    value = capabilities.get(name, UNKNOWN)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _as_json(backend: InstalledBackend, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "scheme": backend.scheme,
        "distribution": backend.distribution,
        "version": backend.version,
        "is_ready": not backend.missing,
        "missing": backend.missing,
        "capabilities": dict(capabilities),
    }


def _capabilities(backend: InstalledBackend) -> Mapping[str, Any]:
    """Return the promises of a backend in its usual form; empty when its module names none."""
    if backend.missing:
        return {}
    forms = guarantees.guarantees_of(backend.scheme)
    return asdict(forms[0].capabilities) if forms else {}
