"""Failpoints: a process can kill itself before and after every command that a flow yields.

`TXCORE_FAILPOINT="after release COMMIT:2"` kills the process, by SIGKILL, when that step comes for the second time.
Without it the steps are only listed. `install` patches the drivers in the child process that calls it, nowhere else.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import Future
from typing import Any, Final

from txcore.lifecycle import ClosedAtExit
from txcore.records import HalfRecord, OpKind, Resolution
from txcore.runtime import drivers
from txcore.runtime.commands import Call, Each, Spawn
from txcore.runtime.flow_loop import ANSWERS, Loop

VARIABLE: Final = "TXCORE_FAILPOINT"
OCCURRENCES_MAX: Final = 2
"""Most times that a step is listed: the first and the second differ (with and without work before it), more do not."""
PAUSES_MAX: Final = 1


class Failpoints:
    """Counts steps, and kills the process at the chosen one."""

    def __init__(self, chosen: str = "") -> None:
        self.chosen = chosen
        self.counts: Counter[str] = Counter()
        self.steps: list[str] = []
        self._names: dict[int, tuple[Future[Any], str]] = {}
        self._running: dict[int, list[str]] = {}

    def reach(self, name: str) -> None:
        """Record that step *name* is reached; does not return at the chosen one."""
        self.counts[name] += 1
        step = f"{name}:{self.counts[name]}"
        if step == self.chosen:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.counts[name] <= (PAUSES_MAX if name.endswith("pause") else OCCURRENCES_MAX):
            self.steps.append(step)

    def name_of(self, command: Any) -> str:
        """Return the name of a yielded command; "" for a command without effect."""
        if isinstance(command, HalfRecord):
            return "half"
        if isinstance(command, Resolution):
            return "release " + (OpKind(command.op.kind).name if command.op is not None else "targets")
        if isinstance(command, Call):
            return f"call {getattr(command.function, '__name__', 'function')}"
        if isinstance(command, Future):
            return self._names.get(id(command), (command, "answer"))[1]
        return "" if isinstance(command, Spawn) or command is ANSWERS else "pause"

    def named(self, future: Future[Any], name: str) -> Future[Any]:
        """Store the step that *future* answers."""
        self._names[id(future)] = (future, name)
        return future

    def begin(self, key: Any, command: Any) -> None:
        """Reach the step before *command*; for an `Each` before each item, independent of the items in its batch."""
        items = command.items if isinstance(command, Each) else (command,)
        names = [name for item in items if (name := self.name_of(item))]
        if names:
            self._running[id(key)] = names
        for name in names:
            self.reach(f"before {name}")

    def end(self, key: Any) -> None:
        """Reach the step after the command that began under *key*."""
        for name in self._running.pop(id(key), ()):
            self.reach(f"after {name}")


class Watched(ClosedAtExit):
    """A backend, or a claim, whose calls are steps too: *during* is the moment after the batch was handed over."""

    def __init__(self, inner: Any, failpoints: Failpoints) -> None:
        self._inner = inner
        self._failpoints = failpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """Close."""
        closing: Future[None] = self._inner.close(timeout_s)
        return closing

    def append_halves(self, batch: Any) -> None:
        """Hand over halves."""
        self._inner.append_halves(batch)
        self._failpoints.reach("during half")

    def release(self, batch: Any, claim: Any = None) -> None:
        """Hand over releases."""
        names = [self._failpoints.name_of(item) for item in batch.items]
        self._inner.release(batch, getattr(claim, "_inner", claim))
        for name in names:
            self._failpoints.reach(f"during {name}")

    def mark(self, group: str, partition: int, op: Any, claim: Any = None) -> Any:
        """Append a mark."""
        name = f"mark {OpKind(op.kind).name}"
        self._failpoints.reach(f"during {name}")
        return self._failpoints.named(self._inner.mark(group, partition, op, getattr(claim, "_inner", claim)), name)

    def load_checkpoint(self, group: str, partition: int) -> Any:
        """Load a checkpoint."""
        return self._failpoints.named(self._inner.load_checkpoint(group, partition), "load checkpoint")

    def claim(self, group: str, member: str) -> Any:
        """Join the group."""
        return Watched(self._inner.claim(group, member), self._failpoints)

    def checkpoint(self, partition: int, checkpoint: Any) -> Any:
        """Store a checkpoint."""
        future = self._inner.checkpoint(partition, checkpoint)
        self._failpoints.reach("during checkpoint")
        return self._failpoints.named(future, "checkpoint")


def install(failpoints: Failpoints) -> None:
    """Patch the drivers of this process so that every command is a step."""
    carry_out, carry_out_async = drivers._carry_out, drivers._carry_out_async  # noqa: SLF001 - instrumentation
    dispatch, step = Loop.dispatch, Loop.step

    def watched_carry_out(command: Any, caller: Any) -> Any:
        failpoints.begin(command, command)
        try:
            return carry_out(command, caller)
        finally:
            failpoints.end(command)

    async def watched_carry_out_async(command: Any, bridge: Any) -> Any:
        failpoints.begin(command, command)
        try:
            return await carry_out_async(command, bridge)
        finally:
            failpoints.end(command)

    def watched_dispatch(self: Loop, task: Any, command: Any) -> Any:
        failpoints.begin(task, command)
        answer = dispatch(self, task, command)
        if answer is not None:
            failpoints.end(task)
        return answer

    def watched_step(self: Loop, task: Any, value: Any, error: BaseException | None) -> None:
        failpoints.end(task)
        step(self, task, value, error)

    drivers._carry_out = watched_carry_out  # noqa: SLF001
    drivers._carry_out_async = watched_carry_out_async  # noqa: SLF001
    Loop.dispatch = watched_dispatch  # type: ignore[method-assign]
    Loop.step = watched_step  # type: ignore[method-assign]
