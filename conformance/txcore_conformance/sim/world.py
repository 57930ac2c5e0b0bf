"""Simulated time, faults and processes. Nothing here knows the protocol."""

from __future__ import annotations

import hashlib
import heapq
import inspect
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txcore.commands import Call, Each, Timed
from txcore.instrumentation import Reporter
from txcore.loop import Loop, Task
from txcore.memory import Fate, Faults, MemoryBackend, MemoryBroker, Profile
from txcore.records import HalfRecord, Resolution

EPOCH_MS = 1_700_000_000_000


@dataclass(slots=True)
class Swarm:
    """How likely each fault is in one seed; drawn per seed so that every mixture occurs."""

    crash: float
    pause: float
    pause_max_s: float
    lost: float
    ack_lost: float
    late: float
    refused: float
    twice: float
    slow: float
    lag: float
    database: float

    @classmethod
    def draw(cls, rng: random.Random) -> Swarm:
        """Return a mixture: each fault is off in about half of the seeds."""

        def chance(most: float) -> float:
            return most * rng.random() if rng.random() < 0.55 else 0.0

        return cls(
            crash=chance(0.03),
            pause=chance(0.03),
            pause_max_s=rng.choice([1.0, 4.0, 9.0]),
            lost=chance(0.08),
            ack_lost=chance(0.08),
            late=chance(0.05),
            refused=chance(0.06),
            twice=chance(0.05),
            slow=chance(0.3),
            lag=chance(0.5),
            database=chance(0.12),
        )


