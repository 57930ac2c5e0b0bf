"""Who owns which partition: members that keep a heartbeat in the group's bucket, and one key per partition.

`own.member.<id>` is rewritten with every beat; empty, it says that the member has left. `own.lease.<partition>` names
the partition's owner and changes by compare-and-set only. Everybody follows both and acts on what it sees: a member
whose beats stopped for `lease_s` is gone, by the clock of whoever looks; its partitions are taken by those who have
fewer than their share. Who has more gives the last ones up; who does not in time, or has not polled for long, loses
them. All this is a hint; CLAIM records are the truth.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, ClosedError, ConfigError, TxcoreError
from txcore.records import Checkpoint, ClaimEvent, ClaimEventKind, Status
from txcore_nats.codec import HEADER_EXPECTED, as_json, encode_checkpoint, from_json
from txcore_nats.options import GroupNames
from txcore_nats.publishing import NoStreamError, Sending
from txcore_nats.reading import ReadContext, Tail

_log = logging.getLogger("txcore.nats")

BEATS_PER_LEASE: Final = 4
STAND_BACK_S: Final = 0.5
"""How long a member leaves a partition that it gave up to others."""
UNPOLLED_LEASES: Final = 3
"""A member that nobody polled for so many leases is as good as dead: its beats stop."""
FORGET_LEASES: Final = 20
"""A member silent for so many leases is removed from the bucket."""

Send = Callable[[Sending], None]


class Lease:
    """What a partition's key says: the owner's id, "" for nobody, and the key's revision."""

    __slots__ = ("owner", "revision")

    def __init__(self, owner: str, revision: int) -> None:
        self.owner = owner
        self.revision = revision


class LeaseClaim:
    """Membership in a group; implements `Claim`. The backend's loop keeps its heartbeat."""

    def __init__(self, context: ReadContext, send: Send, clock: Clock, group: str, member: str, identity: str) -> None:
        self.group = group
        self.member = member
        self.identity = identity
        self._context = context
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[int, float | None] = {}  # partition -> when it is taken away, once REVOKING was said
        self._events: list[ClaimEvent] = []
        self._beaten_s = -1.0  # when the last beat that was confirmed was sent
        self._polled_s = clock.elapsed_s()
        self._closing: Future[None] | None = None
        self._membership = Membership(self, context, send, clock)
        context.loop.call(self._membership.open)

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`."""
        self._require_open()
        if self._membership.error is not None:
            raise self._membership.error
        self.lose_overdue()
        self._polled_s = self._clock.elapsed_s()
        with self._lock:
            events, self._events = self._events, []
        return events

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`; a plain put: the last one written holds, whoever wrote it."""
        self._require_open()
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        context = self._context

        def ended(status: Status, error: TxcoreError | None, _ack: Any) -> None:
            if status is Status.DURABLE:
                future.set_result(None)
            elif isinstance(error, NoStreamError):
                future.set_exception(ConfigError(f"group {self.group!r} does not exist", key="group"))
            else:
                future.set_exception(error or BackendTimeoutError("no answer to a checkpoint"))

        def put() -> None:
            try:
                subject = context.groups.names(self.group).key("checkpoint", partition)
            except ConfigError as error:
                future.set_exception(error)
                return
            deadline_s = self._clock.elapsed_s() + context.options.delivery_timeout_s
            self._send(Sending(subject, encode_checkpoint(checkpoint), None, deadline_s, ended))

        context.loop.call(put)
        return future

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`; the others see it at once."""
        self._require_open()
        with self._lock:
            if partition not in self._held:
                return
            del self._held[partition]
            # An assignment that nobody has polled yet is given up as well.
            self._events = [event for event in self._events if event.partition != partition]
        self._context.loop.call(lambda: self._membership.give_back(partition))

    def close(self, timeout_s: float) -> Future[None]:
        """See `Claim.close`."""
        with self._lock:
            if self._closing is not None:
                return self._closing
            closing: Future[None] = Future()
            closing.set_running_or_notify_cancel()
            self._closing = closing
            self._held.clear()
            self._events.clear()
        self._context.loop.call(lambda: self._membership.close(timeout_s, closing))
        return closing

    # -- for the membership, on the loop's thread -------------------------------------------------------------------

    @property
    def held(self) -> set[int]:
        """The partitions that this member has been told to own, and not given up."""
        with self._lock:
            return set(self._held)

    @property
    def revoking(self) -> set[int]:
        """Those of them that it was asked to give up."""
        with self._lock:
            return {partition for partition, until_s in self._held.items() if until_s is not None}

    @property
    def is_fresh(self) -> bool:
        """Others still see this member as alive."""
        return self._clock.elapsed_s() - self._beaten_s < self._context.options.lease_s

    @property
    def is_polled(self) -> bool:
        """Somebody still asks for events."""
        return self._clock.elapsed_s() - self._polled_s < UNPOLLED_LEASES * self._context.options.lease_s

    def beaten(self, sent_s: float) -> None:
        """A heartbeat that was sent at *sent_s* is stored."""
        self._beaten_s = max(self._beaten_s, sent_s)

    def assign(self, partition: int) -> None:
        """The partition is ours."""
        with self._lock:
            if self._closing is None and partition not in self._held and self.is_fresh:
                self._held[partition] = None
                self._events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))

    def revoke(self, partition: int) -> None:
        """Ask for the partition to be given up within the lease's time."""
        drain_s = self._context.options.lease_s
        with self._lock:
            if partition in self._held and self._held[partition] is None:
                self._held[partition] = self._clock.elapsed_s() + drain_s
                self._events.append(ClaimEvent(ClaimEventKind.REVOKING, partition, drain_s=drain_s))

    def lose(self, partition: int) -> None:
        """The partition is gone."""
        with self._lock:
            if partition in self._held:
                del self._held[partition]
                self._events.append(ClaimEvent(ClaimEventKind.LOST, partition))

    def lose_overdue(self) -> None:
        """What is over here is over before anyone else takes it: they look at their own clocks, later."""
        now_s = self._clock.elapsed_s()
        is_fresh = self.is_fresh
        with self._lock:
            over = [
                partition
                for partition, until_s in self._held.items()
                if not is_fresh or (until_s is not None and until_s <= now_s)
            ]
        for partition in over:
            self.lose(partition)

    def _require_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("this claim is closed")


