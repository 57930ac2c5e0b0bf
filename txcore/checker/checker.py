"""The checker: finds halves without an end, asks, and finishes them. Embedded here; the sidecar runs the same class."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from txcore import arguments
from txcore.checker.context import CheckContext
from txcore.checker.limits import Limits
from txcore.checker.partition_owner import PartitionOwner, PartitionStats
from txcore.clock import Clock, Randomness, SystemClock, system_randomness, until_beat
from txcore.errors import BackendTimeoutError, ConfigError, TransactionStateError, TxcoreError
from txcore.fence import AnyFence
from txcore.lifecycle import RunningInside
from txcore.listener import CheckListener
from txcore.message import CheckPolicy
from txcore.port import Backend, Claim, ensured
from txcore.records import ClaimEvent, ClaimEventKind
from txcore.runtime import instrumentation as names
from txcore.runtime.call_pool import CallPool, running_loop
from txcore.runtime.commands import Flow
from txcore.runtime.flow_loop import Loop, Task
from txcore.runtime.instrumentation import Reporter

MEMBERSHIP_PAUSE_MAX_S = 0.25
"""Longest time, in seconds, until a checker learns that it must give a partition up, or has lost it."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of one `run_once`: partitions owned, halves committed, rolled back, parked, and still pending here.

    `blocked` counts the partitions that were not swept, because a newer txcore has written to them.
    """

    partitions: int
    committed: int
    rolled_back: int
    parked: int
    pending: int
    blocked: int = 0


@dataclass(frozen=True, slots=True)
class CheckerStats:
    """The state of a checker.

    Attributes:
        is_running: The checker has joined its group and, where `start` was called, its thread is alive.
        lag_s: Delay, in seconds, of its loop's last wake-up.
        turned_s: Seconds since that wake-up.
        stuck_calls: Number of calls of listener or fence that have passed their deadline and still run.
        partitions: The partitions that it owns.
        broker: Why the broker counts as down: it gives no answer; "" while it answers.
        failing: Why partitions fail, by partition, also while they have no owner; see `contact.Failures`.
    """

    is_running: bool
    lag_s: float
    turned_s: float
    stuck_calls: int
    partitions: tuple[PartitionStats, ...]
    broker: str = ""
    failing: Mapping[int, str] = field(default_factory=dict)


class Membership:
    """One checker's share in a group: turns the claim's events into owners. Runs on the checker's loop."""

    def __init__(self, context: CheckContext, loop: Loop) -> None:
        self.context = context
        self.loop = loop
        self.owners: dict[int, PartitionOwner] = {}
        self.is_stopping = False
        self.trouble = ""  #: why the membership of the group has failed; "" while it has not
        self.lag_s = 0.0
        self.turned_at_s = loop.clock.elapsed_s()

    def poll(self) -> bool:
        """Apply ownership changes, start owners, give up partitions that ended; returns whether anything changed."""
        try:
            events = self.context.claim.poll()
            self.trouble = ""
        except TxcoreError as error:
            self.trouble = str(error)
            self.context.report.event(names.CHECKER_ERROR, error=repr(error))
            events = ()
        for event in events:
            self._take(event)
        ended = [partition for partition, owner in self.owners.items() if owner.has_ended]
        for partition in ended:
            del self.owners[partition]
            self.context.claim.give_up(partition)
        return bool(events or ended)

    def _take(self, event: ClaimEvent) -> None:
        owner = self.owners.get(event.partition)
        if event.kind is ClaimEventKind.ASSIGNED:
            if owner is not None:
                owner.tenure.stand_down("assigned anew")
            if not self.is_stopping:
                owner = self.owners[event.partition] = PartitionOwner(self.context, event.partition)
                self.context.report.event(names.CHECKER_ASSIGNED, partition=event.partition)
                self.loop.spawn(owner.run(), self.ended)
        elif owner is None:
            self.context.claim.give_up(event.partition)
        elif event.kind is ClaimEventKind.REVOKING:
            owner.tenure.is_draining = True
        else:
            owner.tenure.stand_down("lost")

    def ended(self, task: Task) -> None:
        """Report a flow that ended with an error; the partition is claimed anew."""
        if task.error is not None:
            self.context.report.event(names.CHECKER_ERROR, error=repr(task.error))

    def stop(self) -> None:
        """Let every owner finish the halves in hand; no new one is started."""
        self.is_stopping = True
        for owner in self.owners.values():
            owner.tenure.is_draining = True

    def run(self) -> Flow[None]:
        """Poll for ownership for as long as the loop runs, less often while nothing changes."""
        shortest_s = pause_s = self.context.limits.poll_s * 4
        longest_s = max(min(self.context.limits.idle_poll_s, MEMBERSHIP_PAUSE_MAX_S), shortest_s)
        while not self.is_stopping or self.owners:
            is_calm = not self.poll() and not self.is_stopping
            self.context.contact.look()
            pause_s = min(pause_s * 2, longest_s) if is_calm else shortest_s
            before_s = self.loop.clock.elapsed_s()
            wanted_s = until_beat(self.loop.clock, pause_s) if pause_s >= longest_s else pause_s
            yield wanted_s
            self.turned_at_s = self.loop.clock.elapsed_s()
            self.lag_s = max(self.turned_at_s - before_s - wanted_s, 0.0)


