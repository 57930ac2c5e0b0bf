"""Layer two: real owners with their log reader, look-back, carrying and checkpoints, while a history writes.

Readers are silent for a time, or give one record at a time; owners are frozen between any two of their steps, killed,
and started again from the checkpoint that is stored. All owners' steps and all writers' records interleave at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final
from unittest import mock

from txcore.checker import carrying, log_reader
from txcore.checker.limits import Limits
from txcore.checker.log_reader import LogReader
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE
from txcore.records import (
    Checkpoint,
    LogKind,
    LogRecord,
    Op,
    OpKind,
)
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.refine import adapter
from txcore_conformance.refine.history import GROUP
from txcore_conformance.refine.whole import halves_in, journals_of, open_states, ops_in, order_of, truth_of, whole
from txcore_conformance.refine.world import World

PROFILES: Final = tuple(
    replace(profile, capabilities=replace(profile.capabilities, half_retention_s=None), merge_delay_s=0.0)
    for profile in (KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE)
)
STEPS_MAX: Final = 260


def play(seed: int) -> str:
    """Play one history; return the first violation, or ""."""
    rng = Random(seed)
    limits = Limits(
        replay_max=1 + int(rng.random() * rng.random() * 4),
        read_count_max=1 + int(rng.random() * 3) if rng.random() < 0.5 else 1_000,
        batch_count_max=1 + int(rng.random() * 8),
        checkpoint_interval_s=0.0 if rng.random() < 0.7 else 2.0,
        body_bytes_max=1 if rng.random() < 0.3 else 4 << 20,
        idle_poll_s=0.05,
    )
    world = World(rng, PROFILES[int(rng.random() * len(PROFILES))], limits)
    left_in = 20_000 if rng.random() < 0.6 else 1 + int(rng.random() * 3)
    orphans_max = 20_000 if rng.random() < 0.6 else 1 + int(rng.random() * 5)
    with (
        adapter.leaving_in(left_in),
        mock.patch.object(log_reader, "ORPHANS_MAX", orphans_max),
        mock.patch.object(log_reader, "MERGED_COUNT", 1),
        mock.patch.object(carrying, "CARRY_DISTANCE", 0 if rng.random() < 0.7 else 2),
    ):
        for _ in range(int(rng.random() * 12)):
            world.history.act()
        world.run(STEPS_MAX // 3 + int(rng.random() * STEPS_MAX))
        return judge(world)


def judge(world: World) -> str:
    """Return the first violation by the owners' actions or by the checkpoints that they sent, or ""."""
    if world.wrong:
        return world.wrong
    if world.report.errors:
        return f"a tenure ended with {world.report.errors[0]}"
    world.history.flush()
    world.quiet.is_over = True
    halves, ops = world.broker.log(GROUP, LogKind.HALF, 0), world.broker.log(GROUP, LogKind.OP, 0)
    given = world.witness.given
    for each in [*given[:-8:3], *given[-8:]]:
        then = judge_checkpoint(each.checkpoint, halves[: each.halves], ops[: each.ops])
        if then:
            return f"a checkpoint was given when {then}"
    for checkpoint in [None, *(each.checkpoint for each in given[-3:])]:
        wrong = restarted(world, checkpoint, halves, ops)
        if wrong:
            return f"restarted from {checkpoint and (checkpoint.half, checkpoint.op)}: {wrong}"
    return ""


IDLE_MAX: Final = 3
"""Number of reads without a record after which both logs are read; one such read may only ask for an end."""


def restarted(
    world: World, checkpoint: Checkpoint | None, halves: Sequence[LogRecord], ops: Sequence[LogRecord]
) -> str:
    """Read both logs with a real reader from a checkpoint; return the difference from the whole logs, or ""."""
    tenure = Tenure(world.context(), 0)
    tenure.state = PartitionState(checkpoint)
    logs = LogReader(tenure, checkpoint)
    # An owner judges, and so looks back, only after a mark of its own.
    world.backend.mark(GROUP, 0, Op(OpKind.TICK, tenure.nonce()))
    try:
        idle = 0
        while idle < IDLE_MAX:
            idle = 0 if logs.read() else idle + 1
        for flow in adapter.looking_back(tenure):
            for _ in flow:
                pass
        adapter.hold_parked(tenure.state)
    except Exception as error:  # noqa: BLE001 - whatever is raised here ends a tenure
        return f"it ends with {error!r}"
    finally:
        logs.close()
    journals, _ = journals_of(ops_in(ops))
    truths = whole((half for _, half in halves_in(halves)), ops_in(ops))
    expected = open_states(truths)
    found = {}
    for identity, pending in tenure.state.pending.items():
        if pending.extras.poison is None:
            found[identity] = adapter.state_of(pending)
        elif truth_of((), journals.get(identity, ())).closed_by:
            return "stray bytes that were parked are pending again"
    order, in_logs = adapter.order_in(tenure.state), order_of(halves_in(halves), truths)
    return adapter.difference(found, expected) or ("" if order == in_logs else f"order {order}, the logs say {in_logs}")
