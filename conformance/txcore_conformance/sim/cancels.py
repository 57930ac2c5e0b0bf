"""Programs that cancel delayed messages in database transactions of their own, which may roll back, fail or die."""

from __future__ import annotations

from typing import Any

from txcore.ids import id_text
from txcore.message_table import CancelState
from txcore.runtime.commands import Call, Flow
from txcore_conformance.sim.cast import GROUP, Cast, Truth, ended
from txcore_conformance.sim.database import SimFence
from txcore_conformance.sim.process import Process


def plan_cancels(cast: Cast, truth: Truth) -> None:
    """Let some programs cancel a delayed transaction, before and around the time at which it is due."""
    rng, world = cast.later_rng, cast.world
    last_s = max(due_ms - world.now_ms() for due_ms in truth.dues_ms.values()) / 1000
    for _ in range(rng.choice([0, 1, 1, 2])):
        world.at(rng.uniform(0, last_s + 2), lambda: _start(cast, truth))


def _start(cast: Cast, truth: Truth) -> None:
    cast.numbers += 1
    process = Process(cast.world, f"x{cast.numbers}")
    cast.processes.append(process)
    process.loop.spawn(_cancel(cast, process, truth), lambda task: ended(cast.world, task.error))


def _cancel(cast: Cast, process: Process, truth: Truth) -> Flow[None]:
    database, world, rng, identity = cast.database, cast.world, cast.later_rng, truth.core.identity
    fence: Any = SimFence(database, process)
    connection = database.connect(process)
    database.begin(connection)
    was_committed = identity in database.rows and database.rows[identity] == 3
    try:
        state = yield Call(fence.cancel, (connection, identity, GROUP))
        world.note(f"cancel {state.value}")
        if state is CancelState.NOT_FOUND and was_committed and identity in database.rows:
            world.break_rule(f"S13 {id_text(identity)} was committed, and a cancel did not find it")
        truth.has_been_late |= state is CancelState.TOO_LATE
        yield rng.choice([0.01, 0.5, 3.0]) * rng.random()
        if rng.random() < 0.25:
            world.note("cancel rolled back")
            return
        yield Call(fence.commit, (connection,))
    finally:
        database.roll_back(connection)  # without effect after a commit
