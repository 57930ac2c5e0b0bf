"""The operator, which resumes and forces, and the pruner of the fence table."""

from __future__ import annotations

import random

from txcore.history.force_rules import force_op
from txcore.history.journey import Journey
from txcore.history.resuming import next_generation
from txcore.ids import first_id_at
from txcore.operator.proving import prove
from txcore.records import Forced, Half, HalfRecord, OpKind, Resolution
from txcore.runtime.commands import Flow
from txcore_conformance.sim.cast import GROUP, Cast, ended, journeys, send
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.world import EPOCH_MS


def _resume(cast: Cast, process: Process, copy: Half, count: int) -> Flow[None]:
    """Append a copy once its proof is in the log, now and then twice."""
    record = yield from prove(process.backend, copy, by="operator", clock=process.clock)
    for _ in range(count):
        send(cast, process, record, lambda: _note_resume(cast, record))


def _note_resume(cast: Cast, record: HalfRecord) -> None:
    cast.resumed[record.transaction_id] = record.generation


def operate(cast: Cast, share: float = 0.7) -> None:
    """Resume a share of the parked halves (at times twice), and request decisions on pending ones."""
    world = cast.world
    process = Process(world, "operator")
    process.is_immortal = True
    for journey in journeys(cast).values():
        if journey.is_parked and journey.half is not None and world.rng.random() < share:
            world.note("operator resumes")
            copy = next_generation(journey, "operator", "try again")
            count = world.rng.choice([1, 1, 2])
            process.loop.spawn(_resume(cast, process, copy, count), lambda task: ended(world, task.error))
        elif journey.is_pending:
            _force(cast, process, journey)
            _force_fenced(cast, process, journey)


def _force(cast: Cast, process: Process, journey: Journey) -> None:
    truth = cast.truths.get(journey.transaction_id)
    if truth is None or truth.is_fenced or cast.world.rng.random() < 0.7:
        return
    known = cast.local.get(journey.transaction_id)
    if known is None and truth.process.is_alive:
        return
    kind = OpKind.COMMIT if known else OpKind.ROLLBACK
    cast.world.note(f"operator forces {kind.name}")
    _ask(cast, process, journey, kind)


def _force_fenced(cast: Cast, process: Process, journey: Journey) -> None:
    """Request any end of a half that the fence decides, right or wrong: the fence still decides it."""
    if journey.half is None or not journey.half.fence_decides:
        return
    rng = random.Random(f"force {cast.world.seed} {journey.transaction_id.hex()}")
    if rng.random() < 0.3:
        cast.world.note("operator forces a fenced half")
        _ask(cast, process, journey, rng.choice([OpKind.COMMIT, OpKind.ROLLBACK]))


def _ask(cast: Cast, process: Process, journey: Journey, kind: OpKind) -> None:
    op = force_op(journey, kind, journey.generation, "operator", 0, Forced.YES, "known")
    record = HalfRecord(GROUP, journey.partition, journey.transaction_id, journey.generation, b"", ())
    send(cast, process, Resolution(record, op, (), b"", "operator", flush=True))


def prune(cast: Cast) -> None:
    """Prune the fence table."""
    prune_now(cast)


def prune_now(cast: Cast) -> None:
    """Raise the horizon, then delete the closed rows below it."""
    world = cast.world
    below = first_id_at(EPOCH_MS + round(world.now_s * 1000) - 8_000)
    found = journeys(cast)
    final = {identity for identity, journey in found.items() if journey.final}
    pending = {identity for identity, journey in found.items() if journey.is_pending or journey.is_parked}
    cast.database.prune(below, lambda identity: identity in final, lambda identity: identity in pending)
