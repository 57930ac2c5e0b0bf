"""The parts of a group on the broker: streams, exclusive queues, an exchange. Needs no driver and no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.guarantees import BrokerObject
from txcore.records import LogKind
from txcore_rabbitmq.names import checkpoint_name, claim_name, log_name, members_name, stream_arguments
from txcore_rabbitmq.options import Options

_PURPOSES: Final = {
    LogKind.HALF: "halves, which no consumer reads",
    LogKind.OP: "outcomes of the halves",
    LogKind.PARKED: "parked transactions, with their reasons",
}


def describe_group(options: Options, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the parts of a group; `ensure_group` creates the streams, a checker the rest."""
    found = []
    for partition in range(partition_count or options.partitions):
        purposes = {log_name(group, kind, partition): purpose for kind, purpose in _PURPOSES.items()}
        purposes[checkpoint_name(group, partition)] = "how far checkers have read"
        for name, arguments in stream_arguments(options, group, partition).items():
            shown = ["durable", *(f"{key}={value}" for key, value in arguments.items())]
            found.append(BrokerObject("queue", name, " ".join(shown), purposes[name]))
        found.append(
            BrokerObject("queue", claim_name(group, partition), "exclusive", "which checker has the partition")
        )
    return [*found, BrokerObject("exchange", members_name(group), "", "how checkers see each other")]
