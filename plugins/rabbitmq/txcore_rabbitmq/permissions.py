"""A user's permissions on RabbitMQ, for `txcore permissions`. Needs no server.

RabbitMQ asks for *write* on an exchange to publish, *read* on a queue to consume, and *configure* to declare or delete.
A binding needs write on the queue and read on the exchange. Since 4.3 a passive declaration needs any one of the three;
so does the question whether a group or a target exists. Write on a queue alone permits that question and no more.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from typing import Final

from txcore.errors import ConfigError, MessageRejectedError, UsageError
from txcore.permissions import Access, Role
from txcore.records import LogKind
from txcore_rabbitmq.codec import parse_topic
from txcore_rabbitmq.control import verify_group
from txcore_rabbitmq.names import (
    NAME_PREFIX,
    checkpoint_name,
    checks_name,
    claim_name,
    log_name,
    logs_name,
    member_name,
    members_name,
)
from txcore_rabbitmq.options import Options

DEFAULT_EXCHANGE: Final = "amq.default"
"""The name of the default exchange, "", in permissions."""
_NUMBER: Final = "[0-9]+"
_SHARED: Final = f"""\
# A target that is a queue needs write on {DEFAULT_EXCHANGE}, which leads to every queue of the virtual host.
# This user can therefore write into the logs of every group there: give each group a virtual host of its own.
"""


def permissions_of(options: Options, access: Access) -> str:
    """Return the `rabbitmqctl` command that gives a user the rights that *access* asks for, and no others.

    The patterns are for any number of partitions.

    Raises:
        UsageError: a name cannot be that of a group or a target, or a target is one of txcore's own objects.
    """
    try:
        verify_group(access.group, None)
        targets = {name for topic in access.targets for name in _target_names(topic)}
    except (ConfigError, MessageRejectedError) as error:
        raise UsageError(str(error)) from error
    configure, write, read = _rights(access)
    write |= set(map(re.escape, targets))
    rights = " ".join(shlex.quote(_anchored(names)) for names in (configure, write, read))
    words = f"-p {shlex.quote(options.vhost)} {shlex.quote(access.user)}"
    shared = _SHARED if DEFAULT_EXCHANGE in targets else ""
    return f"{shared}rabbitmqctl set_permissions {words} {rights}\n"


def _rights(access: Access) -> tuple[set[str], set[str], set[str]]:
    """Return patterns of the names in the group that the user may configure, write and read."""
    group = access.group
    logs, checks, members = (re.escape(name(group)) for name in (logs_name, checks_name, members_name))
    half, op, parked = (_numbered(log_name(group, kind, 0)) for kind in (LogKind.HALF, LogKind.OP, LogKind.PARKED))
    streams = {half, op, parked, _numbered(checkpoint_name(group, 0))}
    configure: set[str] = set()
    if access.role is Role.PRODUCER:
        write, read = {logs, half, op}, set[str]()
    else:
        member = f"{_numbered(member_name(group, '', 0).removesuffix('.'))}\\.[0-9a-f]+"
        configure = {members, member, f"{_numbered(claim_name(group, 0))}(\\.{_NUMBER})?"}
        write, read = {logs, checks, members, member}, {*streams, members, member}
    if access.creates:
        configure |= {logs, checks, *streams}
        write |= streams
        read |= {logs, checks}
    return configure, write, read


def _numbered(name: str) -> str:
    """Return the pattern of *name*, whose number at the end is 0, with any number."""
    return re.escape(name.removesuffix("0")) + _NUMBER


def _anchored(names: Collection[str]) -> str:
    return f"^({'|'.join(sorted(names))})$" if names else "^$"


def _target_names(topic: str) -> tuple[str, ...]:
    """Return the names on which a publisher to *topic* needs write; that on a queue shows only whether it exists."""
    exchange, routing_key = parse_topic(topic)
    if (exchange or routing_key).startswith(f"{NAME_PREFIX}."):
        raise UsageError(f"target {topic!r} has a name of txcore's own objects, which begin with {NAME_PREFIX!r}.")
    return (exchange,) if exchange else (DEFAULT_EXCHANGE, routing_key)
