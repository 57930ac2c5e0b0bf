"""Ownership of partitions: members that keep a heartbeat in the group's bucket, and one key per partition.

Each heartbeat rewrites `own.member.<id>`; an empty value means that the member has left. `own.lease.<partition>` names
the partition's owner and changes by compare-and-set only. Each member follows both keys and acts on them. A member
without heartbeats for `lease_s`, by the clock of each observer, is gone, and members with fewer partitions than their
share take its partitions. A member with more than its share gives the last ones up. A member that does not do so in
time, or has not polled for long, loses them. All this is a hint; CLAIM records decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from txcore.backends.fair_share import fair_moves, fair_shares
from txcore.backends.holdings import Holdings
from txcore.errors import ConfigError, TxcoreError
from txcore.records import Status
from txcore_nats.codec import as_json, expecting, from_json
from txcore_nats.options import GroupNames
from txcore_nats.publishing import Sending
from txcore_nats.shared import Shared
from txcore_nats.tailing import Tail

_log = logging.getLogger("txcore.nats")

BEATS_PER_LEASE: Final = 4
STAND_BACK_S: Final = 0.5
"""Time, in seconds, for which a member does not take again a partition that it gave up."""
FORGET_LEASES: Final = 20
"""Time without a heartbeat, in leases, after which a member is removed from the bucket."""


class Lease:
    """The content of a partition's key: the owner's id, "" for no owner, and the key's revision."""

    __slots__ = ("owner", "revision")

    def __init__(self, owner: str, revision: int) -> None:
        self.owner = owner
        self.revision = revision


