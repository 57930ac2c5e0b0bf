"""One group in the sidecar: its checker is started, again after each failure, and stopped in bounded time."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txcore.checker.checker import Checker, CheckerStats
from txcore.clock import Clock, Randomness
from txcore.errors import TxcoreError
from txcore.port import Backend, ensured
from txcore.sidecar.answers import Answers, open_answers
from txcore.sidecar.database_watch import DatabaseWatch
from txcore.sidecar.figures import Figures
from txcore.sidecar.parked_watch import ParkedWatch
from txcore.sidecar.plan import GroupPlan
from txcore.sidecar.readiness import OPTIONAL, components_of, trouble_of
from txcore.sidecar.relay_watch import RelayWatch
from txcore.sidecar.relays import GroupRelay, start_relay
from txcore.sidecar.resources import Resources

if TYPE_CHECKING:
    from txcore.outbox.relay import RelayStats

LOG: Final = logging.getLogger("txcore.sidecar")
STUCK_S: Final = 60.0
"""Seconds without a turn of its loop after which a checker counts as stuck."""


class GroupState(enum.StrEnum):
    """The state of a group."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"  #: the start failed; the group starts again after a pause
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of a group, for health checks and operators.

    Attributes:
        reason: The reason why the group waits; "" otherwise.
        components: Of a running group, by name, each with the reason why it is down; see `readiness`.
        is_stuck: The checker's loop has not turned for a long time, or its thread has died.
    """

    state: GroupState
    reason: str
    components: Mapping[str, str]
    is_stuck: bool
    checker: CheckerStats

    @property
    def troubles(self) -> tuple[str, ...]:
        """The reasons why the group is not ready; none when it is."""
        if self.state is not GroupState.RUNNING:
            return (f"it is {self.state.value}{f': {self.reason}' if self.reason else ''}",)
        return self._down(is_optional=False)

    @property
    def degraded(self) -> tuple[str, ...]:
        """The callbacks that are down; the rest of the group works."""
        return self._down(is_optional=True)

    def _down(self, *, is_optional: bool) -> tuple[str, ...]:
        return tuple(
            f"{name}: {reason}"
            for name, reason in self.components.items()
            if reason and (name in OPTIONAL) is is_optional
        )


NO_STATS: Final = CheckerStats(False, 0.0, 0.0, 0, ())


class GroupRunner:
    """See the module. `start`, `ask_to_stop` and `join` are called by one thread; everything else by any."""

    def __init__(
        self, plan: GroupPlan, resources: Resources, figures: Figures, clock: Clock, randomness: Randomness
    ) -> None:
        self.plan = plan
        self.figures = figures
        self._resources = resources
        self._clock = clock
        self._randomness = randomness
        self._state = GroupState.STARTING
        self._reason = ""
        self._checker: Checker | None = None
        self._answers: Answers | None = None
        self._relay: GroupRelay | None = None
        self._relay_watch: RelayWatch | None = None
        self._watch: DatabaseWatch | None = None
        self._parked: ParkedWatch | None = None
        self._backend: Backend | None = None
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"txcore-group-{plan.name}", daemon=True)

    def start(self) -> None:
        """Start the group's thread; return at once, whether or not broker and database can be reached."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin to drain; return at once."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came in time."""
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    @property
    def backend(self) -> Backend | None:
        """The open backend, for readers; None while there is none."""
        return self._backend

    @property
    def answers(self) -> Answers | None:
        """The sources of answers; None while the group waits."""
        return self._answers

    @property
    def relay(self) -> RelayStats | None:
        """The counts of the message table's relay; None without one."""
        relay = self._relay
        return None if relay is None else relay.relay.stats()

    @property
    def relay_trouble(self) -> str | None:
        """Why no relay sends the messages of the table; "" while one can, None without a message table."""
        relay, watch = self.relay, self._relay_watch
        if relay is not None:
            return trouble_of(relay)
        return None if watch is None else watch.trouble

    @property
    def parked(self) -> Mapping[str, int] | None:
        """The parked halves of the whole group by code; None until the parked logs were read."""
        watch = self._parked
        return None if watch is None else watch.counts

    def changed(self) -> None:
        """Count the parked halves again soon, because an operator has resumed or decided something."""
        watch = self._parked
        if watch is not None:
            watch.look_again()

    def status(self) -> GroupStatus:
        """Return the state of the group."""
        state, reason, checker, answers = self._state, self._reason, self._checker, self._answers
        stats = NO_STATS if checker is None else checker.stats()
        is_running = state is GroupState.RUNNING
        circuits = () if answers is None else answers.circuits
        components = components_of(stats, circuits, self.relay_trouble) if is_running else {}
        is_stuck = is_running and (not stats.is_running or stats.turned_s > STUCK_S)
        return GroupStatus(state, reason, components, is_stuck, stats)

    def _run(self) -> None:
        section = self.plan.checker
        pause_s = section.restart_s
        while not self._stop.is_set():
            try:
                self._start_checker()
            except (TxcoreError, TimeoutError) as error:
                self._wait(str(error) or type(error).__name__, pause_s)
                pause_s = min(pause_s * 2, section.restart_max_s)
            except Exception as error:  # an error of a plugin or driver must not end the group for good
                LOG.exception("group.failed", extra={"txcore": {"group": self.plan.name}})
                self._wait(repr(error), pause_s)
                pause_s = min(pause_s * 2, section.restart_max_s)
            else:
                self._become(GroupState.RUNNING)
                self._stop.wait()
                break
        self._become(GroupState.STOPPING)
        self._stop_checker()
        self._become(GroupState.STOPPED)

    def _start_checker(self) -> None:
        plan = self.plan
        self._become(GroupState.STARTING)
        try:
            self._answers = answers = open_answers(plan, self._resources, self.figures, self._clock, self._randomness)
            self._backend = self._resources.take_backend(plan.backend_url)
            partition_count = ensured(self._backend, plan.name, plan.section.partitions or None)
            self._checker = Checker(
                self._backend,
                plan.name,
                listener=answers.listeners,
                fence=answers.port,
                policy=plan.policy,
                member=plan.checker.member,
                limits=plan.limits,
                event_loop=answers.event_loop,
                plugins=[self.figures, *tracing_of(plan)],
                clock=self._clock,
                randomness=self._randomness,
            )
            self._relay = start_relay(plan, self._backend, self._clock, self._randomness)
            if plan.database and self._relay is None:
                self._relay_watch = RelayWatch(plan, self._clock)
                self._relay_watch.start()
            if answers.fence is not None:
                self._watch = DatabaseWatch(plan, answers.fence.circuit, self._clock)
                self._watch.start()
            self._parked = ParkedWatch(self._backend, plan.name, partition_count, self._clock)
            self._parked.start()
            self._checker.start()
        except BaseException:
            self.figures.starts_failed += 1
            self._release()
            raise

    def _stop_checker(self) -> None:
        if self._relay is not None:
            self._relay.relay.ask_to_stop()
        if self._checker is not None:
            self._checker.stop(self.plan.checker.shutdown_s)
        self._release()

    def _release(self) -> None:
        with self._counting:
            self.figures.halves += 0 if self._checker is None else self._checker_halves()
            self._checker = None
        watch, self._watch = self._watch, None
        parked, self._parked = self._parked, None
        relay, self._relay = self._relay, None
        relay_watch, self._relay_watch = self._relay_watch, None
        answers, self._answers = self._answers, None
        backend, self._backend = self._backend, None
        with ExitStack() as closing:  # from the last to the first, also when one of them fails
            if backend is not None:
                closing.callback(self._resources.give_back_backend, self.plan.backend_url)
            if answers is not None:
                closing.callback(answers.close)
            if relay is not None:
                closing.callback(relay.close, self.plan.checker.shutdown_s)
            for each in (relay_watch, watch):
                if each is not None:
                    closing.callback(each.close)
            if parked is not None:
                closing.callback(parked.close)

    def _wait(self, reason: str, pause_s: float) -> None:
        is_news = reason != self._reason
        self._become(GroupState.WAITING, reason)
        level = logging.WARNING if is_news else logging.DEBUG
        facts = {"group": self.plan.name, "reason": reason, "retry_s": pause_s}
        LOG.log(level, "group.waiting", extra={"txcore": facts})
        self._stop.wait(pause_s)

    def _become(self, state: GroupState, reason: str = "") -> None:
        if state is not GroupState.STARTING:
            self._reason = reason
        if state is self._state:
            return
        self._state = state
        if state is not GroupState.WAITING:
            LOG.info("group.state", extra={"txcore": {"group": self.plan.name, "state": state.value}})

    @property
    def halves_read(self) -> int:
        """Half records read since the process began."""
        with self._counting:
            return self.figures.halves + (0 if self._checker is None else self._checker_halves())

    def _checker_halves(self) -> int:
        assert self._checker is not None
        return self._checker.counts.get("halves", 0)


def tracing_of(plan: GroupPlan) -> list[object]:
    """Return the plugin that makes spans, where the configuration asks for it.

    Raises:
        BackendNotInstalledError: OpenTelemetry is missing.
    """
    if not plan.checker.tracing:
        return []
    from txcore.integrations.opentelemetry import Tracing  # noqa: PLC0415 - an extra of its own

    return [Tracing()]
