"""`txcore demo`: the command line of the demo."""

from __future__ import annotations

import functools
import json
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from txcore_conformance.demo.settings import Settings

from txcore.backends.options import split_url
from txcore.cli.helping import JSON_HELP
from txcore.errors import BackendNotInstalledError, UsageError
from txcore.signing import KEY_SIZE_MIN, GroupKeys, SigningKeys, keys_file_of

LEASE_S: Final = 1.5
"""Seconds for which a killed checker or consumer keeps its partitions; short, as the demo waits for it."""


def demo(
    *,
    orders: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Orders to take.")] = 1_000,
    kills: Annotated[
        int, typer.Option(metavar="COUNT", min=0, help="Processes to kill at least; fewer is a failure.")
    ] = 20,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Decides which process is killed at which step.")] = 1,
    broker: Annotated[str, typer.Option(metavar="URL", help="Your broker instead of a file.")] = "",
    database: Annotated[str, typer.Option(metavar="URL", help="Your database (SQLAlchemy) instead of a file.")] = "",
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder for the files; they are kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep files and tables when it is over.")] = False,
) -> None:
    """Take orders while processes are killed at every step, and prove that nothing is lost or leaked."""
    scheme = split_url(broker).scheme
    if scheme == "memory":
        raise UsageError(
            "memory:// lives inside one process, and the demo kills many: give a broker that all of them reach"
        )
    try:
        import sqlalchemy  # noqa: F401, PLC0415 - only the demo needs it
    except ImportError as error:
        raise BackendNotInstalledError("txcore demo", "SQLAlchemy", "demo") from error
    from txcore_conformance.demo.shop import sqlite_url  # noqa: PLC0415

    is_kept = keep or folder is not None
    place = Path(tempfile.mkdtemp(prefix="txcore-demo-")) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    # A broker or database that others may have used gets unique names; a new folder does not need them.
    is_own = not broker and not database and not any(place.iterdir())
    token = "" if is_own else f"-{secrets.token_hex(4)}"
    name = f"demo{token}"
    settings = Settings(
        broker_url=broker or f"{sqlite_url(place / f'broker{token}.db')}?lease_s={LEASE_S}",
        database_url=database or sqlite_url(place / f"shop{token}.db"),
        name=name,
        orders=orders,
        kills_min=kills,
        seed=seed,
        signing=_own_keys(broker),
    )
    is_proven = False
    try:
        is_proven = _carry_out(settings, is_kept=is_kept, as_json=as_json)
        is_kept = is_kept or not is_proven
    finally:
        if not is_kept:
            shutil.rmtree(place)
    if not is_proven:
        raise typer.Exit(1)


def _own_keys(url: str) -> GroupKeys | None:
    """Return a new key for the demo's own group, if the broker's URL names a file of keys; that file must be right."""
    file = keys_file_of(url)
    if not file:
        return None
    SigningKeys.from_file(file)
    return GroupKeys(sign_with="demo", keys={"demo": secrets.token_bytes(KEY_SIZE_MIN)})


def _carry_out(settings: Settings, *, is_kept: bool, as_json: bool) -> bool:
    """Run the demo, print its result, and clean the database unless it is to be kept or something failed."""
    from txcore_conformance.demo import run, show  # noqa: PLC0415 - SQLAlchemy again

    console = Console(highlight=False, quiet=as_json)
    is_proven = False
    try:
        report = run.run(settings, functools.partial(show.watch, console))
        is_proven = report.is_proven
        is_kept = is_kept or not is_proven
        show.conclude(console, report)
        show.point_to(console, settings, is_kept=is_kept)
        if as_json:
            typer.echo(json.dumps(report.as_json(), indent=2))
    finally:
        if not is_kept:
            run.clean(settings)
    return is_proven
