"""The broker, group and database of an operator's command, from options, environment or `txcore.toml`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from txcore.backends.files import require_file
from txcore.backends.options import split_url
from txcore.cli.helping import JSON_HELP
from txcore.errors import UsageError
from txcore.operator.login import login_name
from txcore.operator.operator import Operator
from txcore.registry import connect

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from txcore.cli.operating.screen import Screen
    from txcore.port import Backend
    from txcore.sqlfence import SqlFence

CONNECT_TIMEOUT_S: Final = 5
TABLE: Final = "txcore_tx"
FILE_NAME: Final = "txcore.toml"
ONE_GROUP: Final = ("BROKER", "GROUP", "DATABASE", "LISTENER", "CALLBACK")
"""Endings of the environment variables that describe one group without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The options that every operator's command has."""

    broker: Annotated[
        str, typer.Option(metavar="URL", help="The broker, as given to txcore.connect(). Or TXCORE_BROKER.")
    ] = ""
    group: Annotated[str, typer.Option(metavar="NAME", help="The producer group. Or TXCORE_GROUP.")] = ""
    database: Annotated[
        str, typer.Option(metavar="URL", help="The fence's database (SQLAlchemy). Or TXCORE_DATABASE.")
    ] = ""
    table: Annotated[str, typer.Option(metavar="NAME", help="The fence's table there.", show_default=TABLE)] = ""
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Take these from a file; {FILE_NAME} here, if there is no --broker."),
    ] = None
    by: Annotated[
        str, typer.Option(metavar="NAME", help="The operator's name, for the log.", show_default="your login")
    ] = ""
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False


@dataclass(frozen=True, slots=True)
class Address:
    """The broker, name and fence table of one group."""

    broker: str
    group: str
    database: str
    table: str


