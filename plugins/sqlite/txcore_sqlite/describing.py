"""The parts of a group in the file: rows of a few tables."""

from __future__ import annotations

from collections.abc import Sequence

from txcore.guarantees import BrokerObject
from txcore_sqlite.options import Address

_TABLES = (
    ("producer_group, partition, log", "the group and its partitions"),
    ("half", "halves, which no consumer reads"),
    ("op, resolved", "outcomes of the halves, one end for each"),
    ("parked", "parked transactions, with their reasons"),
    ("checkpoint, member", "how far checkers have read, and which ones there are"),
    ("topic, target", "target topics and their messages, for all groups"),
)


def describe_group(address: Address, group: str, partition_count: int) -> Sequence[BrokerObject]:  # noqa: ARG001
    """Return the tables that hold a group's rows; the backend creates them with the file."""
    return [BrokerObject("table", name, "", purpose) for name, purpose in _TABLES]
