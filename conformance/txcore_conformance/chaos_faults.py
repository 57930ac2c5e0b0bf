"""The nemesis of a chaos run: the kinds of faults, their times and their effects.

Three lanes run side by side, each with its own seeded sequence: the broker, the network, and the processes. Inside a
lane faults follow one another; across lanes they overlap.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from txcore_conformance.live import Crew, Process

LANES: Final = {
    "broker": ("kill-broker", "pause-broker"),
    "network": ("cut", "swallow-replies", "freeze-network", "refuse-connections"),
    "process": ("kill-producer", "pause-producer", "kill-checker", "pause-checker"),
}
KIND_COUNT_MIN: Final = 3
FAULTS_PER_S: Final = 0.2
"""Least number of faults per second of all lanes: 60 in 300 s."""
GAPS_S: Final = {"broker": (4.0, 9.0), "network": (2.0, 7.0), "process": (2.0, 6.0)}
LENGTHS_S: Final = {
    "kill-broker": (0.1, 1.5),
    "pause-broker": (0.5, 10.0),
    "swallow-replies": (0.3, 2.0),
    "freeze-network": (0.5, 6.0),
    "refuse-connections": (0.5, 4.0),
    "pause-producer": (0.5, 12.0),
    "pause-checker": (0.5, 20.0),
}
LANE_TIME_MAX_S: Final = 90.0
WORK_TIME_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned fault: the time since the fault before it, its kind, its length, and its choice of a process.

    *accepted_min* transactions must have been accepted since the fault before it, within WORK_TIME_MAX_S.
    """

    gap_s: float
    kind: str
    length_s: float
    choice: float
    accepted_min: int = 0


def kinds_of(lanes: tuple[str, ...]) -> tuple[str, ...]:
    """Return every kind of fault in *lanes*."""
    return tuple(kind for lane in lanes for kind in LANES[lane])


def plan(lane: str, seed: str, count: int) -> list[Planned]:
    """Return a lane's first *count* faults; equal seeds give equal plans.

    Each round holds every kind once, shuffled, so that every kind comes in a short run too.
    """
    chance = random.Random(f"{seed}-{lane}")
    planned: list[Planned] = []
    while len(planned) < count:
        kinds = list(LANES[lane])
        chance.shuffle(kinds)
        for kind in kinds:
            gap_s = chance.uniform(*GAPS_S[lane])
            length_s = round(chance.uniform(*LENGTHS_S.get(kind, (0.0, 0.0))), 2)
            planned.append(Planned(round(gap_s, 2), kind, length_s, chance.random()))
    return planned[:count]


def shortfall(counts: Counter[str], lanes: tuple[str, ...], seconds: float) -> list[str]:
    """Return the faults that are missing for a proof by a run of *seconds*; shorter runs need proportionally fewer."""
    share = min(1.0, seconds / 300)
    least, each_least = int(FAULTS_PER_S * seconds * len(lanes) / len(LANES)), int(KIND_COUNT_MIN * share)
    missing = [
        f"{kind} came {counts[kind]} times; at least {each_least} are needed"
        for kind in kinds_of(lanes)
        if counts[kind] < each_least
    ]
    if counts.total() < least:
        missing.append(f"{counts.total()} faults; at least {least} are needed")
    return missing


