"""`txcore relay`: a relay as a process of its own, for the message table or an outbox table of another library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from txcore.backends.files import require_file
from txcore.cli.operating.place import Place, at_place, the_address
from txcore.cli.operating.screen import Screen
from txcore.errors import TxcoreError, UsageError
from txcore.findings import counted
from txcore.registry import connect
from txcore.signals import end_requested

if TYPE_CHECKING:
    from txcore.outbox.relay import Relay, RelayStats

STOP_TIMEOUT_S: Final = 30.0
NOT_DRAINED: Final = 4


@at_place
def relay(
    place: Place,
    layout: Annotated[
        str,
        typer.Option("--layout", metavar="NAME", help="--table is an outbox: debezium, eventuate, masstransit."),
    ] = "",
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="KEY=NAME", help="Its column for id, topic, body, key, headers, order…"),
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Send the messages that wait now, and exit.")] = False,
) -> None:
    """Send the messages that wait in the service's database, until a signal stops it. The checker does so too.

    With --layout or --column it sends from an outbox table that another library has made, named by --table.

    Exit code: 0 done, 1 broker or database failed, 2 misuse, 4 could not end in time (nothing is lost).
    """
    screen = Screen(as_json=place.as_json)
    with _opened(place, layout, column or ()) as made:
        with screen.busy("sending" if once else "sending; Ctrl-C ends it"):
            if once:
                made.run_once()
                status = 0
            else:
                status = 0 if _serve(made) else NOT_DRAINED
        _show(screen, made.stats())
    if status:
        raise typer.Exit(status)


@contextmanager
def _opened(place: Place, layout: str, columns: Sequence[str]) -> Iterator[Relay]:
    from txcore.config import DatabaseSection  # noqa: PLC0415 - only this command needs them
    from txcore.outbox.relay import Relay, layout_of  # noqa: PLC0415
    from txcore.sidecar.fences import open_engine  # noqa: PLC0415

    address = the_address(place)
    if not address.database:
        raise UsageError("which database? Give --database URL, or a group of the file that has one")
    require_file(address.broker, "broker")
    require_file(address.database, "database")
    chosen: Any = layout_of(layout, dict(map(pair_of, columns))) if layout or columns else None
    with ExitStack() as stack:
        engine = open_engine(address.database, DatabaseSection(connections_max=3))
        stack.callback(engine.dispose)
        backend = stack.enter_context(connect(address.broker))
        yield Relay(backend, address.group, engine, table=address.table, layout=chosen)


def pair_of(text: str) -> tuple[str, str]:
    """Return the two sides of KEY=NAME."""
    key, equals, name = text.partition("=")
    if not equals:
        raise UsageError(f"--column {text!r} must be KEY=NAME")
    return key.strip(), name.strip()


def _serve(made: Relay) -> bool:
    """Relay until SIGTERM or SIGINT; return whether it ended in time."""
    with end_requested() as requested:
        made.start()
        requested.wait()
        return made.stop(STOP_TIMEOUT_S)


def _show(screen: Screen, stats: RelayStats) -> None:
    if stats.trouble:
        raise TxcoreError(f"the relay failed: {stats.trouble}")
    facts = {"sent": stats.sent, "refused": stats.refused, "parked": stats.parked}
    if screen.as_json:
        screen.json(facts)
    else:
        screen.say(f"{counted(stats.sent, 'message')} sent, {stats.refused:,} refused, {stats.parked:,} parked")