class Membership:
    """One member: follows the bucket, sends heartbeats, takes and gives up partitions. On the loop; a `Receiver`.

    A lease ends here before another member takes the partition: this clock counts from the sending of the last
    heartbeat, the other members' clocks from its arrival.
    """

    def __init__(self, shared: Shared, holdings: Holdings, group: str, member: str, identity: str) -> None:
        self._shared = shared
        self._holdings = holdings
        self._group = group
        self._member = member
        self._identity = identity
        self._names: GroupNames | None = None
        self._count = 0
        self._beaten_s = -1.0  # when the last confirmed heartbeat was sent
        self._tail: Tail | None = None
        self._seen_s: dict[str, float] = {}
        self._leases: dict[int, Lease] = {}
        self._writing: dict[int, str] = {}  # partition -> the owner that is being written
        self._given: dict[int, float] = {}
        self._is_caught_up = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_stepping = False
        self.error: ConfigError | None = None

    def open(self) -> None:
        """Find the group, then join it."""
        if not self._is_over:
            try:
                self._shared.groups.names(self._group)
            except ConfigError as error:
                self.error = error
                return
            self._shared.groups.when_found(self._group, self._found)

    @property
    def is_fresh(self) -> bool:
        """Whether other members still see this member as alive; on any thread."""
        return self._shared.clock.elapsed_s() - self._beaten_s < self._shared.options.lease_s

    def lose_overdue(self) -> list[int]:
        """Lose all partitions after a lease without a heartbeat; return those not given up in time. On any thread."""
        if not self.is_fresh:
            self._holdings.lose_all()
        return self._holdings.lose_overdue()

    def give_back(self, partitions: Iterable[int]) -> None:
        """Free *partitions*, which are leaving, for others, and compete for them again a little later."""
        for partition in partitions:
            self._given[partition] = self._shared.clock.elapsed_s() + STAND_BACK_S
            self._holdings.freed(partition)
            self._step_soon()

    def close(self, timeout_s: float, closing: Future[None]) -> None:
        """Free all held partitions and leave; *closing* is done when this is stored, or after *timeout_s*."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tail is not None:
            self._tail.close()
        left = 1
        loop = self._shared.loop.loop

        def one_done(*_: Any) -> None:
            nonlocal left
            left -= 1
            if not left and not closing.done():
                closing.set_result(None)

        names = self._names
        if names is not None:
            deadline_s = self._shared.clock.elapsed_s() + timeout_s
            for partition, lease in self._leases.items():
                if lease.owner == self._identity:
                    left += 1
                    self._put(names.key("own", "lease", partition), _lease(""), deadline_s, one_done, lease.revision)
            left += 1
            self._put(names.key("own", "member", self._identity), b"", deadline_s, one_done)
        one_done()

        def overdue() -> None:
            if not closing.done():
                closing.set_result(None)

        loop.call_later(timeout_s, overdue)

    # -- reading of the bucket --------------------------------------------------------------------------------------

    def received(self, message: Any, sequence: int, appended_ms: int) -> None:  # noqa: ARG002
        """See `Receiver`."""
        data = message.data
        kind, _, name = message.subject.partition(".own.")[2].partition(".")
        if kind == "member":
            if data:
                self._seen_s[name] = self._shared.clock.elapsed_s()
            else:
                self._seen_s.pop(name, None)
            if name == self._identity:
                self._is_caught_up = True
        elif kind == "lease" and name.isdigit():
            self._leases[int(name)] = Lease(str(from_json(data).get("owner", "")), sequence)
        self._step_soon()

    def lost(self, asked: int, first: int | None) -> None:
        """See `Receiver`; never called for keys."""

    def failed(self, error: TxcoreError) -> None:
        """See `Receiver`."""
        _log.debug("nats.claim_not_reading", extra={"txcore": {"group": self._group, "reason": str(error)}})

    def has_room(self) -> bool:
        """See `Receiver`; always true, as each message is applied at once."""
        return True

    # -- changes of ownership -----------------------------------------------------------------------------------------

    def _found(self, error: TxcoreError | None) -> None:
        if self._is_over:
            return
        if error is not None:
            self.error = error if isinstance(error, ConfigError) else None
            self._shared.loop.loop.call_later(STAND_BACK_S, self.open)
            return
        self.error = None
        shared = self._shared
        self._names = shared.groups.names(self._group)
        self._count = shared.groups.count(self._group)
        subject = self._names.key("own", ">")
        self._tail = Tail(
            shared.loop,
            shared.link,
            shared.api,
            shared.options,
            self._names.bucket_stream,
            subject,
            self,
            is_keyed=True,
        )
        self._tail.open()
        self._beat()

    def _beat(self) -> None:
        if self._is_over:
            return
        assert self._names is not None
        lease_s = self._shared.options.lease_s
        sent_s = self._shared.clock.elapsed_s()

        def beaten(status: Status, error: TxcoreError | None, _ack: Any) -> None:
            if status is Status.DURABLE:
                self._beaten_s = max(self._beaten_s, sent_s)
                self._step_soon()
            else:
                _log.debug("nats.beat_failed", extra={"txcore": {"group": self._group, "reason": str(error)}})

        if not self._holdings.is_stuck:  # else it counts as dead
            subject = self._names.key("own", "member", self._identity)
            self._put(subject, as_json({"name": self._member}), sent_s + lease_s, beaten)
        self._timer = self._shared.loop.loop.call_later(lease_s / BEATS_PER_LEASE, self._beat)
        self._step()

    def _step_soon(self) -> None:
        if not self._is_stepping and not self._is_over:
            self._is_stepping = True
            self._shared.loop.loop.call_soon(self._step_now)

    def _step_now(self) -> None:
        self._is_stepping = False
        self._step()

    def _step(self) -> None:
        if self._is_over or not self._is_caught_up:
            return
        holdings, now_s = self._holdings, self._shared.clock.elapsed_s()
        self.give_back(self.lose_overdue())
        settled = holdings.held - self._writing.keys()
        holdings.lose([partition for partition in settled if self._owner(partition) != self._identity])
        for partition in [partition for partition, until_s in self._given.items() if until_s <= now_s]:
            if self._owner(partition) != self._identity:
                del self._given[partition]
        if not self.is_fresh:
            return
        alive = self._alive(now_s)
        counts = dict.fromkeys(sorted(alive), 0)
        for partition in range(self._count):
            owner = self._owner(partition)
            if owner in counts:
                counts[owner] += 1
        self._move(counts)
        self._forget_dead(alive, now_s)

    def _move(self, counts: dict[str, int]) -> None:
        """Give leases up or take free ones, and free those that name this member but are not held."""
        holdings = self._holdings
        taking = {partition for partition, owner in self._writing.items() if owner}
        busy = holdings.held | holdings.leaving | self._writing.keys()
        idle = [partition for partition in range(self._count) if partition not in busy]
        ours = [partition for partition in idle if self._owner(partition) == self._identity]
        free = [each for each in idle if each not in self._given and (each in ours or self._owner(each) not in counts)]
        share = fair_shares(counts, self._count)[self._identity]
        moves = fair_moves(holdings.kept | taking, free, share)
        until_s = self._shared.clock.elapsed_s() + self._shared.options.lease_s
        self.give_back([partition for partition in moves.give_up if holdings.revoke(partition, until_s)])
        for partition in moves.take:
            self._write_lease(partition, self._identity)
        for partition in ours:
            if partition not in moves.take:
                self._write_lease(partition, "")

    def _write_lease(self, partition: int, owner: str) -> None:
        assert self._names is not None
        revision = self._leases[partition].revision if partition in self._leases else 0
        self._writing[partition] = owner

        def written(status: Status, error: TxcoreError | None, ack: Any) -> None:  # noqa: ARG001 - the tail reports it
            self._writing.pop(partition, None)
            if status is Status.DURABLE:
                lease = self._leases.get(partition)
                if lease is None or lease.revision < ack.seq:
                    self._leases[partition] = Lease(owner, ack.seq)
                if owner and self._owner(partition) == owner and self.is_fresh:
                    self._holdings.assign(partition)
            self._step_soon()

        deadline_s = self._shared.clock.elapsed_s() + self._shared.options.lease_s
        self._put(self._names.key("own", "lease", partition), _lease(owner), deadline_s, written, revision)

    def _put(
        self,
        subject: str,
        value: bytes,
        deadline_s: float,
        end: Callable[[Status, TxcoreError | None, Any], None],
        revision: int | None = None,
    ) -> None:
        headers = "" if revision is None else expecting(revision)
        self._shared.publisher.send(Sending(subject, value, headers, deadline_s, end))

    def _owner(self, partition: int) -> str:
        lease = self._leases.get(partition)
        return "" if lease is None else lease.owner

    def _alive(self, now_s: float) -> set[str]:
        lease_s = self._shared.options.lease_s
        alive = {name for name, seen_s in self._seen_s.items() if now_s - seen_s < lease_s}
        return alive | {self._identity}

    def _forget_dead(self, alive: set[str], now_s: float) -> None:
        """Remove the keys of members that left long ago; only the living member with the lowest id does it."""
        if self._identity != min(alive):
            return
        assert self._names is not None
        long_s = FORGET_LEASES * self._shared.options.lease_s
        for name in [name for name, seen_s in self._seen_s.items() if now_s - seen_s > long_s]:
            del self._seen_s[name]
            self._shared.loop.spawn(self._purge(self._names.key("own", "member", name)))

    async def _purge(self, subject: str) -> None:
        assert self._names is not None
        try:
            await self._shared.api.call(f"STREAM.PURGE.{self._names.bucket_stream}", {"filter": subject})
        except TxcoreError as error:
            _log.debug("nats.purge_failed", extra={"txcore": {"reason": str(error)}})


def _lease(owner: str) -> bytes:
    return as_json({"owner": owner})
