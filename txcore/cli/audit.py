"""`txcore audit`: prove for all brokers that databases, logs and targets agree, or name each difference."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from txcore.audit.engines import ENGINES, NO_ENGINE
from txcore.cli.config import CONFIG_HELP, say_problems
from txcore.cli.helping import JSON_HELP, Misuse, SectionedGroup, misuse
from txcore.cli.operating.screen import Screen
from txcore.config import ConfigFileError, Loaded, load
from txcore.errors import BackendNotInstalledError, TxcoreError, UsageError
from txcore.ids import parse_id

FAILED: Final = 4
DRIVERS: Final = frozenset({"deltalake", "duckdb", "pyspark", "pyarrow", "pandas", "txcore_spark"})
MODES: Final = ("incremental", "once", "continuous")


class _AuditGroup(SectionedGroup):
    """Exits with 4 for a mistyped command line: 2, the code of other commands, means violations here."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments after `txcore audit`."""
        return _parsed(lambda: super(_AuditGroup, self).make_context(*args, **kwargs))

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments after a command of the group, and run it."""
        return _parsed(lambda: super(_AuditGroup, self).invoke(ctx))


audit = typer.Typer(name="audit", cls=_AuditGroup, help="Prove that databases, logs and targets agree.")
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help=CONFIG_HELP),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in audit.late_s=60. Repeatable."),
]


@audit.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    *,
    config: Config = None,
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="incremental, once (everything, or a window), or continuous.")
    ] = MODES[0],
    since: Annotated[str, typer.Option(metavar="TIME", help="With once: born at or after this ISO time.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="With once: born before this ISO time.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per step on standard output.")] = False,
    no_land: Annotated[
        bool, typer.Option("--no-land", help="With once: leave findings and report, but no rows. For small runs.")
    ] = False,
    engine: Annotated[
        str,
        typer.Option(metavar="ENGINE", help="duckdb (one machine) or spark; by default spark where it is installed."),
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show Spark's own output, and the phases without a terminal.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Audit once, from the point where the last run stopped, or for ever.

    Ends with 0 pass, 1 warnings, 2 violations, 3 inconclusive (not everything could be read), 4 error; the highest
    of 4, 2, 3, 1 that applies.
    """
    if context.invoked_subcommand is not None:
        return
    if mode not in MODES:
        say(UsageError(f"there is no mode {mode!r}; the modes are {', '.join(MODES)}"))
        raise typer.Exit(FAILED)
    if engine and engine not in ENGINES:
        say(UsageError(f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}"))
        raise typer.Exit(FAILED)
    loaded = loaded_of(config, settings)
    command = module("command")
    wish = command.Wish(mode, since, until, as_json=as_json, is_landed=not no_land, is_verbose=verbose, engine=engine)
    raise typer.Exit(code_of(lambda: command.run(loaded, wish)))


@audit.command("repair")
def repair(
    number: Annotated[int, typer.Argument(metavar="RUN", help="The run whose findings are to be repaired.")],
    *,
    config: Config = None,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this transaction. Repeatable.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write; without it the plan is shown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    settings: Settings = None,
) -> None:
    """Publish lost targets again from their half, and park stuck transactions. Never touches a leaked message.

    Every finding is verified again first, and has its line as soon as it was read or repaired. Needs no Spark session.
    Ends with 0, 1 when a repair failed, 4 for an error.
    """
    loaded = loaded_of(config, settings)
    repairing = module("repair")

    def action() -> int:
        chosen = {parse_id(each) for each in only or ()}
        screen = Screen(as_json=as_json)
        say = typer.echo if as_json else screen.say
        shown = {"say": say, "as_json": as_json, "awaited": screen.awaited}
        return int(repairing.repair(loaded, number, only=chosen, apply=apply, **shown))

    raise typer.Exit(code_of(action))


def module(name: str, extra: str = "") -> Any:
    """Return a module of the audit's package.

    Raises:
        typer.Exit: no engine, or not what *extra* installs, is there; the sentence that says so is printed.
    """
    try:
        return importlib.import_module(f"txcore_spark.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in DRIVERS:
            raise
        say(BackendNotInstalledError("the audit", str(error.name), extra) if extra else UsageError(NO_ENGINE))
        raise typer.Exit(FAILED) from error


def say(error: TxcoreError) -> None:
    """Print an error as one sentence."""
    print("txcore:", " ".join(str(error).split()), file=sys.stderr)  # noqa: T201 - a command's output


def _parsed(action: Callable[[], Any]) -> Any:
    """Run an action; whatever it raises ends with 4: the code of an exception would be 1, which means warnings."""
    try:
        return action()
    except Misuse as error:
        say(misuse(error))
        raise typer.Exit(FAILED) from error
    except (typer.Exit, typer.Abort):
        raise
    except TxcoreError as error:
        say(error)
        raise typer.Exit(FAILED) from error
    except Exception as error:
        traceback.print_exc()
        raise typer.Exit(FAILED) from error


def loaded_of(config: Path | None, settings: list[str] | None) -> Loaded:
    """Return the configuration; its mistakes end the command with 4."""
    try:
        return load(config, settings=settings or ())
    except ConfigFileError as error:
        say_problems(error)
        raise typer.Exit(FAILED) from error
    except UsageError as error:
        say(error)
        raise typer.Exit(FAILED) from error


def code_of(action: Callable[[], int]) -> int:
    """Return an action's exit code; misuse is an error like any other, as 2 means violations."""
    try:
        return int(action())
    except TxcoreError as error:
        say(error)
        return FAILED
