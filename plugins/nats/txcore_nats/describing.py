"""The parts of a group in JetStream: three streams and a key-value bucket; fewer if it shares a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.guarantees import BrokerObject
from txcore.records import LogKind
from txcore_nats.control import stream_configs
from txcore_nats.options import GroupNames, Options

_PURPOSES: Final = {
    LogKind.HALF: "halves, which no consumer reads",
    LogKind.OP: "outcomes of the halves",
    LogKind.PARKED: "parked transactions, with their reasons",
}
_LEFT_OUT: Final = frozenset({"name", "description", "sealed"})


def describe_group(options: Options, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the parts of a group; `ensure_group` creates all of them, except a shared stream.

    Raises:
        ConfigError: the group's name cannot be used.
    """
    names = GroupNames(group, options)
    purposes = {names.stream(kind): purpose for kind, purpose in _PURPOSES.items()}
    purposes[names.bucket_stream] = "which checker has which partition, and how far it has read"
    found = []
    for config in stream_configs(names, partition_count or options.partitions, options):
        shown = [f"{key}={_text(value)}" for key, value in config.items() if key not in _LEFT_OUT]
        found.append(BrokerObject("stream", config["name"], " ".join(shown), purposes[config["name"]]))
    if options.is_atomic:
        purpose = "targets, and what became of halves; it must exist"
        found.append(BrokerObject("stream", options.stream, "allow_atomic=true", purpose))
    return found


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