class Membership:
    """Follows the bucket, beats, and takes or gives up partitions. On the loop's thread; a `Receiver`."""

    def __init__(self, claim: LeaseClaim, context: ReadContext, send: Send, clock: Clock) -> None:
        self._claim = claim
        self._context = context
        self._send = send
        self._clock = clock
        self._names: GroupNames | None = None
        self._count = 0
        self._tail: Tail | None = None
        self._seen_s: dict[str, float] = {}
        self._leases: dict[int, Lease] = {}
        self._writing: set[int] = set()
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
                self._context.groups.names(self._claim.group)
            except ConfigError as error:
                self.error = error
                return
            self._context.groups.when_found(self._claim.group, self._found)

    def give_back(self, partition: int) -> None:
        """Free a partition for others, and compete for it again a little later."""
        self._given[partition] = self._clock.elapsed_s() + STAND_BACK_S
        self._step()

    def close(self, timeout_s: float, closing: Future[None]) -> None:
        """Leave: free what is held and say good-bye; *closing* is done when both are stored, or the time is over."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tail is not None:
            self._tail.close()
        left = 1
        loop = self._context.loop.loop

        def one_done(*_: Any) -> None:
            nonlocal left
            left -= 1
            if not left and not closing.done():
                closing.set_result(None)

        names = self._names
        if names is not None:
            deadline_s = self._clock.elapsed_s() + timeout_s
            for partition, lease in self._leases.items():
                if lease.owner == self._claim.identity:
                    left += 1
                    self._put(names.key("own", "lease", partition), _lease(""), deadline_s, one_done, lease.revision)
            left += 1
            self._put(names.key("own", "member", self._claim.identity), b"", deadline_s, one_done)
        one_done()

        def overdue() -> None:
            if not closing.done():
                closing.set_result(None)

        loop.call_later(timeout_s, overdue)

    # -- what the bucket says ---------------------------------------------------------------------------------------

    def received(self, sequence: int, subject: str, data: bytes, appended_ms: int) -> None:  # noqa: ARG002
        """See `Receiver`."""
        kind, _, name = subject.partition(".own.")[2].partition(".")
        if kind == "member":
            if data:
                self._seen_s[name] = self._clock.elapsed_s()
            else:
                self._seen_s.pop(name, None)
            if name == self._claim.identity:
                self._is_caught_up = True
        elif kind == "lease" and name.isdigit():
            self._leases[int(name)] = Lease(str(from_json(data).get("owner", "")), sequence)
        self._step_soon()

    def lost(self, asked: int, first: int | None) -> None:
        """See `Receiver`; cannot happen to keys."""

    def failed(self, error: TxcoreError) -> None:
        """See `Receiver`."""
        _log.info("nats.claim_not_reading", extra={"group": self._claim.group, "reason": str(error)})

    def has_room(self) -> bool:
        """See `Receiver`; what arrives is taken in at once."""
        return True

    # -- what is done about it ----------------------------------------------------------------------------------------

    def _found(self, error: TxcoreError | None) -> None:
        if self._is_over:
            return
        if error is not None:
            self.error = error if isinstance(error, ConfigError) else None
            self._context.loop.loop.call_later(STAND_BACK_S, self.open)
            return
        self.error = None
        context = self._context
        self._names = context.groups.names(self._claim.group)
        self._count = context.groups.count(self._claim.group)
        subject = self._names.key("own", ">")
        self._tail = Tail(
            context.loop,
            context.link,
            context.api,
            context.options,
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
        lease_s = self._context.options.lease_s
        sent_s = self._clock.elapsed_s()

        def beaten(status: Status, error: TxcoreError | None, _ack: Any) -> None:
            if status is Status.DURABLE:
                self._claim.beaten(sent_s)
                self._step_soon()
            else:
                _log.info("nats.beat_failed", extra={"group": self._claim.group, "reason": str(error)})

        if self._claim.is_polled:
            subject = self._names.key("own", "member", self._claim.identity)
            self._put(subject, as_json({"name": self._claim.member}), sent_s + lease_s, beaten)
        self._timer = self._context.loop.loop.call_later(lease_s / BEATS_PER_LEASE, self._beat)
        self._step()

    def _step_soon(self) -> None:
        if not self._is_stepping and not self._is_over:
            self._is_stepping = True
            self._context.loop.loop.call_soon(self._step_now)

    def _step_now(self) -> None:
        self._is_stepping = False
        self._step()

    def _step(self) -> None:
        if self._is_over or not self._is_caught_up:
            return
        claim, now_s = self._claim, self._clock.elapsed_s()
        claim.lose_overdue()
        held = claim.held
        for partition in held:
            if self._owner(partition) != claim.identity and partition not in self._writing:
                claim.lose(partition)
        for partition in [partition for partition, until_s in self._given.items() if until_s <= now_s]:
            if self._owner(partition) != claim.identity:
                del self._given[partition]
        if not claim.is_fresh:
            return
        alive = self._alive(now_s)
        counts = dict.fromkeys(alive, 0)
        for partition in range(self._count):
            owner = self._owner(partition)
            if owner in counts:
                counts[owner] += 1
        share = _share(counts, claim.identity, self._count)
        kept = sorted(claim.held - claim.revoking)
        for partition in kept[share:]:
            claim.revoke(partition)
        self._take(counts, share - len(kept))
        self._forget_dead(alive, now_s)

    def _take(self, counts: dict[str, int], wanted: int) -> None:
        """Write this member's name over free leases while some are wanted, and free those that name it in vain."""
        held = self._claim.held
        for partition in range(self._count):
            if partition in held or partition in self._writing:
                continue
            owner = self._owner(partition)
            is_ours = owner == self._claim.identity
            if wanted > 0 and partition not in self._given and (is_ours or owner not in counts):
                wanted -= 1
                self._write_lease(partition, self._claim.identity)
            elif is_ours:
                self._write_lease(partition, "")

    def _write_lease(self, partition: int, owner: str) -> None:
        assert self._names is not None
        revision = self._leases[partition].revision if partition in self._leases else 0
        self._writing.add(partition)

        def written(status: Status, error: TxcoreError | None, ack: Any) -> None:  # noqa: ARG001 - the tail tells
            self._writing.discard(partition)
            if status is Status.DURABLE:
                lease = self._leases.get(partition)
                if lease is None or lease.revision < ack.seq:
                    self._leases[partition] = Lease(owner, ack.seq)
                if owner and self._owner(partition) == owner:
                    self._claim.assign(partition)
            self._step_soon()

        deadline_s = self._clock.elapsed_s() + self._context.options.lease_s
        self._put(self._names.key("own", "lease", partition), _lease(owner), deadline_s, written, revision)

    def _put(
        self,
        subject: str,
        value: bytes,
        deadline_s: float,
        end: Callable[[Status, TxcoreError | None, Any], None],
        revision: int | None = None,
    ) -> None:
        headers = None if revision is None else {HEADER_EXPECTED: str(revision)}
        self._send(Sending(subject, value, headers, deadline_s, end))

    def _owner(self, partition: int) -> str:
        lease = self._leases.get(partition)
        return "" if lease is None else lease.owner

    def _alive(self, now_s: float) -> set[str]:
        lease_s = self._context.options.lease_s
        alive = {name for name, seen_s in self._seen_s.items() if now_s - seen_s < lease_s}
        return alive | {self._claim.identity}

    def _forget_dead(self, alive: set[str], now_s: float) -> None:
        """Remove keys of members that are long gone; one of the living does it."""
        if self._claim.identity != min(alive):
            return
        assert self._names is not None
        long_s = FORGET_LEASES * self._context.options.lease_s
        for name in [name for name, seen_s in self._seen_s.items() if now_s - seen_s > long_s]:
            del self._seen_s[name]
            self._context.loop.spawn(self._purge(self._names.key("own", "member", name)))

    async def _purge(self, subject: str) -> None:
        assert self._names is not None
        try:
            await self._context.api.call(f"STREAM.PURGE.{self._names.bucket_stream}", {"filter": subject})
        except TxcoreError as error:
            _log.info("nats.purge_failed", extra={"reason": str(error)})


def _lease(owner: str) -> bytes:
    return as_json({"owner": owner})


def _share(counts: dict[str, int], identity: str, partition_count: int) -> int:
    """Return how many partitions fall to a member; those who hold most keep the odd ones, so that few move."""
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    base, odd = divmod(partition_count, len(ranked))
    return base + (ranked.index(identity) < odd)
