"""`txcore permissions`: a user's rights on the broker, in the broker's own form, ready to paste."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from txcore.cli.helping import JSON_HELP
from txcore.errors import UsageError
from txcore.permissions import Access, Role
from txcore.registry import known_schemes, plugin_for


def permissions(
    broker: Annotated[
        str, typer.Argument(metavar="URL", help="The broker's URL with its options, or only its kind, such as kafka.")
    ],
    group: Annotated[str, typer.Option(metavar="NAME", help="The producer group.")],
    role: Annotated[Role, typer.Option(help="The user's programs.")],
    user: Annotated[
        str, typer.Option(metavar="NAME", help="The user's name on the broker; the group's by default.")
    ] = "",
    targets: Annotated[
        list[str] | None, typer.Option("--target", metavar="TOPIC", help="A target topic. Repeatable.")
    ] = None,
    *,
    creates: Annotated[bool, typer.Option("--create", help="Also the right to create the group's objects.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Print the rights that a user of one group needs on the broker, and no others; asks no server.

    Exit code: 0, 2 misuse.
    """
    url = f"{broker}://localhost" if broker in known_schemes() else broker
    access = Access(
        user=user or group,
        group=group,
        role=role,
        targets=tuple(dict.fromkeys(targets or ())),
        creates=creates,
    )
    text = plugin_for(url).permissions_of(url, access)
    if text is None:
        raise UsageError(f"{url.partition(':')[0]} has no users of its own, so it has no permissions either")
    facts = {"user": access.user, "group": group, "role": role.value, "targets": list(access.targets)}
    typer.echo(json.dumps({**facts, "rights": text.rstrip()}, indent=2) if as_json else text.rstrip())
