"""`txcore config`: write a sample of the configuration file, show every key, find mistakes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from txcore.config import FILE_NAME, ConfigFileError, load
from txcore.config.reference import markdown
from txcore.config.sample import sample
from txcore.errors import UsageError

MODE: Final = 0o600
"""Mode of the files that are written: URLs with passwords may be put into them."""

config = typer.Typer(name="config", help="The configuration file txcore.toml.", no_args_is_help=True)


@config.command()
def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path(FILE_NAME),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
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
    typer.echo(f"{file} is written: edit the two URLs in it, then run `txcore checker`")


@config.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="The file [default: txcore.toml here; TXCORE_CONFIG].")] = None,
) -> None:
    """Find mistakes without connecting to any broker; `txcore checker --check-config` also connects."""
    try:
        loaded = load(file, needs_groups=False)
    except ConfigFileError as error:
        say_problems(error)
        raise typer.Exit(2) from error
    typer.echo(f"no mistake; groups: {', '.join(loaded.config.groups) or 'none'}")


@config.command()
def reference() -> None:
    """Show every key as Markdown tables."""
    typer.echo(markdown().rstrip())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)


def say_problems(error: ConfigFileError) -> None:
    """Print every mistake on a line of its own on standard error."""
    for problem in error.problems:
        print("txcore:", " ".join(str(problem).split()), file=sys.stderr)  # noqa: T201 - a command speaks
