"""One seed: set the stage, play with faults, let faults end, wait for rest, judge."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from txcore import invariants, wire
from txcore.errors import WireFormatError
from txcore.ids import id_text
from txcore.invariants import Facts, Local, Promises, TargetFact
from txcore.journey import Journey
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Profile
from txcore.records import Checkpoint, LogKind, LogRecord, Op, OpKind, Outcome
from txcore.table import Mode
from txcore_conformance.sim.actors import (
    GROUP,
    Cast,
    Style,
    journeys,
    operate,
    prune,
    start_checker,
    start_producer,
    start_stuck_producer,
)
from txcore_conformance.sim.database import SimDatabase
from txcore_conformance.sim.relays import start_relay
from txcore_conformance.sim.world import Process, World

FAULTS_END_S = 30.0
REST_MAX_S = 120.0
#: Without faults everything but a stuck transaction is decided this long after they ended (L2).
OTHERS_REST_MAX_S = 30.0
STUCK_S = 70.0
PROFILES: tuple[Profile, ...] = tuple(
    replace(
        profile,
        capabilities=replace(
            profile.capabilities,
            release_time_max_s=1.5,
            half_retention_s=None if profile.capabilities.half_retention_s is None else 40.0,
            note_size_max=400,
        ),
    )
    for profile in (STRONG, KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE)
)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """How one seed went."""

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


def run(seed: int) -> SeedResult:
    """Play one seed and judge it."""
    world = World(seed, profile_of(seed))
    rng = world.rng
    cast = Cast(world, SimDatabase(world), rng.choice([1, 1, 2]))
    world.broker.ensure_group(GROUP, cast.partition_count)
    _watch_checkpoints(cast)
    styles = rng.choice(
        [
            [Style.DATABASE, Style.PRIMITIVE, Style.FENCED_LISTENER],
            [Style.LISTENER],
            list(Style),
        ]
    )
    # Without a fence R6 carries safety, so nothing of a producer may take effect after its horizon.
    world.allows_late = Style.LISTENER not in styles or rng.random() < 0.5
    # Drawn apart, so that a seed without the table plays the same history as ever.
    cast.choose_many(random.Random(f"many {seed}"))
    cast.table_rng = random.Random(f"table {seed}")
    cast.mode = cast.table_rng.choices([Mode.HALF, Mode.AUTO, Mode.TABLE], [4, 2, 1])[0]
    for _ in range(rng.choice([1, 2, 2])):
        start_producer(cast, styles, rng.choice([2, 4, 6]))
    for _ in range(rng.choice([1, 2, 2])):
        start_checker(cast)
    if cast.mode is not Mode.HALF:
        start_producer(cast, [Style.DATABASE, Style.PRIMITIVE], cast.table_rng.choice([6, 12]))
        for _ in range(cast.table_rng.choice([1, 2])):
            start_relay(cast)
        for _ in range(cast.table_rng.choice([0, 1, 3])):
            world.at(cast.table_rng.random() * 25, lambda: _kill_one_of(cast, cast.relays))
    _plan(cast)
    world.run_until(FAULTS_END_S)
    _end_faults(cast)
    if not world.run_until(world.now_s + OTHERS_REST_MAX_S, lambda: _is_at_rest(cast, but_stuck=True)):
        world.break_rule("L2 a stuck transaction holds up others, or they take too long by themselves")
    at_rest = world.run_until(world.now_s + REST_MAX_S, lambda: _is_at_rest(cast))
    if not at_rest:
        world.note("never at rest")
    world.run_until(world.now_s + 6.0)
    world.run_until(world.now_s + REST_MAX_S, lambda: _is_at_rest(cast))  # who was frozen may have resumed one
    duplicates = _judge(cast)
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


def _plan(cast: Cast) -> None:
    """Things that happen at set times: outages, refusing topics, stuck halves, poison, the operator, the pruner."""
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
    if rng.random() < 0.1:
        world.at(between(1, 10), lambda: _poison(cast))
    if rng.random() < 0.3:
        world.at(between(5, 25), cast.database.crash)
    if world.broker.profile.capabilities.fsync_before_ack == "no" and rng.random() < 0.1:
        world.at(between(5, 20), lambda: _lose_tail(cast))
    if rng.random() < 0.04:
        world.at(between(6, 20), lambda: _eat_ops(cast))
    for _ in range(rng.choice([0, 1, 2])):
        world.at(between(5, 28), lambda: operate(cast))
        world.at(between(5, 28), lambda: prune(cast))
    for _ in range(rng.choice([0, 1, 2])):
        world.at(between(3, 25), lambda: _kill_one_of(cast, cast.checkers))


def _set_down(cast: Cast, *, is_down: bool) -> None:
    cast.world.broker.down = is_down
    cast.world.note("broker outage")
    if is_down:
        for truth in cast.truths.values():
            cast.world.causes[truth.core.transaction_id] += 1


def _stick(cast: Cast) -> None:
    """One unfenced transaction whose listener keeps saying UNKNOWN; it must not hold up the others."""
    for truth in cast.truths.values():
        if not truth.is_fenced:
            truth.is_stuck = True
            cast.world.note("stuck transaction")
            return


def _poison(cast: Cast) -> None:
    cast.world.broker.append(GROUP, LogKind.HALF, 0, b"\xff no half")


def _lose_tail(cast: Cast) -> None:
    """A power failure: each log loses what was not synced; nothing can be said of the transactions in it."""
    world = cast.world
    for partition in range(cast.partition_count):
        for kind in (LogKind.HALF, LogKind.OP):
            lost = world.broker.lose_tail(GROUP, kind, partition, world.rng.randrange(4))
            kept = cast.archive.get((kind, partition), [])
            del kept[len(kept) - len(lost) :]
            for record in lost:
                cast.lost_tail.update(_ids_in(kind, record))
                if kind is LogKind.OP and any(op.kind == OpKind.CLAIM for op in wire.decode_ops(record.body)):
                    cast.lost_claims.add(partition)
                world.note(f"lost tail {kind.value}")


def _is_judgeable(cast: Cast) -> bool:
    return not cast.lost_tail and not cast.is_eaten


def _eat_ops(cast: Cast) -> None:
    """Retention eats the op log too early; the checker must park what it can no longer judge, not guess."""
    world = cast.world
    cast.is_eaten = True
    for partition in range(cast.partition_count):
        records = world.broker.log(GROUP, LogKind.OP, partition)
        if records:
            world.broker.trim(GROUP, LogKind.OP, partition, world.rng.choice(records).position)
    for process in cast.checkers:
        process.kill()


def _ids_in(kind: LogKind, record: LogRecord) -> list[bytes]:
    if kind is LogKind.OP:
        return [op.transaction_id for op in wire.decode_ops(record.body)]
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
    if not any(process.is_alive for process in cast.checkers):
        start_checker(cast, is_immortal=True)
    if cast.mode is not Mode.HALF:
        start_relay(cast, is_immortal=True)


def _is_at_rest(cast: Cast, *, but_stuck: bool = False) -> bool:
    return cast.database.table.is_drained() and not any(
        journey.is_pending
        and not (but_stuck and journey.transaction_id in cast.truths and cast.truths[journey.transaction_id].is_long)
        and journey.transaction_id not in cast.lost_tail
        and journey.partition not in cast.lost_claims
        for journey in journeys(cast).values()
    )


def _watch_checkpoints(cast: Cast) -> None:
    """Judge every checkpoint where it is written, against what its writer had read back by then (S11, R12)."""
    world = cast.world
    broker = world.broker
    is_unique = broker.profile.capabilities.resolution_is_unique
    store = broker.store_checkpoint

    def judged_store(group: str, partition: int, checkpoint: Checkpoint) -> None:
        text = invariants.judge_checkpoint(
            checkpoint, cast.archive.get((LogKind.HALF, partition), ()), cast.archive.get((LogKind.OP, partition), ())
        )
        if text and _is_judgeable(cast):
            world.break_rule(f"S11 {text}")
        store(group, partition, checkpoint)

    def judged_send(member: str, partition: int, checkpoint: Checkpoint) -> None:
        for process, membership in cast.memberships:
            owner = membership.owners.get(partition)
            if process.name == member and owner is not None and not is_unique and _is_judgeable(cast):
                read = owner.tenure.state.op_read or -1
                prefix = [record for record in cast.archive.get((LogKind.OP, partition), ()) if record.position <= read]
                text = invariants.judge_checkpoint(checkpoint, cast.archive.get((LogKind.HALF, partition), ()), prefix)
                if text:
                    world.break_rule(f"S11 {member} had not read back what its checkpoint passes: {text}")

    append, append_ops = broker.append, broker.append_ops

    def kept_append(group: str, kind: LogKind, partition: int, body: bytes) -> Outcome:
        outcome = append(group, kind, partition, body)
        cast.archive.setdefault((kind, partition), []).append(broker.log(group, kind, partition)[-1])
        return outcome

    def timed_append(group: str, partition: int, ops: Sequence[Op]) -> Outcome:
        for op in ops:
            if op.kind == OpKind.DISCARD:
                cast.discarded_ms[op.transaction_id] = broker.clock.wall_ms()
        return append_ops(group, partition, ops)

    broker.append = kept_append  # type: ignore[method-assign]
    broker.append_ops = timed_append  # type: ignore[method-assign]
    broker.store_checkpoint = judged_store  # type: ignore[method-assign]
    broker.faults.checkpoint_sent = judged_send  # type: ignore[method-assign]


def _judge(cast: Cast) -> int:
    """Judge every transaction; returns how many duplicate deliveries there were."""
    world = cast.world
    capabilities = world.broker.profile.capabilities
    promises = Promises(capabilities.atomic_release, capabilities.resolution_is_unique)
    targets = _targets(cast)
    claims = _claims_before_end(cast)
    duplicates = 0
    found = journeys(cast)
    for identity, truth in cast.truths.items():
        journey = found.get(identity)
        if journey is None:
            journey = Journey(identity, truth.core.partition)
        is_committed = cast.is_committed(truth)
        delivered = targets.pop(identity, [])
        discarded_ms = cast.discarded_ms.get(identity, 0)
        before = sum((target.appended_ms or 0) <= discarded_ms for target in delivered)
        facts = Facts(
            journey,
            delivered,
            Local.COMMITTED if is_committed else Local.ROLLED_BACK,
            is_acknowledged=is_committed,
            duplicate_causes=None if cast.is_eaten else world.causes[identity] + claims.get(identity, 0),
            # Whoever reads the log from its beginning takes all that an owner with a lost claim wrote for stale.
            is_excused=identity in cast.lost_tail or truth.core.partition in cast.lost_claims,
            late_releases=world.late[identity] + before,
            unknown_answers=None if truth.is_fenced else truth.unknown_answers,
            has_contrary_caller=truth.has_contrary_caller,
            is_via_table=identity in cast.database.via_table,
            messages=truth.core.messages,
            in_table=cast.database.table.holds(identity),
        )
        if facts.is_via_table and journey.halves and journey.final:
            world.note("half of a fallback closed")
        duplicates += max(len(facts.targets) - len({target.index for target in facts.targets}), 0)
        is_ignored = cast.resumed.get(identity, -1) > journey.discarded_generation
        if journey.is_parked and is_ignored and not facts.is_excused:
            world.break_rule(f"L1 {id_text(identity)} was resumed, but nobody took it up")
        world.violations.extend(str(violation) for violation in invariants.judge(facts, promises, at_rest=True))
    for identity in targets:
        if identity not in cast.lost_tail:
            world.break_rule(f"S5 targets of an unknown transaction {identity.hex()}")
    _judge_owners(cast)
    for text in cast.database.table.disorder(_first_places(cast)):
        world.break_rule(f"S12 {text}")
    return duplicates


def _first_places(cast: Cast) -> dict[tuple[bytes, int], int]:
    """Return where the first copy of each message stands in its topic."""
    places: dict[tuple[bytes, int], int] = {}
    for identity, targets in _targets(cast).items():
        for target in targets:
            key = (identity, target.index)
            places[key] = min(places.get(key, target.position), target.position)
    return places


def _targets(cast: Cast) -> dict[bytes, list[TargetFact]]:
    found: dict[bytes, list[TargetFact]] = {}
    for topic, messages in cast.world.broker.topics.items():
        for message in messages:
            name = str(message.headers[wire.HEADER_ID])
            text, _, index = name.rpartition(":")
            identity = bytes.fromhex(text.replace("-", ""))
            found.setdefault(identity, []).append(
                TargetFact(
                    int(index),
                    topic,
                    message.key,
                    message.body,
                    dict(message.headers),
                    message.position,
                    message.appended_ms,
                )
            )
    return found


def _claims_before_end(cast: Cast) -> dict[bytes, int]:
    """Count, per transaction, the takeovers before its first final op: each may repeat what was in hand."""
    counts: dict[bytes, int] = {}
    for partition in range(cast.partition_count):
        claims = 0
        undecided: Counter[bytes] = Counter()
        for record in cast.archive.get((LogKind.OP, partition), ()):
            for op in wire.decode_ops(record.body):
                if op.kind == OpKind.CLAIM:
                    claims += 1
                elif op.kind in {OpKind.COMMIT, OpKind.ROLLBACK} and op.transaction_id not in counts:
                    counts[op.transaction_id] = claims
                undecided[op.transaction_id] = claims
        for identity, number in undecided.items():
            counts.setdefault(identity, number)
    return counts


def _judge_owners(cast: Cast) -> None:
    """What each living owner took for an end must be the first final op in the log."""
    finals = {identity: journey for identity, journey in journeys(cast).items() if journey.final}
    for process, membership in cast.memberships:
        if not process.is_alive:
            continue
        for owner in membership.owners.values():
            for identity, kind in owner.tenure.state.closings():
                journey = finals.get(identity)
                first = next((op.kind for _, op in journey.ops if op.kind in {1, 2}), 0) if journey else 0
                if first and kind in {OpKind.COMMIT, OpKind.ROLLBACK} and kind != first and _is_judgeable(cast):
                    cast.world.break_rule(f"S1 {process.name} takes {identity.hex()} for {OpKind(kind).name}")