def at_place(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options of `Place` instead of its first parameter, for typer to see."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = get_type_hints(Place, include_extras=True)
    names = [each.name for each in fields(Place)]

    def run(**given: Any) -> None:
        command(Place(**{name: given.pop(name) for name in names}), **given)

    parameters = [each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=shared[each.name])
        for each in fields(Place)
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def addresses(
    place: Place, *, needs_broker: bool = True, needs_group: bool = True, called: str = "--broker"
) -> list[Address]:
    """Return the named group, else every group of the file.

    Args:
        place: The options.
        needs_broker: Whether the command asks the broker.
        needs_group: Whether it asks about a group; otherwise the group may be "".
        called: What the command calls the broker's URL.

    Raises:
        UsageError: no option, variable or file names the broker, or two of them contradict each other.
        ConfigFileError: the file cannot be used.
    """
    environment = os.environ
    broker = place.broker or ("" if place.config else environment.get("TXCORE_BROKER", ""))
    database = place.database or ("" if place.config else environment.get("TXCORE_DATABASE", ""))
    group = place.group or environment.get("TXCORE_GROUP", "")
    if place.broker and place.config:
        raise UsageError(f"{called} and --config are given: use one of them")
    is_enough = broker if needs_broker else broker or database
    if is_enough:
        if not group and needs_broker and needs_group:
            raise UsageError("name the producer group with --group or TXCORE_GROUP")
        return [Address(broker, group, database, place.table or TABLE)]
    if not (place.config or environment.get("TXCORE_CONFIG") or Path(FILE_NAME).exists()):
        named = called if needs_broker else "--database"
        named += " and --group" if needs_broker and needs_group else ""
        raise UsageError(f"say where: give {named}, or --config FILE; there is no {FILE_NAME} here")
    found = _from_file(place, group)
    if database:
        found = [Address(each.broker, each.group, database, each.table) for each in found]
    return found


def _from_file(place: Place, group: str) -> list[Address]:
    from txcore.config import load  # noqa: PLC0415 - only commands with a file need it

    plain = {name: value for name, value in os.environ.items() if name not in {f"TXCORE_{each}" for each in ONE_GROUP}}
    loaded = load(place.config, environment=plain)
    known = loaded.config.groups
    if group and group not in known:
        raise UsageError(f"the configuration has no group {group!r}, only {', '.join(known)}")
    return [
        Address(
            loaded.secret("backends", loaded.backend_of(name), "url"),
            name,
            loaded.secret("databases", section.database, "url") if section.database else "",
            place.table or section.fence_table,
        )
        for name, section in known.items()
        if group in {"", name}
    ]


def the_address(place: Place, *, needs_broker: bool = True, called: str = "--broker") -> Address:
    """Return the one named group, or the only one of the file.

    Raises:
        UsageError: as for `addresses`, or the file has several groups and none is named.
    """
    found = addresses(place, needs_broker=needs_broker, called=called)
    if len(found) > 1:
        raise UsageError(f"which group? Name it with --group: {', '.join(each.group for each in found)}")
    return found[0]


def the_broker(place: Place) -> Address:
    """Return the address of the broker, for a command that needs no group; of a file also its only group.

    Raises:
        UsageError: as for `addresses`, or the file has groups on several brokers and none is named.
    """
    found = addresses(place, needs_group=False)
    if len({each.broker for each in found}) > 1:
        raise UsageError(f"which broker? Name a group of it with --group: {', '.join(each.group for each in found)}")
    return found[0] if len(found) == 1 else Address(found[0].broker, "", "", TABLE)


def the_database(place: Place) -> Address:
    """Return the address of the fence, for commands that need no broker.

    Raises:
        UsageError: no option, variable or file names it, or they name several tables.
    """
    found = [each for each in addresses(place, needs_broker=False) if each.database]
    if not found:
        raise UsageError("which database? Give --database URL, or a group of the file that has one")
    if len({(each.database, each.table) for each in found}) > 1:
        raise UsageError(f"which fence? Name its group with --group: {', '.join(each.group for each in found)}")
    return found[0]


def acting_name(place: Place) -> str:
    """Return the operator's name: `--by`, else the login name; under sudo, the caller's one where it is known."""
    return place.by or login_name()


@dataclass(slots=True)
class Session:
    """An open group: the broker's side, and the fence where a database was named."""

    address: Address
    by: str
    screen: Screen
    backend: Backend
    operator: Operator
    fence: SqlFence | None


@contextmanager
def opened(place: Place, screen: Screen, *, may_create: bool = False) -> Iterator[Session]:
    """Open the one group of *place*, and close it again.

    Args:
        may_create: Whether a missing SQLite file may be created.

    Raises:
        UsageError, ConfigError: the options or the file cannot be used.
        BackendUnavailableError: the broker cannot be reached.
    """
    address = the_address(place)
    with ExitStack() as stack:
        yield open_session(stack, place, address, screen, may_create=may_create)


def require_shared(url: str) -> None:
    """Require a broker that other processes can reach.

    Raises:
        UsageError: it is the memory broker.
    """
    if split_url(url).scheme == "memory":
        raise UsageError("memory:// lives inside one process: no other process can look into it")


def open_session(
    stack: ExitStack, place: Place, address: Address, screen: Screen, *, may_create: bool = False
) -> Session:
    """Open one group until *stack* is closed."""
    require_shared(address.broker)
    if not may_create:
        require_file(address.broker, "broker")
    fence = stack.enter_context(open_fence(address)) if address.database else None
    backend = stack.enter_context(connect(address.broker))
    by = acting_name(place)
    operator = Operator(backend, address.group, by=by, on_progress=screen.reading)
    return Session(address, by, screen, backend, operator, fence)


@contextmanager
def open_fence(address: Address, *, may_create: bool = False) -> Iterator[SqlFence]:
    """Open the fence, without connecting to the database yet.

    Raises:
        UsageError: SQLAlchemy does not know the URL, or its driver is asynchronous.
        BackendNotInstalledError: SQLAlchemy or the database's driver is missing.
    """
    from txcore.sqlfence import SqlFence, engines  # noqa: PLC0415 - only commands with a database need SQLAlchemy

    def options_of(parsed: URL) -> dict[str, Any]:
        if not may_create:
            require_file(address.database, "database")
        return {"connect_args": engines.connect_timeout(parsed, CONNECT_TIMEOUT_S)}

    engine = engines.open_engine(
        address.database, "this command", options_of, lambda text: UsageError(f"--database: {text}")
    )
    try:
        yield SqlFence(engine, table=address.table)
    finally:
        engine.dispose()
