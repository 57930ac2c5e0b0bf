"""`txcore topics`: the logs that a group has on its broker. `txcore doctor` examines a broker more deeply."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from txcore.cli.helping import SectionedGroup
from txcore.cli.operating.place import Place, Session, at_place, opened, require_shared, the_address, the_broker
from txcore.cli.operating.screen import Screen
from txcore.errors import ConfigError, TxcoreError, UsageError
from txcore.findings import counted
from txcore.guarantees import BrokerObject
from txcore.history.log_survey import existing_partitions, wait_for
from txcore.records import LogKind
from txcore.registry import plugin_for

TIMEOUT_S: Final = 60.0
Partitions = Annotated[
    int, typer.Option("--partitions", metavar="COUNT", min=0, help="For a new group; 0 takes the backend's default.")
]
Targets = Annotated[
    list[str] | None, typer.Option("--target", metavar="TOPIC", help="A topic for the messages. Repeatable.")
]
PURPOSES: Final = {
    LogKind.HALF: "halves, which no consumer reads",
    LogKind.OP: "their checks, decisions and ends",
    LogKind.PARKED: "parked transactions, each with its reason",
}

app = typer.Typer(
    cls=SectionedGroup,
    no_args_is_help=True,
    help="Create, verify or describe the logs that a group needs on its broker.",
)


def create(place: Place, targets: Targets = None, partitions: Partitions = 0) -> None:
    """Create the logs that the group needs on its broker, or verify existing ones. Repeating it is harmless.

    With --target also a topic for its messages, where it is missing; without a group, only that. It is a topic of Kafka
    with the URL's `partitions` and `replication_factor`, a quorum queue of RabbitMQ, a stream of NATS with this
    subject. Another form is made with the broker's own tools.

    Exit code: 0 done, 1 the broker refused or has them with other settings, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    address = the_broker(place) if targets else the_address(place)
    require_shared(address.broker)
    count = None
    if address.group:
        with opened(place, screen, may_create=True) as session, screen.busy("asking the broker"):
            count = _verified(session, lambda: wait_for(session.backend, _ensured(session, partitions), TIMEOUT_S))
    with screen.busy("asking the broker"):
        for target in targets or ():
            _make_target(address.broker, target)
    _show(screen, address.group, count, targets or ())


def verify(place: Place) -> None:
    """Check that the group exists with the settings it needs, that all its logs can be read and its op logs written.

    Exit code: 0 as it should be, 1 not so, 2 misuse or no such group.
    """
    screen = Screen(as_json=place.as_json)
    with opened(place, screen) as session:

        def look() -> int:
            with screen.busy(), closing(session.operator.look()) as survey:
                return survey.partition_count

        count = _verified(session, look)
    _show(screen, session.address.group, count)


def describe(place: Place, partitions: Partitions = 0) -> None:
    """Show the broker's objects that make up the group: names, settings, purposes. Changes nothing.

    Exit code: 0, 2 misuse.
    """
    screen = Screen(as_json=place.as_json)
    with opened(place, screen, may_create=True) as session, screen.busy("asking the broker"):
        try:
            count, exists = existing_partitions(session.backend, session.address.group), True
        except ConfigError:
            count, exists = partitions, True
        except UsageError:
            count, exists = partitions, False
    objects = objects_of(session.address.broker, session.address.group, count)
    if place.as_json:
        screen.json(
            _group_json(session.address.group, count, exists=exists) | {"objects": [asdict(each) for each in objects]}
        )
        return
    state = f"exists, with {counted(count, 'partition')}" if exists else "does not exist yet"
    screen.say(f"group {session.address.group} {state}", "bold")
    for each in objects:
        screen.hang(f"{each.kind:10} ", each.name)
        screen.hang(" " * 11, "; ".join(part for part in (each.purpose, each.settings) if part))


for _command in (create, verify, describe):
    app.command(_command.__name__)(at_place(_command))


def objects_of(url: str, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the broker's objects of a group; without a plugin's description, its logs as txcore names them."""
    return plugin_for(url).describe_group(url, group, partition_count) or [
        BrokerObject("log", f"{kind.value} log of partition {partition}", "", PURPOSES[kind])
        for partition in range(partition_count or 1)
        for kind in LogKind
    ]


def _make_target(url: str, topic: str) -> None:
    if not plugin_for(url).make_target(url, topic):
        raise UsageError(f"this backend makes no target topics: make {topic!r} with the broker's own tools")


def _ensured(session: Session, partitions: int) -> Any:
    return session.backend.ensure_group(session.address.group, partitions or None)


def _verified(session: Session, call: Any) -> int:
    try:
        count: int = call()
    except ConfigError as error:
        raise TxcoreError(f"group {session.address.group!r} is not as it should be: {error}") from error
    return count


def _show(screen: Screen, group: str, count: int | None, targets: Sequence[str] = ()) -> None:
    if screen.as_json:
        about = _group_json(group, count, exists=True) if group else {}
        screen.json(about | ({"targets": list(targets)} if targets else {}))
        return
    if count is not None:
        screen.say(f"group {group} is as it should be: {counted(count, 'partition')}")
    for target in targets:
        screen.say(f"target {target} exists")


def _group_json(group: str, count: int | None, *, exists: bool) -> dict[str, Any]:
    return {"group": group, "exists": exists, "partitions": count if exists else None}
