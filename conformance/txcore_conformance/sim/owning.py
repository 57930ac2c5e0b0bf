"""Halves that their partition's owner releases: the producers that choose it, late decisions, and the probe of R17."""

from __future__ import annotations

import random
from typing import Any

from txcore.ids import id_text
from txcore.records import HalfRecord, Op, OpKind, ReleaseBy, Resolution
from txcore.results import EndResult, EndState
from txcore.runtime.commands import Call
from txcore_conformance.sim.cast import GROUP, Cast, Truth
from txcore_conformance.sim.process import Process


def release_of(cast: Cast) -> ReleaseBy:
    """Return which process releases the halves of the next producer; groups may mix both kinds."""
    return ReleaseBy.OWNER if cast.owner_rng.random() < cast.owner_chance else ReleaseBy.PRODUCER


def plan_late_decisions(cast: Cast) -> None:
    """Let COMMITTED ops be stored very late, after their senders had no answer to them."""
    if cast.owner_chance:
        for _ in range(6):
            cast.world.at(cast.owner_rng.uniform(8, 40), lambda: _store_late(cast))


def _store_late(cast: Cast) -> None:
    """Store the decision of a producer whose own release never arrived; its half may be parked by now."""
    broker = cast.world.broker
    for identity, truth in cast.truths.items():
        journey = cast.archive.journey(identity)
        if journey is None or not journey.is_parked or journey.decided or broker.down:
            continue
        if truth.core.is_by_owner and truth.core.asked is not OpKind.ROLLBACK and cast.is_committed(truth):
            op = Op(OpKind.COMMITTED, identity, 0, truth.core.context.by, 0)
            if broker.superseded(GROUP, op) is None:
                cast.world.note("late COMMITTED of a parked half")
                broker.append_ops(GROUP, journey.partition, [op])


def contrary_kind(truth: Truth) -> OpKind:
    """Return the end that an application asks for although it has asked for the other one."""
    if truth.core.asked is OpKind.COMMIT:
        return OpKind.ROLLBACK
    return OpKind.COMMITTED if truth.core.is_by_owner else OpKind.COMMIT


def judge_end(cast: Cast, truth: Truth, result: EndResult | None) -> None:
    """Require that what a producer has reported as accepted is stored (R17)."""
    core = truth.core
    if result is None or result.state is not EndState.ACCEPTED or not core.is_by_owner or core.asked is OpKind.ROLLBACK:
        return
    cast.world.note("committed for an owner")
    journey = cast.archive.journey(core.identity)
    is_stored = journey is not None and (journey.committed_at >= 0 or journey.final)
    if not is_stored and core.identity not in cast.lost_tail:
        cast.world.break_rule(f"S14 {id_text(core.identity)} is accepted, and its COMMITTED is not stored")


def is_ambiguous(cast: Cast, identity: bytes) -> bool:
    """Return whether the application asked for both ends, and retention may have removed the first one of them.

    Then a reader sees a ROLLBACK alone, and nothing says that a COMMITTED came before it.
    """
    truth = cast.truths.get(identity)
    return cast.is_eaten and truth is not None and truth.has_contrary_caller and truth.core.is_by_owner


def probe(cast: Cast, process: Process, command: Any) -> None:
    """Judge each step of an owner by what it has read: a release, or a question about a half that is decided."""
    if isinstance(command, Resolution) and command.targets and command.op is not None:
        _judge_release(cast, process, command.half, command.op)
    elif isinstance(command, Call) and getattr(command.function, "__name__", "") == "check_local_transaction":
        identity = command.args[0].transaction_id
        read = _op_read(cast, process, identity)
        journey = cast.archive.journey(identity)
        if journey is not None and 0 <= journey.committed_at <= read and not (cast.is_eaten or cast.lost_tail):
            cast.world.break_rule(f"S9 {id_text(identity)} is asked about after its COMMITTED was read")


def _judge_release(cast: Cast, process: Process, half: HalfRecord, op: Op) -> None:
    journey = cast.archive.journey(half.transaction_id)
    if journey is None or journey.half is None or not journey.half.is_by_owner or cast.lost_tail:
        return
    cast.world.note("released by an owner")
    read = _op_read(cast, process, half.transaction_id)
    if op.kind != OpKind.RELEASED or not 0 <= journey.committed_at <= read:
        what, place = f"{id_text(half.transaction_id)} with {OpKind(op.kind).name}", journey.committed_at
        text = f"S14 {process.name} publishes {what}; its COMMITTED is at {place}, and the op log was read to {read}"
        cast.world.break_rule(text)


def _op_read(cast: Cast, process: Process, identity: bytes) -> int:
    """Return up to where the process has read the op log of the transaction's partition."""
    journey = cast.archive.journey(identity)
    for owner_process, membership in cast.memberships:
        owner = membership.owners.get(journey.partition) if journey is not None and owner_process is process else None
        if owner is not None and owner.tenure.state.op_read is not None:
            return owner.tenure.state.op_read
    return -1


def choose(cast: Cast, rng: random.Random) -> None:
    """Let some seeds release by owners: all halves, or those of some producers."""
    cast.owner_rng, cast.owner_chance = rng, rng.choice([0.0, 0.0, 0.5, 1.0])
