"""One seed: make its parts, play with faults, end the faults, wait for rest, judge."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txcore import wire
from txcore.errors import WireFormatError
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, TRANSACTION_LIKE, MemoryBroker, Profile
from txcore.message_table import Mode
from txcore.records import LogKind, LogRecord, OpKind
from txcore_conformance.sim import ordering, owning
from txcore_conformance.sim.archive import Archive, ops_in
from txcore_conformance.sim.bounds import Bounds
from txcore_conformance.sim.cast import GROUP, Cast, Style
from txcore_conformance.sim.checkers import start_checker
from txcore_conformance.sim.database import SimDatabase
from txcore_conformance.sim.excuses import is_excused, is_listed
from txcore_conformance.sim.judgement import judge_all, watch
from txcore_conformance.sim.operators import operate, prune
from txcore_conformance.sim.ordering import is_held_up
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.producers import start_producer, start_stuck_producer
from txcore_conformance.sim.relays import start_relay
from txcore_conformance.sim.surprises import SILENCE_S, plan_surprises, upgrade
from txcore_conformance.sim.world import World

if TYPE_CHECKING:  # it needs SQLAlchemy, which only some seeds use
    from txcore_conformance.sim.real import RealDatabase

REST_MAX_S = 120.0
#: Longest time, in seconds, after the faults end until all but a stuck transaction is decided (L2).
OTHERS_REST_MAX_S = 30.0
STUCK_S = 70.0
REAL_SHARE = 0.05
"""Share of the seeds that run the real SqlFence, message table and inbox."""
TRANSACTION_SHARE = 0.3
"""Share of Kafka's seeds whose releases are transactions of the broker's."""


def _played(profile: Profile) -> Profile:
    """Return *profile* with the times and sizes of a seed, in which much happens within a minute."""
    capabilities = replace(
        profile.capabilities,
        release_time_max_s=1.5,
        half_retention_s=None if profile.capabilities.half_retention_s is None else 40.0,
        op_retention_s=None,
        # One node holds all logs of the strong broker.
        clock_skew_max_s=2.0 if profile in (KAFKA_LIKE, NATS_LIKE, TRANSACTION_LIKE) else 0.0,
        note_size_max=400,
    )
    return replace(profile, capabilities=capabilities)


PROFILES: tuple[Profile, ...] = tuple(map(_played, (STRONG, KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE)))


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed."""

    seed: int
    profile: str
    violations: tuple[str, ...]
    trace: str
    steps: int
    transactions: int
    duplicates: int
    sometimes: Mapping[str, int]


def profile_of(seed: int) -> Profile:
    """Return the profile that a seed plays on."""
    return PROFILES[seed % len(PROFILES)]


def run(seed: int, *, may_be_real: bool = True) -> SeedResult:
    """Play one seed and judge it.

    Args:
        may_be_real: Use the real SqlFence beside its twin, in a share of the seeds; it needs SQLAlchemy.
    """
    cast = _stage(seed, may_be_real=may_be_real)
    world = cast.world
    with cast.bounds.in_force():
        _begin(cast)
        world.run_until(cast.faults_end_s)
        _end_faults(cast)
        if not world.run_until(world.now_s + OTHERS_REST_MAX_S, lambda: _is_at_rest(cast, but_stuck=True)):
            world.break_rule("L2 a stuck transaction holds up others, or they take too long by themselves")
        at_rest = world.run_until(world.now_s + REST_MAX_S, lambda: _is_at_rest(cast))
        if not at_rest:
            world.note("never at rest")
        world.run_until(world.now_s + 6.0)
        world.run_until(world.now_s + REST_MAX_S, lambda: _is_at_rest(cast))  # a frozen operator may resume late
        if ordering.resume_all(cast):
            world.run_until(world.now_s + 20.0)
            world.run_until(world.now_s + REST_MAX_S, lambda: _is_at_rest(cast))
        duplicates = judge_all(cast)
    return SeedResult(
        seed,
        world.broker.profile.name,
        tuple(world.violations),
        world.trace.hexdigest(),
        world.step_count,
        len(cast.truths),
        duplicates,
        dict(world.sometimes),
    )


def _variant(profile: Profile, rng: random.Random) -> Profile:
    """Return *profile*, or for a share of Kafka's seeds the one whose releases are transactions."""
    is_transactional = profile.name == KAFKA_LIKE.name and rng.random() < TRANSACTION_SHARE
    return _played(TRANSACTION_LIKE) if is_transactional else profile


