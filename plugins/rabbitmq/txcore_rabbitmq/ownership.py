"""Membership in a group, on a connection of its own: announcements share the partitions, exclusive queues lock them.

Ownership is only a hint. RabbitMQ has neither epochs nor compare-and-set, and a frozen owner may thaw after another
member has taken over. The CLAIM in the op log decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from txcore.backends.holdings import STUCK_LEASES, Holdings, State
from txcore.clock import Clock
from txcore.errors import ClosedError, TxcoreError
from txcore.port import running
from txcore.records import Checkpoint, ClaimEvent
from txcore_rabbitmq.codec import Announcement
from txcore_rabbitmq.connection import Link, LoopThread
from txcore_rabbitmq.locks import Locks
from txcore_rabbitmq.options import Options
from txcore_rabbitmq.presence import Presence
from txcore_rabbitmq.sharing import Roll, Standing, moves_of

_log = logging.getLogger("txcore.rabbitmq")

ANNOUNCE_S: Final = 1.0
SILENCE_MAX_S: Final = 3.0
"""Time without an announcement, in seconds, after which a member counts as gone or frozen, and its locks are tried."""
ANSWERS_S: Final = 0.05
"""Time, in seconds, that a new member waits for the others' answers before it takes partitions that seem free."""
RETRY_S: Final = 1.0
"""Pause, in seconds, before a lock that another member holds is tried again."""
LOST_HEARTBEATS: Final = 3
"""Time, in heartbeats, after which a refused lock is lost. The broker closes a frozen member's connection after two to
three, so a lock held for longer belongs to a node that is down."""
STAND_BACK_S: Final = 0.5
"""Time, in seconds, for which a member does not take again a partition that it gave up unasked."""
TIMER_ERROR_S: Final = 0.01
"""Time, in seconds, by which a timer is set late, so that it never fires before the clock has reached its time."""
HANDED_OVER_S: Final = 0.2
"""Longest time, in seconds, to give the locks back when closing; then the connection is closed, which frees them."""

Store = Callable[[int, Checkpoint], Future[None]]


