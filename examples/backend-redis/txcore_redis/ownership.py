"""The owners of partitions: leases on the server, by the server's clock, and the thread that keeps them.

Each member's step stores its heartbeat and frees the partitions of silent members. Then the member computes its share,
takes free partitions up to it, and begins to give up those above it. A script takes only what is free at that moment.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from txcore.backends.checkpoint_record import decode_checkpoint, encode_checkpoint
from txcore.backends.fair_share import Moves, fair_moves, fair_shares
from txcore.backends.heartbeat import Heartbeat
from txcore.backends.holdings import STUCK_LEASES, Holdings
from txcore.clock import Clock
from txcore.errors import ClosedError
from txcore.port import resolved, running
from txcore.records import Checkpoint, ClaimEvent
from txcore_redis.errors import require_group
from txcore_redis.lanes import Command, Lane
from txcore_redis.scripts import BEAT, FREE, LOAD, MOVE, STORE, group_key, membership_keys

_encode: Final = msgspec.msgpack.Encoder().encode


class RedisClaim:
    """Membership in a group; implements `Claim`. The backend's own thread keeps its heartbeat."""

    def __init__(self, keeper: Keeper, group: str, member: str) -> None:
        self._keeper = keeper
        self._group = group
        self._member = member
        self._keys = membership_keys(group)
        self._holdings = Holdings(keeper.clock.elapsed_s, STUCK_LEASES * keeper.lease_s)
        self._until_s = 0.0  #: end of the lease, counted from a heartbeat's sending; the server counts from its arrival
        self._lock = threading.Lock()
        self._is_beating = False
        self._closing: Future[None] | None = None

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`."""
        self._require_open()
        if self._keeper.clock.elapsed_s() >= self._until_s:
            self._holdings.lose_all()
        self._return(self._holdings.lose_overdue())
        return self._holdings.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`."""
        self._require_open()
        group = self._group
        command = STORE.call((group_key(group),), partition, encode_checkpoint(checkpoint))

        def parse(answers: list[Any]) -> None:
            require_group(answers[0], group, partition)

        return self._keeper.lane.ask([command], parse)

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`."""
        if self._holdings.give_up(partition) is not None:
            self._return([partition])

    def close(self, timeout_s: float) -> Future[None]:  # noqa: ARG002 - the lane's own timeout is the bound
        """See `Claim.close`; waits no longer than `control_timeout_s`, then the lease runs out."""
        with self._lock:
            if self._closing is not None:
                return self._closing
            closing: Future[None] = running()
            self._closing = closing
        self._keeper.heartbeat.forget(self)
        self._holdings.close()
        try:
            left: Future[Any] = self._keeper.lane.ask([FREE.call(self._keys, self._member, "all")], len)
        except ClosedError:
            left = resolved(None)  # the lease runs out
        left.add_done_callback(lambda _: closing.set_result(None))
        return closing

    @property
    def is_stuck(self) -> bool:
        """Whether its checker does not poll."""
        return self._holdings.is_stuck

    def beat(self) -> None:
        """Start a step, unless the last one is still under way."""
        with self._lock:
            if self._is_beating or self._closing is not None:
                return
            self._is_beating = True
        command = BEAT.call(self._keys, self._member, self._keeper.lease_ms)
        self._ask(command, self._keeper.clock.elapsed_s(), is_last=False)

    def _ask(self, command: Command, sent_s: float, *, is_last: bool) -> None:
        try:
            view = self._keeper.lane.ask([command], lambda answers: answers[-1])
        except ClosedError:
            return
        view.add_done_callback(lambda done: self._seen(done, sent_s, is_last=is_last))

    def _seen(self, done: Future[Any], sent_s: float, *, is_last: bool) -> None:
        view = None if done.exception() is not None else done.result()
        if view is not None and self._closing is None:
            count, members, owned, revoking = view
            revoked = {int(partition) for partition in revoking}
            owners = {int(each): owner.decode() for each, owner in zip(owned[::2], owned[1::2], strict=True)}
            mine = {partition for partition, owner in owners.items() if owner == self._member}
            self._apply(sent_s + self._keeper.lease_s, mine, revoked)
            if not is_last:  # a heartbeat's own view: this member is in it
                moves = self._moves(int(count), sorted(members), owners, revoked)
                if moves.take or moves.give_up:
                    command = MOVE.call(self._keys, self._member, self._keeper.lease_ms, _encode(moves))
                    self._ask(command, sent_s, is_last=True)
                    return
        self._is_beating = False

    def _apply(self, until_s: float, mine: set[int], revoked: set[int]) -> None:
        """Apply the server's view: the partitions of this member until then, and those that it is to give up."""
        holdings, self._until_s = self._holdings, until_s
        holdings.lose(holdings.held - mine)
        for partition in sorted(mine - revoked):
            holdings.assign(partition)
        self._return([each for each in sorted(mine & revoked) if holdings.revoke(each, until_s)])
        self._return(holdings.lose_overdue())

    def _return(self, partitions: Sequence[int]) -> None:
        """Give partitions that are leaving back to the server."""
        for partition in partitions:
            with suppress(ClosedError):  # then the lease runs out
                command = FREE.call(self._keys, self._member, partition)
                self._keeper.lane.ask([command], len).add_done_callback(partial(self._freed, partition))

    def _moves(self, count: int, members: list[bytes], owners: dict[int, str], revoked: set[int]) -> Moves:
        held = [owner for partition, owner in owners.items() if partition not in revoked]
        held_counts = {name: held.count(name) for name in (member.decode() for member in members)}
        mine = [partition for partition, owner in owners.items() if owner == self._member and partition not in revoked]
        free = [partition for partition in range(count) if partition not in owners]
        return fair_moves(mine, free, fair_shares(held_counts, count)[self._member])

    def _freed(self, partition: int, _: object) -> None:
        self._holdings.freed(partition)
        self._keeper.heartbeat.wake()

    def _require_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("this claim is closed")


class Keeper:
    """The lease, the clock and the lane of one backend's claims, and their heartbeat."""

    def __init__(self, lane: Lane, clock: Clock, lease_s: float) -> None:
        self.lane = lane
        self.clock = clock
        self.lease_s = lease_s
        self.lease_ms = round(lease_s * 1000)
        self.heartbeat = Heartbeat("txcore-redis-heartbeat", lease_s)

    def join(self, group: str, member: str) -> RedisClaim:
        """Return a new claim whose first step is under way."""
        claim = RedisClaim(self, group, member)
        self.heartbeat.add(claim)
        return claim


def load_checkpoint(lane: Lane, group: str, partition: int) -> Future[Checkpoint | None]:
    """See `Backend.load_checkpoint`."""

    def parse(answers: list[Any]) -> Checkpoint | None:
        _, *stored = require_group(answers[0], group, partition)
        return decode_checkpoint(stored[0]) if stored[0] else None

    return lane.ask([LOAD.call((group_key(group),), partition)], parse)