def _stage(seed: int, *, may_be_real: bool) -> Cast:
    """Make the parts of a seed; each kind of event has separate randomness, so that it does not affect the others."""
    surprise_rng = random.Random(f"surprise {seed}")
    profile, silence_at_s = _variant(profile_of(seed), random.Random(f"variant {seed}")), None
    if surprise_rng.random() < 0.04:
        # With a retention under a minute, halves would be lost while no reader reads for a minute.
        capabilities = replace(profile.capabilities, half_retention_s=profile.capabilities.half_retention_s and 300.0)
        profile, silence_at_s = replace(profile, capabilities=capabilities), surprise_rng.uniform(1, 10)
    world = World(seed, profile)
    count = world.rng.choice([1, 1, 2])
    archive = Archive(count)
    is_real = surprise_rng.random() < REAL_SHARE and may_be_real
    cast = Cast(world, SimDatabase(world, real=_real_database() if is_real else None), count, archive)
    world.has_final_op = archive.has_final
    world.broker.ensure_group(GROUP, count)
    watch(cast)
    cast.choose_many(random.Random(f"many {seed}"))
    cast.table_rng = random.Random(f"table {seed}")
    cast.choose_later(random.Random(f"later {seed}"), is_real=is_real)
    cast.mode = cast.table_rng.choices([Mode.HALF, Mode.AUTO, Mode.TABLE], [4, 2, 1])[0]
    cast.surprise_rng = surprise_rng
    owning.choose(cast, random.Random(f"owner {seed}"))
    cast.holders_chance = surprise_rng.choice([0.0, 0.0, 0.0, 0.4])
    if silence_at_s is not None:
        cast.silence_at_s, cast.faults_end_s = silence_at_s, silence_at_s + SILENCE_S + 8.0
    cast.bounds = Bounds.draw(cast.surprise_rng)
    ordering.choose(cast, random.Random(f"order {seed}"))
    return cast


def _real_database() -> RealDatabase:
    from txcore_conformance.sim.real import real_database  # noqa: PLC0415 - it needs SQLAlchemy

    return real_database()


def _begin(cast: Cast) -> None:
    world, rng = cast.world, cast.world.rng
    styles = rng.choice(
        [
            [Style.DATABASE, Style.PRIMITIVE, Style.FENCED_LISTENER],
            [Style.LISTENER],
            list(Style),
        ]
    )
    # Without a fence R6 carries safety, so nothing of a producer may take effect after its horizon.
    world.allows_late = Style.LISTENER not in styles or rng.random() < 0.5
    for _ in range(rng.choice([1, 2, 2])):
        start_producer(cast, styles, rng.choice([2, 4, 6]))
    for _ in range(rng.choice([1, 2, 2])):
        start_checker(cast)
    if cast.has_relays:
        start_producer(cast, [Style.DATABASE, Style.PRIMITIVE], cast.table_rng.choice([6, 12]))
        for _ in range(cast.table_rng.choice([1, 2])):
            start_relay(cast)
        for _ in range(cast.table_rng.choice([0, 1, 3])):
            world.at(cast.table_rng.random() * 25, lambda: _kill_one_of(cast, cast.relays))
    _plan(cast)
    owning.plan_late_decisions(cast)
    ordering.plan(cast)
    plan_surprises(cast)


def _plan(cast: Cast) -> None:
    """Plan events at set times: outages, refusing topics, stuck halves, lost records, kills, operator, pruner."""
    world, rng = cast.world, cast.world.rng

    def between(low_s: float, high_s: float) -> float:
        return low_s + rng.random() * (high_s - low_s)

    if rng.random() < 0.3:
        start_s = between(1, 15)
        world.at(start_s, lambda: _set_down(cast, is_down=True))
        world.at(start_s + between(0.5, 4), lambda: _set_down(cast, is_down=False))
    if rng.random() < 0.3:
        world.at(between(0, 10), lambda: world.broker.refusing.add("t1"))
        world.at(between(12, 25), world.broker.refusing.clear)
    if rng.random() < 0.25:
        world.at(between(2, 12), lambda: _stick(cast))
    if rng.random() < 0.15:
        world.at(between(0, 6), lambda: start_stuck_producer(cast, STUCK_S))
    if rng.random() < 0.3:
        world.at(between(5, 25), cast.database.crash)
    if world.broker.profile.capabilities.fsync_before_ack == "no" and rng.random() < 0.1:
        world.at(between(5, 20), lambda: _lose_tail(cast))
    if rng.random() < 0.06:
        world.at(between(6, 20), lambda: _eat_ops(cast))
    for _ in range(rng.choice([0, 1, 2])):
        world.at(between(5, 28), lambda: operate(cast))
        world.at(between(5, 28), lambda: prune(cast))
    for _ in range(rng.choice([0, 1, 2])):
        world.at(between(3, 25), lambda: _kill_one_of(cast, cast.checkers))