class Checker(RunningInside):
    """Checks one group on one backend.

    Args:
        backend: An open backend; it stays the caller's.
        group: The producer group.
        listener: One listener or several with different `topics`; answers for halves without a fence.
        fence: Answers, decisively, for halves whose producer had a fence.
        policy: Interval and count for halves that carry none of their own. Immunity is the half's own.
        member: This process's name in the group; made up when empty.
        limits: Bounds; the defaults suit production.
        event_loop: A running event loop, for an AsyncSqlFence and for listeners whose `check_local_transaction` is
            asynchronous. By default the loop of the coroutine that makes the checker.
        plugins: Objects with pluggy hooks `txcore_on_event`, `txcore_on_discard`.

    Use either `with` (`async with` in a coroutine; `start` and `stop` do the same), or `run_once` for tests and cron.
    The end of the block is `stop`. Not both at a time.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        listener: CheckListener | Sequence[CheckListener] | None = None,
        fence: AnyFence | None = None,
        policy: CheckPolicy | None = None,
        member: str = "",
        limits: Limits | None = None,
        event_loop: asyncio.AbstractEventLoop | None = None,
        plugins: Sequence[object] = (),
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        arguments.require_place(backend, group, fence, plugins)
        if policy is not None:
            arguments.require_type("policy", policy, CheckPolicy, "a txcore.CheckPolicy")
        if limits is not None:
            arguments.require_type("limits", limits, Limits, "txcore.Limits")
        if listener is None and fence is None:
            raise ConfigError("a checker needs a listener or a fence to ask", key="listener")
        event_loop = event_loop or running_loop()
        if event_loop is None and fence is not None and fence.is_async:
            raise ConfigError(
                f"a checker with {type(fence).__name__} needs the event_loop that its engine works in: make the "
                "checker in a coroutine; or give it SqlFence, on a blocking Engine of the same database",
                key="fence",
            )
        clock, randomness = clock or SystemClock(), randomness or system_randomness()
        self._backend = backend
        self._group = group
        self._limits = limits or Limits()
        self._member = member or f"checker-{randomness.getrandbits(48):012x}"
        listeners = listener if isinstance(listener, Sequence) else () if listener is None else (listener,)
        for each in listeners:
            arguments.require_check_listener(each)
        self._report = Reporter("txcore.checker", plugins, group=group)
        self._context_with = functools.partial(
            CheckContext,
            backend=backend,
            group=group,
            clock=clock,
            randomness=randomness,
            policy=policy or CheckPolicy(),
            limits=self._limits,
            report=self._report,
            by=f"c:{self._member}",
            listeners=tuple(listeners),
            fence=fence,
        )
        self._event_loop = event_loop
        self._pool = CallPool(self._limits.calls_max, event_loop=event_loop)
        self._membership: Membership | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._counts = Counter[str]()

    def start(self) -> None:
        """Join the group and check in a thread until `stop`.

        Raises:
            TransactionStateError: started already.
            ConfigError, BackendUnavailableError: the group cannot be joined.
        """
        if self._thread is not None:
            raise TransactionStateError("this checker is running already")
        self._join()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=f"txcore-checker-{self._group}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the halves in hand, checkpoint, leave the group; idempotent, bounded by *timeout_s*."""
        thread = self._thread
        self._stop.set()
        if thread is not None:
            thread.join(timeout_s)
            self._thread = None
        elif self._membership is not None:
            self._drain(self._membership)
        self._leave(timeout_s)
        self._pool.close()

    def run_once(self, timeout_s: float = 30.0) -> CheckReport:
        """Judge every half that is due now on the partitions assigned to this checker, and return the counts.

        Raises:
            BackendTimeoutError: not finished within *timeout_s*; the next call continues.
            ConfigError, BackendUnavailableError: the group cannot be joined.
        """
        if self._thread is not None:
            raise TransactionStateError("this checker runs in a thread; stop it before run_once")
        self._join()
        assert self._membership is not None
        membership, loop = self._membership, self._membership.loop
        before = membership.context.counts.copy()
        deadline_s = loop.clock.elapsed_s() + timeout_s
        for _ in self._sweep(membership):
            if loop.clock.elapsed_s() > deadline_s:
                raise BackendTimeoutError(f"group {self._group!r} was not swept within {timeout_s:g} s")
            loop.wait()
        done = membership.context.counts - before
        pending = sum(owner.tenure.state.pending_count for owner in membership.owners.values())
        blocked = sum(bool(owner.tenure.blocked) for owner in membership.owners.values())
        return CheckReport(len(membership.owners), done["commit"], done["rollback"], done["parked"], pending, blocked)

    def _sweep(self, membership: Membership) -> Iterator[None]:
        """Judge every half that is due now; yields each time when the loop has nothing more to do at once."""
        membership.poll()
        for owner in membership.owners.values():
            owner.begin_sweep()
        while not membership.owners or any(owner.is_sweeping for owner in membership.owners.values()):
            known = set(membership.owners.values())
            membership.loop.turn()
            for owner in membership.owners.values():
                if owner not in known:  # also where its partition was lost and assigned anew in this turn
                    owner.begin_sweep()
            yield

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts of this checker since it last joined, by name; kept after it has left.

        halves (read), asked, commit, rollback, parked, carried, claims, stood_down, stale, conflicts.
        """
        return self._counts.copy()

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this checker owns now."""
        return () if self._membership is None else tuple(sorted(self._membership.owners))

    def stats(self) -> CheckerStats:
        """Return figures for operators; from any thread."""
        membership = self._membership
        if membership is None:
            return CheckerStats(False, 0.0, 0.0, self._pool.abandoned_count, ())
        thread = self._thread
        is_running = thread is None or thread.is_alive()
        turned_s = max(membership.loop.clock.elapsed_s() - membership.turned_at_s, 0.0)
        partitions = tuple(owner.stats() for _, owner in sorted(membership.owners.copy().items()))
        broker = membership.context.contact.trouble or membership.trouble
        failing, stuck = membership.context.failures.lately(), self._pool.abandoned_count
        return CheckerStats(is_running, membership.lag_s, turned_s, stuck, partitions, broker, failing)

    def _join(self) -> None:
        if self._membership is not None:
            return
        ensured(self._backend, self._group)
        claim = self._backend.claim(self._group, self._member)
        self._pool = CallPool(self._limits.calls_max, event_loop=self._event_loop)  # `stop` closed the last one.
        context = self._context_with(claim=claim)
        self._counts = context.counts
        loop = self._loop(context.clock, claim)
        self._membership = Membership(context, loop)
        loop.spawn(self._membership.run(), self._membership.ended)

    def _loop(self, clock: Clock, claim: Claim) -> Loop:
        return Loop(self._backend, clock, claim=claim, pool=self._pool)

    def _leave(self, timeout_s: float) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            try:
                membership.context.claim.close(timeout_s).result(timeout_s)
            except (TxcoreError, TimeoutError) as error:
                self._report.event(names.CHECKER_ERROR, error=repr(error))

    def _run(self) -> None:
        membership = self._membership
        assert membership is not None
        while not self._stop.is_set():
            self._turn(membership.loop)
        self._drain(membership)

    def _drain(self, membership: Membership) -> None:
        """Finish the halves in hand, until `stop` leaves the group because that takes too long."""
        membership.stop()
        clock = membership.loop.clock
        deadline_s = clock.elapsed_s() + self._limits.check_deadline_s + self._limits.mark_timeout_s
        while membership.owners and self._membership is membership and clock.elapsed_s() < deadline_s:
            self._turn(membership.loop)

    def _turn(self, loop: Loop) -> None:
        try:
            loop.turn()
        except Exception as error:  # noqa: BLE001 - the other flows continue; a dead thread would check nothing
            self._report.event(names.CHECKER_ERROR, error=repr(error))
        loop.wait()
