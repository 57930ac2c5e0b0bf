"""The writer's memory of the file between transactions: groups, partition owners, topics, the next position.

The memory is valid while no other connection has written (SQLite's `data_version`). After another one has written, it
is read again at the start of a transaction. Used by the writer's thread only.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from txcore.records import LogKind


@dataclass(slots=True)
class Partition:
    """One partition of a group and the token of its newest CLAIM."""

    group_id: int
    partition: int
    token: bytes
    begun: set[str] = field(default_factory=set)  #: logs that hold, or once held, a record


class Catalog:
    """Groups, partitions, topics and the counter of positions, as of the open transaction.

    After a rollback a catalog is wrong and must be replaced by a new one.
    """

    def __init__(self) -> None:
        self.next = 0
        self.topics: dict[str, int] = {}
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._data_version = -1
        self._topic_id_max = 0
        self._stored_next = 0

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read the state again if another connection has written since; call this first in each transaction."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self._data_version = version
            self.read(connection)

    def read(self, connection: sqlite3.Connection) -> None:
        """Read the current state; topics are only ever added."""
        (self.next,) = connection.execute("SELECT next FROM sequence").fetchone()
        self._stored_next = self.next
        for topic_id, name in connection.execute(
            "SELECT topic_id, name FROM topic WHERE topic_id > ? ORDER BY topic_id", (self._topic_id_max,)
        ).fetchall():
            self.topics[name] = self._topic_id_max = topic_id
        names = dict(connection.execute("SELECT group_id, name FROM producer_group").fetchall())
        found: dict[tuple[int, int], Partition] = {}
        self.partitions = {}
        for group_id, partition, token in connection.execute(
            "SELECT group_id, partition, token FROM partition"
        ).fetchall():
            entry = Partition(group_id, partition, token)
            found[group_id, partition] = self.partitions[names[group_id], partition] = entry
        for group_id, partition, kind in connection.execute("SELECT group_id, partition, kind FROM log").fetchall():
            found[group_id, partition].begun.add(kind)

    def write(self, connection: sqlite3.Connection) -> None:
        """Store the counter; call it before each COMMIT."""
        if self.next != self._stored_next:
            connection.execute("UPDATE sequence SET next = ?", (self.next,))
            self._stored_next = self.next

    def begin_log(self, connection: sqlite3.Connection, partition: Partition, kind: LogKind) -> None:
        """Store that a log's first record is at the next position."""
        partition.begun.add(kind.value)
        connection.execute(
            "INSERT INTO log (group_id, partition, kind, first) VALUES (?, ?, ?, ?)",
            (partition.group_id, partition.partition, kind.value, self.next),
        )

    def claim(self, connection: sqlite3.Connection, partition: Partition, token: bytes) -> None:
        """Make *token* the owner of the partition."""
        partition.token = token
        connection.execute(
            "UPDATE partition SET token = ? WHERE group_id = ? AND partition = ?",
            (token, partition.group_id, partition.partition),
        )

    def create_topic(self, connection: sqlite3.Connection, name: str) -> int:
        """Create a topic that does not exist and return its id."""
        (topic_id,) = connection.execute("INSERT INTO topic (name) VALUES (?) RETURNING topic_id", (name,)).fetchone()
        self.topics[name] = self._topic_id_max = int(topic_id)
        return self._topic_id_max
