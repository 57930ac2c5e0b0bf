"""`txcore checker`: the checker as a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from txcore.cli.config import CONFIG_HELP, say_problems
from txcore.config import ConfigFileError, Loaded, load
from txcore.config.sources import Simple

PROBE_FAILED: Final = 3
WRONG_CONFIGURATION: Final = 2


def checker(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help=CONFIG_HELP),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Try everything the configuration names, check no half, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check-config: the result as JSON.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in http.port=0. Repeatable."),
    ] = None,
    broker: Annotated[
        str, typer.Option(metavar="URL", help="One group without a file: its broker [TXCORE_BROKER].")
    ] = "",
    group: Annotated[str, typer.Option(metavar="NAME", help="Its name [TXCORE_GROUP].")] = "",
    database: Annotated[str, typer.Option(metavar="URL", help="Its fence's database [TXCORE_DATABASE].")] = "",
    listener: Annotated[str, typer.Option(metavar="MODULE:ATTR", help="Its Python listener [TXCORE_LISTENER].")] = "",
    callback: Annotated[str, typer.Option(metavar="URL", help="Its HTTP callback [TXCORE_CALLBACK].")] = "",
) -> None:
    """Check the halves of one or more producer groups until a signal stops it.

    Exits with 0 after SIGTERM or SIGINT, 1 when it failed, 2 for a wrong configuration, 3 when --check-config could not
    reach something, 4 when it could not finish in time, 128 + n after a second signal n. SIGHUP reloads.
    """
    simple = Simple(broker, group, database, listener, callback)

    def read() -> Loaded:
        from txcore.sidecar.probing import validate  # noqa: PLC0415 - as below

        loaded = load(config, simple=simple, settings=settings or ())
        validate(loaded)
        return loaded

    try:
        loaded = load(config, simple=simple, settings=settings or ()) if check_config else read()
    except ConfigFileError as error:
        say_problems(error)
        raise typer.Exit(WRONG_CONFIGURATION) from error
    if check_config:
        raise typer.Exit(_probe(loaded, as_json=as_json))
    from txcore.sidecar.life import DONE, Life  # noqa: PLC0415 - other commands need none of it

    status = Life(loaded, read).run()
    if status != DONE:
        # A thread that could not be stopped in time must not delay the exit either.
        sys.stderr.flush()
        os._exit(status)


def _probe(loaded: Loaded, *, as_json: bool) -> int:
    from txcore.cli.operating.screen import Screen  # noqa: PLC0415 - as above
    from txcore.sidecar.probing import probe  # noqa: PLC0415

    found_each = Screen(as_json=as_json).awaited(probe(loaded), "trying what the configuration names")
    if as_json:
        probes = [{"key": each.key, "is_well": each.is_well, "text": _line(each.text)} for each in found_each]
        typer.echo(json.dumps(probes, indent=2))
        return 0 if all(each["is_well"] for each in probes) else PROBE_FAILED
    is_well = True
    for found in found_each:
        is_well = is_well and found.is_well
        typer.echo(f"{'ok  ' if found.is_well else 'FAIL'} {found.key}: {_line(found.text)}")
    typer.echo(
        "the configuration can be used" if is_well else "the configuration is valid, but not all of it works now"
    )
    return 0 if is_well else PROBE_FAILED


def _line(text: Any) -> str:
    return " ".join(str(text).split())
