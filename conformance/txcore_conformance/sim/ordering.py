"""Order keys: the producers that use them, and the judgement of the order of what was published (R18)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Final

from txcore import wire
from txcore.checker.limits import OrderOnPark
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.message_table import Mode
from txcore.op_rules import is_discard_in_force
from txcore.producer.transaction import LocalTransaction
from txcore.records import LogKind, OpKind, ParkCode, ReleaseBy
from txcore_conformance.order import Copy, FirstRecord, disorder, first_records
from txcore_conformance.refine.whole import halves_in
from txcore_conformance.sim.archive import ops_in
from txcore_conformance.sim.cast import Cast
from txcore_conformance.sim.checkers import start_checker
from txcore_conformance.sim.excuses import is_excused, is_listed
from txcore_conformance.sim.operators import operate

ORDER_KEYS: Final = (b"o0", b"o1", b"o2")


def choose(cast: Cast, rng: random.Random) -> None:
    """Let some seeds order the halves that owners release: all of them, or some; with more of what may disturb it."""
    cast.order_rng, cast.order_chance = rng, rng.choice([0.0, 0.6, 1.0]) if cast.owner_chance else 0.0
    if not cast.order_chance:
        return
    cast.order_keys = ORDER_KEYS[: rng.choice([1, 1, 2, 3])]
    limits = cast.bounds.limits
    limits.order_on_park = rng.choices(list(OrderOnPark), [4, 1])[0]
    limits.replay_max = rng.choice([limits.replay_max, 1])
    limits.refusals_max = rng.choice([limits.refusals_max, 1])


def plan(cast: Cast) -> None:
    """Let a topic refuse, so that halves are parked, and let checkers die while others of their order keys wait."""
    world, rng = cast.world, cast.order_rng
    if not cast.order_chance:
        return
    start_s = rng.uniform(2, 12)
    if rng.random() < 0.5:
        topic = rng.choice(["t0", "t1", "t2"])
        world.at(start_s, lambda: world.broker.refusing.add(topic))
        world.at(start_s + rng.uniform(1, 8), lambda: world.broker.refusing.discard(topic))
    for _ in range(rng.choice([0, 1, 3])):
        world.at(rng.uniform(start_s, 26), lambda: _kill_checkers(cast))


def _kill_checkers(cast: Cast) -> None:
    for process in cast.checkers:
        process.kill()


def resume_all(cast: Cast) -> bool:
    """Replace all checkers, and let an operator resume every ordered half that is parked; returns whether one was."""
    parked = [identity for identity in first_positions(cast) if _is_parked(cast, identity)]
    if not parked:
        return False
    cast.world.note("ordered halves resumed at last")
    _kill_checkers(cast)
    start_checker(cast, is_immortal=True)
    cast.world.at(15.0, lambda: operate(cast, share=1.0))
    return True


def order_key_of(cast: Cast, core: LocalTransaction) -> bytes | None:
    """Return the order key of the messages of a new transaction; None for none."""
    context = core.context
    can_be = context.release is ReleaseBy.OWNER and context.mode is Mode.HALF
    if not (can_be and cast.order_chance and cast.order_rng.random() < cast.order_chance):
        return None
    cast.world.note("ordered transaction")
    return cast.order_rng.choice(cast.order_keys)


def first_positions(cast: Cast) -> dict[bytes, FirstRecord]:
    """Return the first record of each half with an order key."""
    found: dict[bytes, FirstRecord] = {}
    for partition in range(cast.partition_count):
        halves = halves_in(cast.archive.records(LogKind.HALF, partition))
        records = first_records(partition, halves)
        found |= {identity: record for identity, record in records.items() if identity in cast.truths}
    return found


def is_held_up(cast: Cast, journey: Journey) -> bool:
    """Return whether a half of the same order key comes before a half, and is parked, or was lost from the log's end.

    An owner that has read the latter tries to release it as long as it lives.
    """
    truth = cast.truths.get(journey.transaction_id)
    if truth is None or not truth.core.order_key:
        return False
    lost = (cast.truths[identity].core.order_key for identity in cast.lost_tail if identity in cast.truths)
    if truth.core.order_key in lost:
        return True
    if cast.bounds.limits.order_on_park is OrderOnPark.SKIP:
        return False
    records = first_positions(cast)
    own = records.get(journey.transaction_id)
    return own is not None and any(
        record[:2] == own[:2] and record.position < own.position and _is_parked(cast, identity)
        for identity, record in records.items()
    )


def _is_parked(cast: Cast, identity: bytes) -> bool:
    journey = cast.archive.journey(identity)
    return journey is not None and (journey.is_parked or is_listed(cast, journey) or is_excused(cast, journey))


def judge_order(cast: Cast, places: Mapping[tuple[bytes, int], int]) -> None:
    """Require that first copies of an order key are published in the order in which its halves were stored.

    Args:
        places: The place of the first copy of each message in its topic, by transaction and index.
    """
    ordered = first_positions(cast)
    for identity in ordered:
        _judge_parked(cast, identity)
    if cast.lost_tail or cast.is_eaten or not ordered:
        return
    for identity in _lost(cast):
        ordered.pop(identity, None)
    if cast.bounds.limits.order_on_park is OrderOnPark.SKIP:
        ordered = {identity: record for identity, record in ordered.items() if identity not in cast.discarded_ms}
    copies = [
        Copy(identity, index, (cast.truths[identity].core.messages[index].topic, None), place)
        for (identity, index), place in places.items()
        if identity in ordered
    ]
    if copies:
        cast.world.note("published in order")
    for identity, text in disorder(ordered, copies):
        cast.world.break_rule(f"S12 {id_text(identity)} was {text}")


def _lost(cast: Cast) -> Iterator[bytes]:
    """Yield the halves that were parked as LOST: retention had removed them, and they hold no order key up."""
    for partition in range(cast.partition_count):
        for record in cast.archive.records(LogKind.PARKED, partition):
            parked = wire.decode_parked(record.body)
            if parked.code == ParkCode.LOST:
                yield parked.transaction_id


def _judge_parked(cast: Cast, identity: bytes) -> None:
    """Require that no later owner judges a half that is parked, before it was resumed."""
    journey = cast.archive.journey(identity)
    if journey is None or cast.lost_tail or cast.is_eaten:
        return
    token, parked_at, parked_under, is_decided = b"", -1, b"", False
    for record in cast.archive.records(LogKind.OP, journey.partition):
        for op in ops_in(record):
            if op.kind == OpKind.CLAIM:
                token = op.token
            if op.transaction_id != identity or not op.token or op.token != token:
                is_decided = is_decided or (op.transaction_id == identity and op.kind == OpKind.COMMITTED)
                continue
            if op.kind == OpKind.DISCARD:
                if is_discard_in_force(op, is_decided=is_decided):
                    parked_at, parked_under = max(parked_at, op.generation), token
            elif op.generation <= parked_at and token != parked_under and op.kind != OpKind.FORCE:
                cast.world.break_rule(f"S12 {id_text(identity)} was parked, and {OpKind(op.kind).name} came after it")
            is_decided = is_decided or op.kind in {OpKind.COMMITTED, OpKind.DECIDED}