class World:
    """One seed's time line, and everything that was counted in it."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.is_faulty = True
        self.swarm = Swarm.draw(self.rng)
        self.allows_late = True
        self.trace = hashlib.blake2b(digest_size=16)
        self.step_count = 0
        self.sometimes: Counter[str] = Counter()
        self.causes: Counter[bytes] = Counter()
        self.late: Counter[bytes] = Counter()
        self.violations: list[str] = []
        self.graveyard: list[object] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self.broker = MemoryBroker(profile, clock=SimClock(self), faults=SimFaults(self), schedule=self.at)

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run *action* after *delay_s*."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._sequence), action))

    def run_until(self, end_s: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Play events up to *end_s*, or until *is_done*; returns whether it was done."""
        events = self._events
        check_s = self.now_s
        while events and events[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(events)
            self.step_count += 1
            action()
            if self.now_s >= check_s:
                if is_done():
                    return True
                check_s = self.now_s + 0.25
        self.now_s = max(self.now_s, end_s)
        return is_done()

    def chance(self, probability: float) -> bool:
        """Return True with *probability*, while faults are on."""
        return self.is_faulty and probability > 0 and self.rng.random() < probability

    def note(self, name: str) -> None:
        """Count that a rare path was hit."""
        self.sometimes[name] += 1

    def log(self, *facts: object) -> None:
        """Add to the trace; its hash tells whether two runs were the same."""
        self.trace.update(repr((round(self.now_s, 6), *facts)).encode())

    def break_rule(self, text: str) -> None:
        """Record a violation."""
        self.violations.append(f"{self.now_s:.3f}s {text}")


@dataclass(slots=True)
class SimClock:
    """A process's clocks: a wall clock that may be wrong and jump, and one that only runs."""

    world: World
    wall_offset_ms: int = 0
    elapsed_offset_s: float = 0.0

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return EPOCH_MS + round(self.world.now_s * 1000) + self.wall_offset_ms

    def elapsed_s(self) -> float:
        """See `Clock.elapsed_s`."""
        return self.world.now_s + self.elapsed_offset_s

    def boot_id(self) -> str:
        """See `Clock.boot_id`."""
        return "simulated"


class SimFaults(Faults):
    """Fates drawn from the swarm; each one that may double a delivery is counted as its cause."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fate(self, what: str, transaction_ids: Sequence[bytes]) -> Fate:
        """See `Faults.fate`."""
        world = self._world
        if not world.is_faulty:
            return Fate.DONE
        fate = self._draw(what)
        if fate is not Fate.DONE:
            world.log("fate", what, fate.value)
            world.note(f"fate {fate.value} {what}")
            if fate is not Fate.REFUSED and what != "half":  # however a half ends, it publishes nothing
                for transaction_id in transaction_ids:
                    world.causes[transaction_id] += 1
                    world.late[transaction_id] += fate is Fate.LATE
        return fate

    def _draw(self, what: str) -> Fate:
        swarm, number = self._world.swarm, self._world.rng.random()
        for probability, fate in (
            (swarm.lost, Fate.LOST),
            (swarm.ack_lost, Fate.ACK_LOST),
            (swarm.late if self._world.allows_late else 0.0, Fate.LATE),
            (swarm.refused if what in {"half", "target"} else 0.0, Fate.REFUSED),
            # A half is never stored twice unseen: what resends below the client would need the producer's session.
            (swarm.twice if what in {"target", "op"} else 0.0, Fate.TWICE),
        ):
            if number < probability:
                return fate
            number -= probability
        return Fate.DONE

    def delay_s(self) -> float:
        """See `Faults.delay_s`."""
        world = self._world
        delay_s = 0.001 + world.rng.random() * 0.01
        if world.chance(world.swarm.slow):
            delay_s += world.rng.random() * 0.4
        return delay_s

    def visible(self, count: int) -> int:
        """See `Faults.visible`."""
        world = self._world
        if count and world.chance(world.swarm.lag):
            return world.rng.randrange(count + 1)
        return count


class SimReporter(Reporter):
    """Counts the core's events as rare paths that were hit."""

    def __init__(self, world: World) -> None:
        super().__init__("txcore.simulated")
        self._world = world

    def event(self, name: str, **fields: Any) -> None:
        """See `Reporter.event`."""
        self._world.note(name if "code" not in fields else f"{name} {fields['code']}")
        self._world.log(name)


class Process:
    """A process that may be killed or frozen: one connection, one loop, one clock."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.frozen_until_s = 0.0
        rng = world.rng
        self.clock = SimClock(world, rng.choice([0, 0, 0, 3_600_000, -3_600_000, 250]), rng.random() * 1e4)
        self.backend = MemoryBackend(world.broker)
        self.loop = SimLoop(self)
        self.on_death: list[Callable[[], None]] = []
        self.is_immortal = False

    def kill(self) -> None:
        """End at once: nothing of it runs again, what it sent is still under way."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.backend.alive = False
        self.world.log("kill", self.name)
        self.world.note("crash")
        # Its suspended flows must not even clean up, so they are kept until the seed is over.
        self.world.graveyard.append(self.loop)
        for action in self.on_death:
            action()

    def freeze(self, seconds: float) -> None:
        """Stand still; time goes on."""
        self.frozen_until_s = max(self.frozen_until_s, self.world.now_s + seconds)
        self.world.log("freeze", self.name)
        self.world.note("freeze")


@dataclass(slots=True)
class Horizon:
    """The probe for R6: after this reading a producer may not publish."""

    give_way_s: float
    kinds: set[int] = field(default_factory=set)


class SimLoop(Loop):
    """The real loop under simulated time; every dispatch is a place to crash, freeze or go on."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.backend, process.clock)
        self.process = process
        self.on_command: Callable[[Process, Any], None] | None = None
        self._planned_s: float | None = None
        self._tasks: list[Task] = []

    def resume(self, task: Task, value: Any, error: BaseException | None) -> None:
        """See `Loop.resume`."""
        super().resume(task, value, error)
        self.plan(0.0)

    def spawn(self, flow: Any, on_done: Any = None) -> Task:
        """See `Loop.spawn`."""
        task = super().spawn(flow, on_done)
        self._tasks.append(task)
        self.plan(0.0)
        return task

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """See `Loop.later`."""
        super().later(delay_s, action)
        self.plan(delay_s)

    def plan(self, delay_s: float) -> None:
        """Make sure that a turn is played after *delay_s* at the latest."""
        at_s = self.process.world.now_s + delay_s
        if self._planned_s is None or at_s < self._planned_s:
            self._planned_s = at_s
            self.process.world.at(delay_s, lambda: self._play(at_s))

    def _play(self, at_s: float) -> None:
        if self._planned_s != at_s:
            return
        self._planned_s = None
        process, world = self.process, self.process.world
        if not process.is_alive:
            return
        if world.now_s < process.frozen_until_s:
            self.plan(process.frozen_until_s - world.now_s)
            return
        self.turn()
        if not process.is_alive:
            return
        next_s = self.next_timer_s()
        if next_s is not None:
            self.plan(max(next_s - self.clock.elapsed_s(), 0.0))

    def step(self, task: Task, value: Any, error: BaseException | None) -> None:
        """See `Loop.step`; a frozen process keeps the step for later, a dead one never takes it."""
        process = self.process
        if not process.is_alive:
            return
        if process.world.now_s < process.frozen_until_s:
            super().resume(task, value, error)
            return
        super().step(task, value, error)

    def dispatch(self, task: Task, command: Any) -> Any:
        """See `Loop.dispatch`."""
        process, world = self.process, self.process.world
        items = command.items if isinstance(command, Each) else (command,)
        if self.on_command is not None:
            for item in items:
                self.on_command(process, item.half if isinstance(item, Timed) else item)
        if isinstance(command, HalfRecord | Timed | Resolution | Call | Each):
            world.log(process.name, type(command).__name__)
            if not process.is_immortal and world.chance(world.swarm.crash):
                if world.rng.random() < 0.5:
                    super().dispatch(task, command)
                    self._hand_over()
                process.kill()
                return None
            if world.chance(world.swarm.pause):
                for item in items:
                    if isinstance(item, Resolution):
                        # It goes out when the process thaws, however late; no reading of a clock can prevent that.
                        world.late[item.half.transaction_id] += len(item.targets)
                        world.causes[item.half.transaction_id] += 1
                process.freeze(world.rng.random() * world.swarm.pause_max_s)
                if isinstance(command, Each):
                    self.later(0.0, partial(self._hand_over_each, task, command))
                    return None
        return super().dispatch(task, command)

    def _hand_over_each(self, task: Task, command: Each) -> None:
        super().dispatch(task, command)

    def _hand_over(self) -> None:
        process = self.process
        if process.is_alive and process.world.now_s >= process.frozen_until_s:
            super()._hand_over()

    def call(self, task: Task, call: Call) -> Any:
        """See `Loop.call`; a simulated call may be a generator that takes time."""
        try:
            value = call.function(*call.args)
        except Exception as error:  # noqa: BLE001 - the flow decides what an error means
            self.resume(task, None, error)
            return None
        if inspect.isgenerator(value):
            self.spawn(value, lambda done: self.resume(task, done.result, done.error))
        else:
            self.resume(task, value, None)
        return None
