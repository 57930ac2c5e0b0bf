"""A broker in memory, in the place of yours: logs, topics and members. Delete it when your client is there.

Each call of it is a request to your broker, which may fail, or be answered late or never. This one always answers.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from txcore.backends.fair_share import fair_moves, fair_shares
from txcore.backends.holdings import Holdings
from txcore.errors import ConfigError, MessageRejectedError
from txcore.records import DURABLE, Checkpoint, LogKind, Outcome

Log = tuple[str, LogKind, int]
"""A group, a kind, and a partition."""


class Server:
    """What a broker keeps for all its clients."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.partition_counts: dict[str, int] = {}
        self.topics: dict[str, list[tuple[bytes | None, bytes, Mapping[str, Any]]]] = {}
        self.members: defaultdict[str, list[Holdings]] = defaultdict(list)
        self._checkpoints: dict[tuple[str, int], Checkpoint] = {}
        self._logs: defaultdict[Log, list[bytes]] = defaultdict(list)

    def records(self, log: Log) -> list[bytes]:
        """Return the records of a log; raises ConfigError for a partition that does not exist."""
        self.require(log[0], log[2])
        return self._logs[log]

    def append(self, log: Log, body: bytes) -> Outcome:
        """Append a record to a log; raises ConfigError for a partition that does not exist."""
        self.records(log).append(body)
        return DURABLE

    def load(self, group: str, partition: int) -> Checkpoint | None:
        """Return the checkpoint of a partition; raises ConfigError for one that does not exist."""
        self.require(group, partition)
        return self._checkpoints.get((group, partition))

    def store(self, group: str, partition: int, checkpoint: Checkpoint) -> None:
        """Store the checkpoint of a partition; raises ConfigError for one that does not exist."""
        self.require(group, partition)
        self._checkpoints[group, partition] = checkpoint

    def require(self, group: str, partition: int = 0) -> None:
        """Raise ConfigError unless the partition exists."""
        if partition >= self.partition_counts.get(group, 0):
            raise ConfigError(f"group {group!r} has no partition {partition} here; call ensure_group", key="group")

    def require_topic(self, topic: str) -> None:
        """Raise MessageRejectedError unless the topic exists."""
        if topic not in self.topics:
            raise MessageRejectedError(f"there is no topic {topic!r}", topic=topic)

    def share(self, group: str, member: Holdings, drain_until_s: float) -> None:
        """Give a member its share of the group's partitions, or ask for those that others are to have."""
        stuck = [each for each in self.members[group] if each.is_stuck and each is not member]
        for each in stuck:
            for partition in each.resign():
                each.freed(partition)
        held = {str(id(each)): each.held for each in self.members[group] if each not in stuck}
        count = self.partition_counts.get(group, 0)
        shares = fair_shares({name: len(partitions) for name, partitions in held.items()}, count)
        free = sorted(set(range(count)).difference(*held.values()))
        moves = fair_moves(member.kept, free, shares[str(id(member))])
        for partition in moves.take:
            member.assign(partition)
        for partition in moves.give_up:
            if member.revoke(partition, drain_until_s):
                member.freed(partition)
        for partition in member.lose_overdue():
            member.freed(partition)

    def leave(self, group: str, member: Holdings) -> None:
        """Take all partitions of a member back, for the other members."""
        with self.lock:
            self.members[group] = [each for each in self.members[group] if each is not member]
            for partition in member.close():
                member.freed(partition)


SERVERS: Final[defaultdict[str, Server]] = defaultdict(Server)
"""The server of each name in a URL."""
