"""The owners of partitions: member rows with heartbeats, and lease rows that members take and give back.

Every member runs the same step in a transaction of its own. It stores its heartbeat, frees the partitions of silent
members, asks itself to give up partitions above its share, and takes free partitions up to its share. No member ever
takes a partition that another living member holds. Times are the wall clock of the machine, which all processes at the
file share.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from txcore.backends.fair_share import fair_moves, fair_shares
from txcore.backends.heartbeat import Heartbeat
from txcore.backends.holdings import STUCK_LEASES, Holdings
from txcore.clock import Clock
from txcore.errors import ClosedError, ConfigError, TxcoreError
from txcore.port import resolved, running
from txcore.records import Checkpoint, ClaimEvent, Position


class Submit(Protocol):
    """A function that runs *call* in one of the writer's transactions, with its wall clock in milliseconds."""

    def __call__(self, call: Callable[[sqlite3.Connection, int], Any], /) -> Future[Any]:
        """Return the result's Future, or raise ClosedError."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The partitions that a member holds, and the time of its stored heartbeat.

    `leases` maps each partition to the time at which it is taken away, or None while the member may keep it.
    """

    beat_ms: int
    leases: Mapping[int, int | None]


class SqliteClaim:
    """Membership in a group; implements `Claim`. The backend's own thread keeps its heartbeat.

    If the heartbeat could not be stored for `lease_s`, the next poll returns LOST for all partitions; only then may
    another member take them.
    """

    def __init__(self, keeper: Keeper, group: str, member: str) -> None:
        self.group = group
        self.member = member
        self._keeper = keeper
        self._lock = threading.Lock()
        self._holdings = Holdings(lambda: keeper.now_ms() / 1000, STUCK_LEASES * keeper.lease_ms / 1000)
        self._beat_ms: int | None = None
        self._closing: Future[None] | None = None
        self._step: Future[Standing] | None = None

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`."""
        self._require_open()
        # A lease ends here before another member takes the partition, as all members use the same clock.
        if self._beat_ms is not None and abs(self._keeper.now_ms() - self._beat_ms) >= self._keeper.lease_ms:
            self._holdings.lose(self._holdings.held)
        for partition in self._holdings.lose_overdue():
            self._give_back(partition)
        return self._holdings.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`.

        Raises (through the Future):
            ConfigError: the group has no such partition.
        """
        self._require_open()
        group = self.group
        return self._keeper.submit(lambda connection, _: _store_checkpoint(connection, group, partition, checkpoint))

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`; another member can take the partition within a heartbeat."""
        if self._holdings.give_up(partition) is not None:
            self._give_back(partition)

    def close(self, timeout_s: float) -> Future[None]:  # noqa: ARG002 - the writer's own deadline is the bound
        """See `Claim.close`; waits for the file's lock no longer than `busy_timeout_s`, then the lease runs out."""
        with self._lock:
            if self._closing is not None:
                return self._closing
            closing: Future[None] = running()
            self._closing = closing
            self._holdings.close()
        group, member = self.group, self.member
        self._keeper.heartbeat.forget(self)
        left = self._freeing(lambda connection, _: _leave(connection, group, member))
        left.add_done_callback(lambda _: self._left(closing))
        return closing

    @property
    def is_stuck(self) -> bool:
        """Whether its checker does not poll."""
        return self._holdings.is_stuck

    def beat(self) -> None:
        """Start a step, unless the last one is still under way."""
        if self._closing is None and (self._step is None or self._step.done()):
            group, member, keeper = self.group, self.member, self._keeper
            self._step = keeper.submit(
                lambda connection, now: take_step(connection, group, member, now, keeper.lease_ms)
            )
            self._step.add_done_callback(self._stepped)

    def _stepped(self, step: Future[Standing]) -> None:
        if step.exception() is not None:
            return  # not stored; the next beat tries again, and poll returns LOST after the lease expired
        leased = step.result()
        self._beat_ms = leased.beat_ms
        self._holdings.lose(self._holdings.held - leased.leases.keys())
        for partition, revoke_ms in leased.leases.items():
            if revoke_ms is None:
                self._holdings.assign(partition)
            elif self._holdings.revoke(partition, revoke_ms / 1000):
                self._give_back(partition)

    def _give_back(self, partition: int) -> None:
        group, member = self.group, self.member
        freed = self._freeing(lambda connection, _: _free(connection, group, member, partition))
        freed.add_done_callback(lambda _: self._freed(partition))

    def _freeing(self, call: Callable[[sqlite3.Connection, int], Any]) -> Future[Any]:
        try:
            return self._keeper.submit(call)
        except TxcoreError:
            return resolved(None)  # the backend was closed, or this is a forked child: the lease runs out

    def _freed(self, partition: int) -> None:
        self._holdings.freed(partition)
        self._keeper.heartbeat.wake()

    def _left(self, closing: Future[None]) -> None:
        closing.set_result(None)
        self._keeper.heartbeat.wake()

    def _require_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("this claim is closed")


class Keeper:
    """The lease, the clock and the writer of one backend's claims, and their heartbeat."""

    def __init__(self, lease_s: float, clock: Clock, submit: Submit) -> None:
        self.lease_ms = round(lease_s * 1000)
        self.submit = submit
        self.heartbeat = Heartbeat("txcore-sqlite-heartbeat", lease_s)
        self._clock = clock

    def now_ms(self) -> int:
        """Return the wall clock that all leases use, in milliseconds."""
        return self._clock.wall_ms()

    def join(self, group: str, member: str) -> SqliteClaim:
        """Return a new claim whose first step is under way."""
        claim = SqliteClaim(self, group, member)
        self.heartbeat.add(claim)
        self.heartbeat.wake()
        return claim