class ExclusiveClaim:
    """The port's Claim. *member* is unique; two processes of one name are two members."""

    def __init__(self, loop: LoopThread, options: Options, group: str, member: str, store: Store, clock: Clock) -> None:
        self._loop = loop
        self._group = group
        self._member = member
        self._store = store
        self._clock = clock
        self._drain_s = options.drain_s
        self._holdings = Holdings(clock.elapsed_s, STUCK_LEASES * options.claim_heartbeat_s)
        self._avoided: dict[int, float] = {}  # partition -> until when it is not tried
        self._trying: set[int] = set()
        self._partition_count = 0
        self._connection: Any = None
        self._is_listening = False
        self._is_blocked = False
        self._is_parting = False
        self._error: TxcoreError | None = None
        self._closing = threading.Lock()
        self._closed: Future[None] | None = None
        self._roll = Roll(SILENCE_MAX_S)
        lost_after_s = LOST_HEARTBEATS * options.claim_heartbeat_s
        self._locks = Locks(loop, clock, group, lost_after_s, self._answered, self._freed)
        self._presence = Presence(loop, clock, group, member, self._heard, self._audible)
        self._link = Link(loop, options, options.claim_heartbeat_s, f"txcore {group} claim {member}", self)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; readable on any thread."""
        return self._closed is not None

    # -- the port, on the core's thread --------------------------------------------------------------------------------

    def poll(self) -> Sequence[ClaimEvent]:
        """Return the ownership changes since the last call."""
        if self._error is not None:
            raise self._error
        if self._closed is not None:
            raise ClosedError("this claim is closed")
        return self._holdings.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """Append a checkpoint to the partition's checkpoint stream."""
        if self._closed is not None:
            raise ClosedError("this claim is closed")
        return self._store(partition, checkpoint)

    def give_up(self, partition: int) -> None:
        """Give the partition up to other members, and compete for it again; a little later if unasked."""
        state = self._holdings.give_up(partition)
        if state is not None:
            self._loop.call(lambda: self._given_up(partition, state))

    def close(self, timeout_s: float) -> Future[None]:
        """Give the locks back, notify the others and close the connection; abort it if the broker does not answer."""
        with self._closing:  # the core and the backend may close it at the same time
            if self._closed is None:
                self._closed = running()
                self._loop.call(lambda: self._leave(timeout_s))
            return self._closed

    # -- the loop's thread ---------------------------------------------------------------------------------------------

    def start(self, partition_count: int) -> None:
        """Begin to compete for partitions."""
        if self._closed is None:
            self._partition_count = partition_count
            self._link.open()
            self._loop.later(ANNOUNCE_S, self._tick)

    def fail(self, error: TxcoreError) -> None:
        """Let `poll` raise *error*, as the group cannot be joined."""
        self._error = error

    def link_up(self, connection: Any) -> None:
        """Begin to exchange announcements and to lock partitions on a new connection."""
        self._connection = connection
        self._is_blocked = False
        self._presence.open(connection)
        self._locks.open(connection)

    def link_down(self, error: TxcoreError) -> None:
        """Lose all partitions after the connection, and every lock with it, was lost."""
        self._connection = None
        self._is_listening = False
        self._presence.down()
        self._locks.down()
        self._roll.clear()
        self._holdings.lose_all()
        self._trying.clear()
        _log.debug("rabbitmq.claim_down", extra={"txcore": {"group": self._group, "reason": str(error)}})

    def link_blocked(self, reason: str) -> None:
        """Count every member as present during an alarm of the broker, when no announcement arrives."""
        self._is_blocked = bool(reason)
        self._roll.refresh(self._clock.elapsed_s())

    def _audible(self) -> None:
        """Ask the other members for announcements, which can arrive from now on; they answer at once."""
        self._announce(asks=True)
        connection = self._connection
        self._loop.later(ANSWERS_S, lambda: self._begin(connection))

    def _begin(self, connection: Any) -> None:
        if connection is self._connection is not None:
            self._is_listening = True
            self._balance()

    def _heard(self, announcement: Announcement) -> None:
        if announcement.leaves:
            self._roll.leave(announcement.member)
            self._avoided.clear()
        else:
            holding = Standing(frozenset(announcement.kept), frozenset(announcement.revoking))
            self._roll.hear(announcement.member, holding, self._clock.elapsed_s())
            self._locks.held_by_other([*announcement.kept, *announcement.revoking])
        if announcement.asks:
            self._announce()
        self._balance()

    def _tick(self) -> None:
        if self._closed is None:
            if self._holdings.is_stuck:
                self._resign()
            self._announce()
            self._balance()
            self._loop.later(ANNOUNCE_S, self._tick)

    def _resign(self) -> None:
        """Leave the partitions to the others until the checker polls again."""
        resigned = self._holdings.resign()
        if resigned:
            _log.warning("rabbitmq.claim_silent", extra={"txcore": {"group": self._group, "member": self._member}})
        for partition in resigned:
            self._locks.free(partition)

    def _holding(self) -> Standing:
        return Standing(frozenset(self._holdings.kept), frozenset(self._holdings.draining | self._holdings.leaving))

    def _announce(self, *, asks: bool = False, leaves: bool = False) -> None:
        if not self._is_blocked:
            kept, revoking = self._holding()
            is_leaving = leaves or self._holdings.is_stuck
            self._presence.say(Announcement(self._member, sorted(kept), sorted(revoking), asks, is_leaving))

    def _balance(self) -> None:
        """Take the partitions that are due to this member, and begin to give up those above its share."""
        if self._closed is not None or not self._is_listening or self._is_blocked or self._holdings.is_stuck:
            return
        now_s = self._clock.elapsed_s()
        members = self._roll.present(now_s) | {self._member: self._holding()}
        avoided = {partition for partition, until_s in self._avoided.items() if until_s > now_s}
        moves = moves_of(self._member, members, self._partition_count, avoided)
        for partition in moves.give_up:
            self._revoke(partition)
        if moves.give_up:
            self._announce()
        for partition in moves.take:
            if partition not in self._trying:
                self._trying.add(partition)
                self._locks.take(partition)

    def _answered(self, partition: int, is_granted: bool) -> None:  # noqa: FBT001 - this is the answer
        self._trying.discard(partition)
        if not is_granted:
            self._avoid(partition, RETRY_S)
            return
        self._holdings.assign(partition)
        self._announce()

    def _revoke(self, partition: int) -> None:
        if self._holdings.revoke(partition, self._clock.elapsed_s() + self._drain_s):
            self._locks.free(partition)
        else:
            self._loop.later(self._drain_s + TIMER_ERROR_S, self._take_away)

    def _take_away(self) -> None:
        for partition in self._holdings.lose_overdue():
            _log.warning("rabbitmq.not_given_up", extra={"txcore": {"group": self._group, "partition": partition}})
            self._locks.free(partition)

    def _given_up(self, partition: int, state: State) -> None:
        if partition in self._holdings.leaving:  # not if the connection was lost meanwhile
            self._locks.free(partition)
            if state is State.HELD:
                self._avoid(partition, STAND_BACK_S)

    def _freed(self, partition: int) -> None:
        self._holdings.freed(partition)
        if self._closed is None:
            self._announce()
            self._balance()
        elif not self._holdings.leaving:
            self._part()

    def _avoid(self, partition: int, for_s: float) -> None:
        self._avoided[partition] = self._clock.elapsed_s() + for_s
        self._loop.later(for_s + TIMER_ERROR_S, self._balance)

    def _leave(self, timeout_s: float) -> None:
        self._loop.later(timeout_s, self._abort)
        held = self._holdings.close()
        if not held or self._connection is None:
            self._part()
            return
        for partition in held:
            self._locks.free(partition)
        self._loop.later(min(HANDED_OVER_S, timeout_s / 2), self._part)

    def _part(self) -> None:
        if not self._is_parting:
            self._is_parting = True
            self._announce(leaves=True)
            self._link.close(self._is_gone)

    def _abort(self) -> None:
        if self._closed is not None and not self._closed.done():
            self._link.abort()
            self._is_gone()

    def _is_gone(self) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