class Nemesis:
    """Causes the planned faults of a crew and its broker until the time is over, then restores everything.

    Args:
        broker: The crew's broker, None without one.
        say: Called with one line for each fault.
        plans: Plans instead of the seeded ones.
    """

    def __init__(
        self,
        crew: Crew,
        broker: Any,
        say: Callable[[str], None],
        *,
        seed: str,
        plans: dict[str, list[Planned]] | None = None,
    ) -> None:
        self.lanes = tuple(LANES) if broker is not None else ("process",)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._crew = crew
        self._broker = broker
        self._say = say
        self._plans = plans if plans is not None else {lane: plan(lane, seed, 1_000) for lane in self.lanes}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._thaws: list[threading.Thread] = []

    def run(self, seconds: float, watch: Callable[[], None] = lambda: None) -> None:
        """Cause faults for *seconds*, or until the plans are done, and call *watch* from time to time."""
        self._started_s = time.monotonic()
        threads = [
            threading.Thread(target=self._lane, args=(planned,), name=f"chaos-{lane}")
            for lane, planned in self._plans.items()
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() - self._started_s < seconds and any(thread.is_alive() for thread in threads):
            watch()
            self._stop.wait(0.2)
        self._stop.set()
        for thread in [*threads, *self._thaws]:
            thread.join(LANE_TIME_MAX_S)
            if thread.is_alive():
                self.errors.append(f"{thread.name} hangs")

    def _lane(self, planned: list[Planned]) -> None:
        for fault in planned:
            before = self._crew.accepted() if fault.accepted_min else 0
            if self._stop.wait(fault.gap_s):
                return
            try:
                if fault.accepted_min:
                    self._wait_for_work(before + fault.accepted_min)
                self._cause(fault)
            except Exception as error:  # noqa: BLE001 - the run continues and fails at its end
                self.errors.append(f"{fault.kind}: {error!r}")

    def _wait_for_work(self, accepted_min: int) -> None:
        self._crew.until(lambda: self._crew.accepted() >= accepted_min, "work between faults", WORK_TIME_MAX_S)

    def _cause(self, fault: Planned) -> None:
        action = {
            "kill-broker": self._kill_broker,
            "pause-broker": self._pause_broker,
            "cut": self._cut,
            "swallow-replies": self._swallow,
            "freeze-network": self._freeze,
            "refuse-connections": self._refuse,
        }.get(fault.kind)
        if action is not None:
            self._noted(fault.kind, "broker" if "broker" in fault.kind else "proxy", fault.length_s)
            with self._crew.fault(fault.kind, "broker" if "broker" in fault.kind else "network"):
                action(fault.length_s)
            return
        verb, _, kind = fault.kind.partition("-")
        with self._lock:
            victims = self._crew.at_work(checkers=kind == "checker")
            if not victims:
                return
            victim = victims[int(fault.choice * len(victims))]
            if verb == "kill":
                self._crew.kill(victim)
                self._crew.start(victim.role, rate=victim.rate)
            else:
                started_s = self._crew.freeze(victim)
                thaw = threading.Thread(target=self._thaw, args=(victim, started_s, fault.length_s))
                self._thaws.append(thaw)
                thaw.start()
        self._noted(fault.kind, victim.name, fault.length_s)

    def _thaw(self, victim: Process, started_s: float, length_s: float) -> None:
        self._stop.wait(length_s)
        self._crew.thaw(victim, started_s)

    def _kill_broker(self, length_s: float) -> None:
        self._broker.kill()
        time.sleep(length_s)
        self._broker.start()

    def _pause_broker(self, length_s: float) -> None:
        self._broker.pause()
        try:
            time.sleep(length_s)
        finally:
            self._broker.resume()

    def _cut(self, _length_s: float) -> None:
        self._broker.proxy.cut()

    def _swallow(self, length_s: float) -> None:
        with self._restored():
            self._broker.proxy.swallow_replies()
            time.sleep(length_s)
            self._broker.proxy.cut()

    def _freeze(self, length_s: float) -> None:
        with self._restored():
            self._broker.proxy.freeze()
            time.sleep(length_s)

    def _refuse(self, length_s: float) -> None:
        with self._restored():
            self._broker.proxy.refuse()
            self._broker.proxy.cut()
            time.sleep(length_s)

    @contextlib.contextmanager
    def _restored(self) -> Any:
        try:
            yield
        finally:
            self._broker.proxy.forward()

    def _noted(self, kind: str, subject: str, length_s: float) -> None:
        self.counts[kind] += 1
        at_s = time.monotonic() - self._started_s
        self._say(f"{at_s:6.1f} s  {kind:<18} {subject:<12}" + (f" {length_s:4.1f} s" if length_s else ""))
