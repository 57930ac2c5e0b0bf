"""Simulated processes: one connection, one loop, one clock each; they may be killed, frozen, or end normally."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from txcore.memory import MemoryBackend
from txcore.port import Batch, Claim, SettlesEach
from txcore.records import HalfRecord, Outcome, Resolution, Status
from txcore.runtime.commands import Call, Called, Calls, Each, Timed
from txcore.runtime.flow_loop import Loop, Task
from txcore_conformance.sim.world import SimClock, World

_COSTLY: Final = (HalfRecord, Timed, Resolution, Call, Each)
"""Commands at which a process may die or freeze."""


class SimBackend(MemoryBackend):
    """A connection that counts causes of second deliveries: uncertain answers, and releases that are partly refused.

    A checker remembers the missing targets of its own release; after a producer's refused one it repeats all targets.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world.broker)
        self._world = world

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """See `Backend.release`."""
        super().release(batch if claim is not None else _Watched(batch, self._world), claim)

    def request(
        self,
        what: str,
        apply: Callable[[], Outcome],
        done: Callable[[Outcome], None],
        transaction_ids: Sequence[bytes] = (),
    ) -> None:
        """See `MemoryBackend.request`."""
        if what in {"op", "target"}:
            super().request(what, apply, partial(self._hear, done, transaction_ids), transaction_ids)
        else:
            super().request(what, apply, done, transaction_ids)

    def _hear(self, done: Callable[[Outcome], None], transaction_ids: Sequence[bytes], outcome: Outcome) -> None:
        if outcome.status is Status.UNKNOWN:
            self._world.causes.update(transaction_ids)
        done(outcome)


class _Watched(SettlesEach):
    """A batch of a producer's releases."""

    def __init__(self, batch: Batch[Resolution], world: World) -> None:
        self.items = batch.items
        self._batch = batch
        self._world = world

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        resolution = self.items[index]
        if outcome.status is Status.REFUSED and 0 < len(outcome.missing) < len(resolution.targets):
            self._world.causes[resolution.half.transaction_id] += 1
            self._world.note("release refused in part")
        self._batch.settle(index, outcome)


class Process:
    """A process that may be killed or frozen: one connection, one loop, one clock.

    Attributes:
        published: Transactions whose targets it has handed over; after its death they may be sent again.
        ends_after_s: Time after which its program ends normally, as soon as it has nothing to do.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.frozen_until_s = 0.0
        rng = world.rng
        self.clock = SimClock(world, rng.choice([0, 0, 0, 3_600_000, -3_600_000, 250]), rng.random() * 1e4)
        self.backend = SimBackend(world)
        self.loop = SimLoop(self)
        self.on_death: list[Callable[[], None]] = []
        self.is_immortal = False
        self.published: set[bytes] = set()
        self.ends_after_s = float("inf")

    def kill(self) -> None:
        """End the process at once: none of its flows runs again, but its sent requests are still under way."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.backend.alive = False
        self.world.log("kill", self.name)
        self.world.note("crash")
        for transaction_id in self.published:
            if not self.world.has_final_op(transaction_id):
                self.world.causes[transaction_id] += 1
                self.world.note("crash between target and op")
        # Its suspended flows must not even clean up, so they are kept until the seed is over.
        self.world.graveyard.append(self.loop)
        for action in self.on_death:
            action()

    def freeze(self, seconds: float) -> None:
        """Freeze the process for *seconds*."""
        self.frozen_until_s = max(self.frozen_until_s, self.world.now_s + seconds)
        self.world.log("freeze", self.name)
        self.world.note("freeze")

    def end(self) -> None:
        """End the process normally: close the connection, which sends all accepted ops, and run no flow again."""
        if self.is_alive:
            self.world.note("normal end")
            self.world.log("end", self.name)
            self.backend.close()
            self.is_alive = False
            self.world.graveyard.append(self.loop)
            for action in self.on_death:
                action()


class SimLoop(Loop):
    """The real loop under simulated time; at every dispatch the process may die, freeze or continue."""

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
        if self._ready:
            self.plan(0.0)
        elif self._timers:
            self.plan(max(self._timers[0][0] - self.clock.elapsed_s(), 0.0))

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
        if not isinstance(command, _COSTLY):
            return super().dispatch(task, command)
        process, world = self.process, self.process.world
        items = command.items if isinstance(command, Each) else (command,)
        if self.on_command is not None:
            for item in items:
                self.on_command(process, item.half if isinstance(item, Timed) else item)
        world.log(process.name, type(command).__name__)
        if not process.is_immortal and world.chance(world.swarm.crash):
            if world.rng.random() < 0.5:
                self._note_releases(items)
                super().dispatch(task, command)
                self._hand_over()
            process.kill()
            return None
        self._note_releases(items)
        if world.chance(world.swarm.pause):
            self._put_off(items)
            process.freeze(world.rng.random() * world.swarm.pause_max_s)
            if isinstance(command, Each):
                self.later(0.0, partial(self._hand_over_each, task, command))
                return None
        return super().dispatch(task, command)

    def _note_releases(self, items: Sequence[Any]) -> None:
        for item in items:
            if isinstance(item, Resolution) and item.targets and item.op is not None:
                self.process.published.add(item.half.transaction_id)

    def _put_off(self, items: Sequence[Any]) -> None:
        """Count releases as late that a frozen process sends after its thaw; no clock prevents that."""
        for item in (*items, *self._resolutions.items):  # what waits for the end of this turn
            if isinstance(item, Resolution) and item.targets:
                self.process.world.late[item.half.transaction_id] += len(item.targets)
                self.process.world.causes[item.half.transaction_id] += 1

    def _hand_over_each(self, task: Task, command: Each) -> None:
        super().dispatch(task, command)

    def _hand_over(self) -> None:
        process = self.process
        if not self._halves.items and not self._resolutions.items:  # most turns have nothing to send
            return
        if process.is_alive and process.world.now_s >= process.frozen_until_s:
            super()._hand_over()

    def calls(self, task: Task, calls: Calls) -> Any:
        """See `Loop.calls`; one call that takes time follows the other."""

        def run() -> Any:
            called = Called()
            until_s = self.clock.elapsed_s() + calls.turn_s
            for arguments in calls.arguments:
                try:
                    value = calls.function(*arguments)
                    if inspect.isgenerator(value):
                        value = yield from value
                except Exception as error:  # noqa: BLE001 - the flow decides what an error means
                    value, called.errors[len(called.values)] = None, error
                called.values.append(value)
                called.ended_s.append(self.clock.elapsed_s())
                if self.clock.elapsed_s() >= until_s:
                    break
            return called

        self.spawn(run(), lambda done: self.resume(task, done.result, done.error))

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