def take_step(connection: sqlite3.Connection, group: str, member: str, now_ms: int, lease_ms: int) -> Standing:
    """Store a heartbeat, and change the leases by the rules of this module; return the leases of *member*."""
    row = connection.execute("SELECT group_id, partitions FROM producer_group WHERE name = ?", (group,)).fetchone()
    if row is None:
        return Standing(now_ms, {})
    group_id, partition_count = row
    connection.execute(
        "INSERT INTO member (group_id, member, joined, seen_ms) "
        "VALUES (?1, ?2, (SELECT 1 + coalesce(max(joined), 0) FROM member WHERE group_id = ?1), ?3) "
        "ON CONFLICT DO UPDATE SET seen_ms = excluded.seen_ms",
        (group_id, member, now_ms),
    )
    # A heartbeat in the far future counts as none: the clock was set back since.
    connection.execute("DELETE FROM member WHERE group_id = ? AND abs(? - seen_ms) >= ?", (group_id, now_ms, lease_ms))
    connection.execute(
        "UPDATE partition SET member = NULL, revoke_ms = NULL WHERE group_id = ?1 AND member IS NOT NULL AND "
        "(revoke_ms <= ?2 OR member NOT IN (SELECT member FROM member WHERE group_id = ?1))",
        (group_id, now_ms),
    )
    kept, free = _partitions(connection, group_id, member)
    moves = fair_moves(kept, free, _share(connection, group_id, member, partition_count))
    connection.executemany(
        "UPDATE partition SET revoke_ms = ? WHERE group_id = ? AND partition = ?",
        [(now_ms + lease_ms, group_id, partition) for partition in moves.give_up],
    )
    connection.executemany(
        "UPDATE partition SET member = ? WHERE group_id = ? AND partition = ?",
        [(member, group_id, partition) for partition in moves.take],
    )
    mine = connection.execute(
        "SELECT partition, revoke_ms FROM partition WHERE group_id = ? AND member = ? ORDER BY partition",
        (group_id, member),
    ).fetchall()
    return Standing(now_ms, dict(mine))


def _partitions(connection: sqlite3.Connection, group_id: int, member: str) -> tuple[list[int], list[int]]:
    """Return the partitions that *member* keeps, and those without an owner."""
    rows = connection.execute(
        "SELECT partition, member, revoke_ms FROM partition WHERE group_id = ? ORDER BY partition", (group_id,)
    ).fetchall()
    kept = [partition for partition, owner, revoke_ms in rows if owner == member and revoke_ms is None]
    return kept, [partition for partition, owner, _ in rows if owner is None]


def _share(connection: sqlite3.Connection, group_id: int, member: str, partition_count: int) -> int:
    """Return the number of partitions for *member*."""
    held_counts = connection.execute(
        "SELECT member, (SELECT count(*) FROM partition WHERE group_id = ?1 AND partition.member = member.member "
        "AND revoke_ms IS NULL) FROM member WHERE group_id = ?1 ORDER BY joined",
        (group_id,),
    )
    return fair_shares(dict(held_counts.fetchall()), partition_count)[member]


def _free(connection: sqlite3.Connection, group: str, member: str, partition: int) -> None:
    connection.execute(
        "UPDATE partition SET member = NULL, revoke_ms = NULL WHERE member = ? AND partition = ? "
        "AND group_id = (SELECT group_id FROM producer_group WHERE name = ?)",
        (member, partition, group),
    )


def _leave(connection: sqlite3.Connection, group: str, member: str) -> None:
    group_id = "(SELECT group_id FROM producer_group WHERE name = ?)"
    connection.execute(
        f"UPDATE partition SET member = NULL, revoke_ms = NULL WHERE member = ? AND group_id = {group_id}",  # noqa: S608
        (member, group),
    )
    connection.execute(f"DELETE FROM member WHERE member = ? AND group_id = {group_id}", (member, group))  # noqa: S608


def load_checkpoint(connection: sqlite3.Connection, group: str, partition: int) -> Checkpoint | None:
    """Return a partition's stored checkpoint, or None.

    Raises:
        ConfigError: the group does not exist.
    """
    row = connection.execute(
        "SELECT half, op, token, note FROM checkpoint JOIN producer_group USING (group_id) "
        "WHERE name = ? AND partition = ?",
        (group, partition),
    ).fetchone()
    if row is None:
        require_group(connection, group)
        return None
    half, op, token, note = row
    return Checkpoint(None if half is None else Position(half), None if op is None else Position(op), token, note)


def require_group(connection: sqlite3.Connection, group: str) -> int:
    """Return the group's id.

    Raises:
        ConfigError: the group does not exist.
    """
    row = connection.execute("SELECT group_id FROM producer_group WHERE name = ?", (group,)).fetchone()
    if row is None:
        raise ConfigError(f"group {group!r} does not exist in this file; `txcore topics create` makes it", key="group")
    return int(row[0])


def _store_checkpoint(connection: sqlite3.Connection, group: str, partition: int, checkpoint: Checkpoint) -> None:
    stored = connection.execute(
        "INSERT INTO checkpoint (group_id, partition, half, op, token, note) "
        "SELECT group_id, partition, ?, ?, ?, ? FROM partition JOIN producer_group USING (group_id) "
        "WHERE name = ? AND partition = ? "
        "ON CONFLICT DO UPDATE SET (half, op, token, note) = "
        "(excluded.half, excluded.op, excluded.token, excluded.note)",
        (checkpoint.half, checkpoint.op, checkpoint.token, checkpoint.note, group, partition),
    )
    if stored.rowcount != 1:
        raise ConfigError(f"group {group!r} has no partition {partition} in this file", key="partition")
