"""The rights of one user on the cluster, as commands of Kafka's `kafka-acls.sh`. Needs no driver and no server.

`Describe` is in no command, as Kafka lets every user describe what it may read or write.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from txcore.errors import ConfigError
from txcore.permissions import Access, Role
from txcore.records import LogKind
from txcore_kafka.options import (
    Options,
    check_group_name,
    check_target_name,
    consumer_group,
    topic_name,
    topic_settings,
    transactional_id_prefix,
)

CREATE: Final = "Create"
DESCRIBE_CONFIGS: Final = "DescribeConfigs"
READ: Final = "Read"
WRITE: Final = "Write"
_LINE_END: Final = " \\\n  "
_NO_TARGET: Final = "# No target was named: --target TOPIC, once for each topic to which the group publishes.\n"
_OLD_BROKERS: Final = "# Kafka before 2.8 wants one more: --operation IdempotentWrite --cluster\n"


def describe_permissions(options: Options, access: Access) -> str:
    """Return the commands that allow *access*, for a shell; each line that begins with # is a comment.

    Raises:
        ConfigError: Kafka has no group or no single user of this name.
        MessageRejectedError: Kafka has no target of this name.
    """
    check_group_name(access.group)
    for target in access.targets:
        check_target_name(target)
    if access.user in {"", "*"} or access.user != access.user.strip() or not access.user.isprintable():
        # kafka-acls.sh takes * for every user, and drops the spaces around a name.
        raise ConfigError(f"{access.user!r} is not the name of one user for kafka-acls.sh", key="user")
    commands = [_command(options, access, *right) for right in _rights(options, access)]
    return "".join([*commands, "" if access.targets else _NO_TARGET, _OLD_BROKERS])


def _rights(options: Options, access: Access) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the operations and the resources of each command.

    The settings of topics are read by `ensure_group`, and for the largest message of a target.
    """
    group, own = access.group, tuple(topic_settings(options, access.group))
    if access.role is Role.PRODUCER:
        written = (topic_name(group, LogKind.HALF), topic_name(group, LogKind.OP), *access.targets)
        yield (WRITE, DESCRIBE_CONFIGS), _topics(written)
    else:
        yield (READ, WRITE, DESCRIBE_CONFIGS), _topics(own)
        if access.targets:
            yield (WRITE, DESCRIBE_CONFIGS), _topics(access.targets)
        yield (READ,), ("--group", consumer_group(group))
    if options.is_transactional:
        prefix = transactional_id_prefix(group)
        yield (WRITE,), ("--transactional-id", prefix, "--resource-pattern-type", "prefixed")
    if access.creates:
        yield (CREATE,), _topics(own)


def _topics(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--topic", name))


def _command(options: Options, access: Access, operations: Sequence[str], resources: Sequence[str]) -> str:
    """Return one command: the server and the user, the operations, and the resources are a line each."""
    lines = (
        ("kafka-acls.sh", "--bootstrap-server", options.servers, "--add", "--allow-principal", f"User:{access.user}"),
        tuple(word for operation in operations for word in ("--operation", operation)),
        resources,
    )
    return _LINE_END.join(map(shlex.join, lines)) + "\n"
