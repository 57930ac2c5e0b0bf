"""The parts of a group on the broker: streams, exclusive queues, an exchange. Needs no driver and no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.guarantees import BrokerObject
from txcore.records import LogKind
from txcore_rabbitmq.names import (
    LOG_EXCHANGE_TYPE,
    checkpoint_name,
    checks_name,
    claim_name,
    log_name,
    logs_name,
    members_name,
    stream_arguments,
    stream_exchanges,
)
from txcore_rabbitmq.options import Options

_PURPOSES: Final = {
    LogKind.HALF: "halves, which no consumer reads",
    LogKind.OP: "outcomes of the halves",
    LogKind.PARKED: "parked transactions, with their reasons",
}


def describe_group(options: Options, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the parts of a group; `ensure_group` creates the streams and their exchanges, a checker the rest."""
    exchange = f"durable {LOG_EXCHANGE_TYPE}"
    found = [
        BrokerObject("exchange", logs_name(group), exchange, "through which halves and outcomes are published"),
        BrokerObject("exchange", checks_name(group), exchange, "through which checkers publish their records"),
    ]
    for partition in range(partition_count or options.partitions):
        purposes = {log_name(group, kind, partition): purpose for kind, purpose in _PURPOSES.items()}
        purposes[checkpoint_name(group, partition)] = "how far checkers have read"
        exchanges = stream_exchanges(group, partition)
        for name, arguments in stream_arguments(options, group, partition).items():
            settings = (f"{key}={value}" for key, value in arguments.items())
            shown = ["durable", *settings, f"bound to {exchanges[name]}"]
            found.append(BrokerObject("queue", name, " ".join(shown), purposes[name]))
        found.append(
            BrokerObject("queue", claim_name(group, partition), "exclusive", "which checker has the partition")
        )
    return [*found, BrokerObject("exchange", members_name(group), "durable fanout", "how checkers see each other")]
