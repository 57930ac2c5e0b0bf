"""Checkers that start, die and are replaced."""

from __future__ import annotations

from functools import partial
from typing import Any

from txcore.checker.checker import Membership
from txcore.checker.context import CheckContext
from txcore.message import CheckPolicy
from txcore_conformance.sim import owning
from txcore_conformance.sim.cast import CHECK_INTERVAL_S, CHECK_MAX, GROUP, Cast, ended
from txcore_conformance.sim.database import SimDatabase, SimFence
from txcore_conformance.sim.listening import SimListener
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.world import SimReporter


def start_checker(
    cast: Cast, *, is_immortal: bool = False, is_replaced: bool = True, database: SimDatabase | None = None
) -> Process:
    """Start a checker process; some time after its death its membership lapses, and another checker may start.

    Args:
        is_replaced: Another checker may start by itself.
        database: Database of its fence, if it is not the producers' database.
    """
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"c{cast.numbers}")
    cast.processes.append(process)
    process.is_immortal = is_immortal
    claim = process.backend.claim(GROUP, process.name)
    process.loop.claim = claim
    fence: Any = SimFence(database or cast.database, process)
    context = CheckContext(
        backend=process.backend,
        group=GROUP,
        clock=process.clock,
        randomness=world.rng,
        claim=claim,
        policy=CheckPolicy(interval_s=CHECK_INTERVAL_S, check_max=CHECK_MAX),
        limits=cast.bounds.limits,
        report=SimReporter(world),
        by=f"c:{process.name}",
        listeners=(SimListener(cast),),
        fence=fence,
    )
    membership = Membership(context, process.loop)
    cast.checkers.append(process)
    cast.memberships.append((process, membership))
    process.loop.spawn(membership.run(), lambda task: ended(world, task.error))
    lapse_s = 0.5 + world.rng.random() * 3
    process.on_death.append(lambda: world.at(lapse_s, lambda: world.broker.leave(GROUP, process.name)))
    if is_replaced:
        process.on_death.append(lambda: world.at(world.rng.random() * 3, lambda: _restart(cast)))
    process.loop.on_command = partial(owning.probe, cast)
    _watch(cast, process)
    return process


def _restart(cast: Cast) -> None:
    alive = sum(process.is_alive for process in cast.checkers)
    if alive < 3:
        start_checker(cast)


def _watch(cast: Cast, process: Process) -> None:
    """Expire a checker's membership while it is frozen, as a session timeout does."""
    world = cast.world

    def look() -> None:
        if process.is_alive and world.is_faulty:
            if process.frozen_until_s - world.now_s > 1.0:
                world.note("session expired")
                world.broker.expire(GROUP, process.name)
            world.at(0.5, look)

    world.at(0.5, look)
