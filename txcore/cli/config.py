"""`txcore config`: write a sample of the configuration file, show every key, find mistakes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from txcore.cli.helping import JSON_HELP, SectionedGroup
from txcore.config import FILE_NAME, ConfigFileError, load
from txcore.config.reference import keys, markdown
from txcore.config.sample import sample
from txcore.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
CONFIG_HELP: Final = f"The file [default: {FILE_NAME} here; TXCORE_CONFIG]."
MODE: Final = 0o600
"""Mode of the files that are written: URLs with passwords may be put into them."""

config = typer.Typer(
    name="config", cls=SectionedGroup, help="The configuration file txcore.toml.", no_args_is_help=True
)


@config.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path(FILE_NAME),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented sample: edit its two URLs and run `txcore checker`."""
    try:
        with open(file, "w" if force else "x", encoding="utf-8", opener=_private) as target:
            os.fchmod(target.fileno(), MODE)  # a file that was there keeps its mode
            target.write(sample())
    except FileExistsError as error:
        raise UsageError(f"{file} is there already; --force replaces it") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    said = f"{file} is written: edit the two URLs in it, then run `txcore checker`"
    typer.echo(json.dumps({"file": str(file)}, indent=2) if as_json else said)


@config.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=CONFIG_HELP)] = None,
    *,
    as_json: Json = False,
) -> None:
    """Find mistakes without connecting to any broker; `txcore checker --check-config` also connects.

    Exit code: 0 no mistake, 2 mistakes.
    """
    try:
        loaded = load(file, needs_groups=False)
    except ConfigFileError as error:
        if as_json:
            typer.echo(json.dumps({"mistakes": [str(each) for each in error.problems], "groups": None}, indent=2))
        else:
            say_problems(error)
        raise typer.Exit(2) from error
    groups = list(loaded.config.groups)
    said = f"no mistake; groups: {', '.join(groups) or 'none'}"
    typer.echo(json.dumps({"mistakes": [], "groups": groups}, indent=2) if as_json else said)


@config.command("reference")
def reference(*, as_json: Json = False) -> None:
    """Show every key as Markdown tables."""
    typer.echo(json.dumps(list(keys()), indent=2) if as_json else markdown().rstrip())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)


def say_problems(error: ConfigFileError) -> None:
    """Print every mistake on a line of its own on standard error."""
    for problem in error.problems:
        print("txcore:", " ".join(str(problem).split()), file=sys.stderr)  # noqa: T201 - a command speaks
