"""The parts of a group on the cluster: four topics and a consumer group. Needs no driver and no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.guarantees import BrokerObject
from txcore.records import LogKind
from txcore_kafka.options import Options, checkpoint_topic, consumer_group, topic_name, topic_settings

_PURPOSES: Final = {
    LogKind.HALF: "halves, which no consumer reads",
    LogKind.OP: "outcomes of the halves",
    LogKind.PARKED: "parked transactions, with their reasons",
}


def describe_group(options: Options, group: str, partition_count: int) -> Sequence[BrokerObject]:
    """Return the parts of a group; `ensure_group` creates all of them if it may create topics."""
    purposes = {topic_name(group, kind): purpose for kind, purpose in _PURPOSES.items()}
    purposes[checkpoint_topic(group)] = "how far checkers have read"
    count = partition_count or options.partitions
    found = []
    for topic, settings in topic_settings(options, group).items():
        shown = [f"partitions={count}", f"replication-factor={options.replication_factor}"]
        shown += [f"{name}={value}" for name, value in settings.items()]
        found.append(BrokerObject("topic", topic, " ".join(shown), purposes[topic]))
    return [*found, BrokerObject("group", consumer_group(group), "", "which checker has which partition")]
