"""Simulated time and faults, without any knowledge of the protocol."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from txcore.memory import Fate, Faults, MemoryBroker, Profile
from txcore.records import LogKind
from txcore.runtime.instrumentation import Reporter

EPOCH_MS = 1_700_000_000_000


@dataclass(slots=True)
class Swarm:
    """The likelihood of each fault in one seed; drawn per seed so that every mixture occurs."""

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
    read_max: int

    @property
    def any_fate(self) -> float:
        """The highest likelihood that a request has another fate than DONE."""
        return self.lost + self.ack_lost + self.late + self.refused + self.twice

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
            read_max=1 << 30,
        )


class World:
    """One seed's time line, and the counts of its events."""

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
        self.silent_until_s: dict[tuple[LogKind, int], float] = {}
        self.has_final_op: Callable[[bytes], bool] = lambda _: False
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = itertools.count()
        self.broker = MemoryBroker(profile, clock=SimClock(self), faults=SimFaults(self), schedule=self.at)

    def at(self, delay_s: float, action: Callable[[], object]) -> None:
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

    def now_ms(self) -> int:
        """Return the time by the right clock, which broker and database have, in milliseconds."""
        return EPOCH_MS + round(self.now_s * 1000)

    def step(self, end_s: float) -> bool:
        """Play the next event up to *end_s*; returns False if there is none, and the time is *end_s* then."""
        if not self._events or self._events[0][0] > end_s:
            self.now_s = max(self.now_s, end_s)
            return False
        self.now_s, _, action = heapq.heappop(self._events)
        self.step_count += 1
        action()
        return True

    def chance(self, probability: float) -> bool:
        """Return True with *probability*, while faults are on."""
        return self.is_faulty and probability > 0 and self.rng.random() < probability

    def note(self, name: str) -> None:
        """Count that a rare path was hit."""
        self.sometimes[name] += 1

    def log(self, *facts: object) -> None:
        """Add to the trace; its hash shows whether two runs were the same."""
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
    """Fates drawn from the swarm; a fate that may double a delivery counts as a cause, here or at its answer."""

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
            if fate is Fate.LATE and what != "half":  # a late half publishes nothing
                world.late.update(transaction_ids)
            elif fate is Fate.TWICE and (what == "target" or world.broker.profile.capabilities.atomic_release):
                world.causes.update(transaction_ids)
        return fate

    def _draw(self, what: str) -> Fate:
        world, swarm = self._world, self._world.swarm
        number = world.rng.random()
        if number >= swarm.any_fate:
            return Fate.DONE
        for probability, fate in (
            (swarm.lost, Fate.LOST),
            (swarm.ack_lost, Fate.ACK_LOST),
            (swarm.late if world.allows_late else 0.0, Fate.LATE),
            (swarm.refused if what in {"half", "target"} else 0.0, Fate.REFUSED),
            # A half is never stored twice unnoticed: a resend below the client would need the producer's session.
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

    def readable(self, kind: LogKind, partition: int, count: int) -> int:
        """See `Faults.readable`."""
        world = self._world
        if not count:
            return 0
        if world.silent_until_s.get((kind, partition), 0.0) > world.now_s:
            world.note(f"silent {kind.value} log")
            return 0
        if world.chance(world.swarm.lag):
            count = world.rng.randrange(count + 1)
        return min(count, world.swarm.read_max)

    def fetch_delay_s(self) -> float:
        """See `Faults.fetch_delay_s`."""
        world = self._world
        return 0.002 + (world.rng.random() if world.chance(world.swarm.slow) else 0.0)


class SimReporter(Reporter):
    """Counts the core's events as rare paths that were hit."""

    def __init__(self, world: World) -> None:
        super().__init__("txcore.simulated")
        self._world = world

    def event(self, name: str, **fields: Any) -> None:
        """See `Reporter.event`."""
        self._world.note(name if "code" not in fields else f"{name} {fields['code']}")
        self._world.log(name)