def _set_down(cast: Cast, *, is_down: bool) -> None:
    cast.world.broker.down = is_down
    cast.world.note("broker outage")


def _stick(cast: Cast) -> None:
    """Let the listener of one unfenced transaction answer UNKNOWN; that must not delay the others."""
    for truth in cast.truths.values():
        if not truth.is_fenced:
            truth.is_stuck = True
            cast.world.note("stuck transaction")
            return


def lose_tail(broker: MemoryBroker, group: str, kind: LogKind, partition: int, count: int) -> Sequence[LogRecord]:
    """Forget the last *count* records (a power failure before fsync); their positions are not used again."""
    with broker.lock:
        records = broker.logs[group, kind, partition].records
        lost = records[len(records) - count :] if count else []
        del records[len(records) - len(lost) :]
        for op in (op for record in lost if kind is LogKind.OP for op in ops_in(record)):
            broker.resolved.pop((group, op.transaction_id, op.generation), None)
            broker.finals.pop((group, op.transaction_id), None)
        return lost


def _lose_tail(cast: Cast) -> None:
    """Simulate a power failure: each log loses its last records, and their transactions are not judged."""
    world = cast.world
    for partition in range(cast.partition_count):
        for kind in (LogKind.HALF, LogKind.OP):
            lost = lose_tail(world.broker, GROUP, kind, partition, world.rng.randrange(4))
            cast.archive.lose(kind, partition, len(lost))
            for record in lost:
                cast.lost_tail.update(_ids_in(kind, record))
                cast.strewn = [each for each in cast.strewn if each != (partition, record.body)]
                if cast.newer.get((kind, partition)) == record.position:
                    del cast.newer[kind, partition]
                if kind is LogKind.OP and any(op.kind == OpKind.CLAIM for op in ops_in(record)):
                    cast.lost_claims.add(partition)
                world.note(f"lost tail {kind.value}")


def _eat_ops(cast: Cast) -> None:
    """Let retention delete ops too early; the checker must park the halves that it can no longer judge."""
    world = cast.world
    cast.is_eaten = True
    for partition in range(cast.partition_count):
        records = world.broker.log(GROUP, LogKind.OP, partition)
        if records:
            world.broker.trim(GROUP, LogKind.OP, partition, world.rng.choice(records).position)
        if world.rng.random() < 0.5:
            world.broker.checkpoints.pop((GROUP, partition), None)
    for process in cast.checkers:
        process.kill()


def _ids_in(kind: LogKind, record: LogRecord) -> list[bytes]:
    if kind is LogKind.OP:
        return [op.transaction_id for op in ops_in(record)]
    try:
        return [wire.decode_half(record.body).transaction_id]
    except WireFormatError:
        return []


def _kill_one_of(cast: Cast, processes: Sequence[Process]) -> None:
    alive = [process for process in processes if process.is_alive]
    if alive:
        cast.world.rng.choice(alive).kill()


def _end_faults(cast: Cast) -> None:
    world = cast.world
    world.is_faulty = False
    world.broker.down = False
    world.broker.refusing.clear()
    for truth in cast.truths.values():
        truth.is_stuck = False
    upgrade(cast)
    for process in list(cast.misled):
        process.kill()
    if not any(process.is_alive for process in cast.checkers):
        start_checker(cast, is_immortal=True)
    if cast.has_relays:
        start_relay(cast, is_immortal=True)


def _is_at_rest(cast: Cast, *, but_stuck: bool = False) -> bool:
    return cast.database.table.is_drained() and not any(
        journey.is_pending
        and not (but_stuck and journey.transaction_id in cast.truths and cast.truths[journey.transaction_id].is_long)
        and not (is_excused(cast, journey) or is_listed(cast, journey) or is_held_up(cast, journey))
        for journey in cast.archive.journeys()
    )
