"""The judgement of every checkpoint when it is written, and of every transaction after all processes are at rest."""

from __future__ import annotations

from collections.abc import Sequence

from txcore import wire
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.op_rules import outcome_of
from txcore.records import (
    DECIDING_KINDS,
    FINAL_KINDS,
    Checkpoint,
    Forced,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    ParkCode,
    is_in_force,
)
from txcore_conformance import invariants
from txcore_conformance.invariants import Facts, Local, Promises, TargetFact
from txcore_conformance.sim.cast import CHECK_INTERVAL_S, Cast, Style, Truth, journeys
from txcore_conformance.sim.excuses import is_excused, is_listed
from txcore_conformance.sim.ordering import is_held_up, judge_order


def is_judgeable(cast: Cast) -> bool:
    """Return whether the logs still hold all that was acknowledged."""
    return not cast.lost_tail and not cast.is_eaten


def watch(cast: Cast) -> None:
    """Archive all stored records, count takeovers as causes, judge checkpoints when they are written (S11, R12)."""
    broker = cast.world.broker
    append, append_ops = broker.append, broker.append_ops

    def kept_append(group: str, kind: LogKind, partition: int, body: bytes) -> Outcome:
        outcome = append(group, kind, partition, body)
        record = broker.logs[group, kind, partition].records[-1]  # `log` copies all of it
        for op in cast.archive.add(kind, partition, record):
            if op.kind == OpKind.CLAIM:
                _count_takeover(cast, partition)
            elif op.kind in {OpKind.CHECKED, OpKind.NUDGE}:
                _judge_question(cast, op)
        if kind is LogKind.HALF:
            _judge_copy(cast, partition, record)
        return outcome

    def timed_append(group: str, partition: int, ops: Sequence[Op]) -> Outcome:
        for op in ops:
            if op.kind == OpKind.DISCARD:
                cast.discarded_ms[op.transaction_id] = broker.clock.wall_ms()
        return append_ops(group, partition, ops)

    def judged_send(member: str, partition: int, checkpoint: Checkpoint) -> None:
        _judge_checkpoint(cast, member, partition, checkpoint)

    broker.append = kept_append  # type: ignore[method-assign]
    broker.append_ops = timed_append  # type: ignore[method-assign]
    broker.faults.checkpoint_sent = judged_send  # type: ignore[method-assign]


def _count_takeover(cast: Cast, partition: int) -> None:
    """Count a cause for each transaction that is pending at a takeover: a takeover may repeat no other."""
    for journey in cast.archive.journeys_of(partition):
        if journey.is_pending:
            cast.world.causes[journey.transaction_id] += 1


def _judge_question(cast: Cast, op: Op) -> None:
    """Require an interval between two answers that count, also where the partition changed hands between them (R10).

    A NUDGE asks for an early question. Times are those of the writers' wall clocks, so that no seed is judged in which
    one was set.
    """
    journey = cast.archive.journey(op.transaction_id)
    if op.kind == OpKind.NUDGE:
        cast.checked.pop(op.transaction_id, None)
    elif journey is not None and is_in_force(op, journey.token_before):
        last = cast.checked.get(op.transaction_id, op)
        cast.checked[op.transaction_id] = op
        is_repeated = op.generation == last.generation and op.count > last.count
        interval_ms = min(
            (half.interval_ms for half in journey.halves if half.interval_ms), default=1000 * CHECK_INTERVAL_S
        )
        is_sooner = 0 <= op.at_ms - last.at_ms < interval_ms and not cast.world.sometimes["clock jump"]
        if is_repeated and is_sooner and is_judgeable(cast):
            text = f"asked again {op.at_ms - last.at_ms} ms after an answer"
            cast.world.break_rule(f"R10 the listener of {id_text(op.transaction_id)} was {text}")


def _judge_copy(cast: Cast, partition: int, record: LogRecord) -> None:
    """Require that a copy is folded up to a place before its half's end, so that its reader finds the end (R8)."""
    half = cast.archive.newest_half(partition)
    if half is None or half[0] != record.position:
        return
    cast.checked.pop(half[1].transaction_id, None)  # A copy keeps the count, but not when it was counted.
    if half[1].folded_to < 0 or not is_judgeable(cast):
        return
    journey = cast.archive.journey(half[1].transaction_id)
    if journey is None:
        return
    for position, op in journey.ops:
        is_void = op.kind == OpKind.ROLLBACK and 0 <= journey.committed_at <= position
        if op.kind in FINAL_KINDS and not is_void and position <= half[1].folded_to:
            cast.world.break_rule(f"R8 a copy of {id_text(op.transaction_id)} is folded past its end at op {position}")


def _judge_checkpoint(cast: Cast, member: str, partition: int, checkpoint: Checkpoint) -> None:
    """Judge a checkpoint by the records that its writer has read back; if it holds for those, it holds for ever.

    If resolutions are unique the store's answer may replace the reading, so the whole log counts.
    """
    if not is_judgeable(cast):
        return
    is_unique = cast.world.broker.profile.capabilities.resolution_is_unique
    read = None
    for process, membership in cast.memberships:
        owner = membership.owners.get(partition)
        if process.name == member and owner is not None:
            for name in cast.bounds.passed(owner.tenure.state):
                cast.world.note(name)
            if not is_unique:
                read = owner.tenure.state.op_read or -1
    for kind, bound in ((LogKind.HALF, checkpoint.half), (LogKind.OP, checkpoint.op)):
        if not cast.is_upgraded and bound is not None and bound > cast.newer.get((kind, partition), bound):
            cast.world.break_rule(f"S11 {member} wrote a checkpoint that passes a newer record")
    text = cast.archive.judge_checkpoint(partition, checkpoint, read)
    if text:
        cast.world.break_rule(f"S11 {member} had not read back what its checkpoint passes: {text}")


def judge_all(cast: Cast) -> int:
    """Judge every transaction, and return the number of duplicate deliveries."""
    world = cast.world
    capabilities = world.broker.profile.capabilities
    promises = Promises(capabilities.atomic_release, capabilities.resolution_is_unique)
    targets = targets_of(cast)
    duplicates = 0
    found = journeys(cast)
    for identity, truth in cast.truths.items():
        journey = found.get(identity)
        if journey is None:
            journey = Journey(truth.core.transaction_id, truth.core.partition)
        is_committed = cast.is_committed(truth)
        delivered = targets.pop(identity, [])
        discarded_ms = cast.discarded_ms.get(identity, 0)
        before = sum((target.appended_ms or 0) <= discarded_ms for target in delivered)
        facts = Facts(
            journey,
            delivered,
            Local.COMMITTED if is_committed else Local.ROLLED_BACK,
            is_acknowledged=is_committed,
            duplicate_causes=_causes(cast, truth, journey),
            is_excused=is_excused(cast, journey),
            late_releases=world.late[identity] + before,
            unknown_answers=None if truth.is_fenced else truth.unknown_answers,
            has_contrary_caller=truth.has_contrary_caller,
            is_via_table=identity in cast.database.via_table,
            messages=truth.core.messages,
            in_table=cast.database.table.holds(identity),
            digest=cast.database.digests.get(identity, b"") if is_committed else b"",
            dues_ms=truth.dues_ms,
            cancelled=frozenset(truth.dues_ms) if identity in cast.database.cancelled else frozenset(),
        )
        if facts.cancelled and truth.has_been_late:
            world.break_rule(f"S13 {id_text(identity)} was cancelled, although a cancel was answered TOO_LATE")
        if facts.is_via_table and journey.halves and journey.final:
            world.note("half of a fallback closed")
        if any(op.forced == Forced.OVERRIDE for _, op in journey.ops):  # no operator of a seed overrides the fence
            world.break_rule(f"S4 {id_text(identity)} was decided against the fence, although not requested")
        duplicates += max(len(facts.targets) - len({target.index for target in facts.targets}), 0)
        is_ignored = cast.resumed.get(identity, -1) > journey.discarded_generation
        if journey.is_parked and is_ignored and not facts.is_excused:
            world.break_rule(f"L1 {id_text(identity)} was resumed, but no checker took it up")
        is_on_list = journey.is_pending and (is_listed(cast, journey) or is_held_up(cast, journey))
        world.violations.extend(str(each) for each in invariants.judge(facts, promises, at_rest=not is_on_list))
    for identity in targets:
        if identity not in cast.lost_tail:
            world.break_rule(f"S5 targets of an unknown transaction {identity.hex()}")
    _judge_owners(cast)
    _judge_gaps(cast)
    _judge_strewn(cast)
    _judge_inbox(cast)
    places = _first_places(cast)
    for text in cast.database.table.disorder(places):
        world.break_rule(f"S12 {text}")
    judge_order(cast, places)
    return duplicates


def _first_places(cast: Cast) -> dict[tuple[bytes, int], int]:
    """Return the place of the first copy of each message in its topic."""
    places: dict[tuple[bytes, int], int] = {}
    for identity, targets in targets_of(cast).items():
        for target in targets:
            key = (identity, target.index)
            places[key] = min(places.get(key, target.position), target.position)
    return places


def _causes(cast: Cast, truth: Truth, journey: Journey) -> int | None:
    """Return how many causes of duplicates the history holds; None where they cannot be counted."""
    if _may_be_asked_again(cast, truth, journey):
        return None
    half = journey.half
    is_via_table = journey.transaction_id in cast.database.via_table
    is_atomic = cast.world.broker.profile.capabilities.atomic_release
    if half is not None and half.is_by_owner and is_atomic and not is_via_table:
        cast.world.note("owner's atomic release")
        return 0
    # A fenced half's immunity has no allowance for differing clocks: a check may run while its producer works.
    is_early = truth.is_fenced and cast.world.broker.faults.half_skew_ms != 0
    return cast.world.causes[journey.transaction_id] + is_early


def _may_be_asked_again(cast: Cast, truth: Truth, journey: Journey) -> bool:
    """Return whether ops were deleted and the half is decided without them: by its fence, or from a copy.

    The checker parks every other half because of the gap, so it is not delivered a second time.
    """
    is_copied = any(half.generation or half.folded_to >= 0 for half in journey.halves)
    return cast.is_eaten and (truth.is_fenced or is_copied)


def targets_of(cast: Cast) -> dict[bytes, list[TargetFact]]:
    """Return the targets in the target topics, by transaction."""
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


def _judge_owners(cast: Cast) -> None:
    """Require that each end that a living owner has read is the first final op in the log."""
    finals = {identity: journey for identity, journey in journeys(cast).items() if journey.final}
    for process, membership in cast.memberships:
        if not process.is_alive:
            continue
        for owner in membership.owners.values():
            for identity, kind in owner.tenure.state.closings():
                journey = finals.get(identity)
                first = next((op.kind for _, op in journey.ops if op.kind in DECIDING_KINDS), 0) if journey else 0
                is_other = kind in {OpKind.COMMIT, OpKind.ROLLBACK} and kind != outcome_of(first)
                if first and is_other and is_judgeable(cast):
                    cast.world.break_rule(f"S1 {process.name} takes {identity.hex()} for {OpKind(kind).name}")


def _judge_gaps(cast: Cast) -> None:
    """Require that no gap parks a half that its fence decides: the fence knows how it ended."""
    for partition in range(cast.partition_count):
        for record in cast.archive.records(LogKind.PARKED, partition):
            parked = wire.decode_parked(record.body)
            truth = cast.truths.get(parked.transaction_id)
            # A listener's half may lack its row, so the fence alone does not decide it.
            is_fenced = truth is not None and truth.style in {Style.DATABASE, Style.PRIMITIVE}
            # One that held its order key up is parked a second time.
            if parked.code == ParkCode.COVERAGE_GAP and is_fenced and not (truth and truth.core.order_key):
                cast.world.break_rule(f"R12 {id_text(parked.transaction_id)} is fenced, and was parked for a gap")


def _judge_strewn(cast: Cast) -> None:
    """Require that each record of a half log that is not a half is parked with its bytes."""
    if not is_judgeable(cast):
        return
    for partition, body in cast.strewn:
        parked = [wire.decode_parked(record.body) for record in cast.archive.records(LogKind.PARKED, partition)]
        if all(each.half != body for each in parked):
            cast.world.break_rule(f"S8 {len(body)} strange bytes of a half log were never parked")


def _judge_inbox(cast: Cast) -> None:
    """Require that a consumer with the real inbox applies each message once, however often it was delivered."""
    real = cast.database.real
    if real is None:
        return
    headers = [message.headers for messages in cast.world.broker.topics.values() for message in messages]
    wanted = len({each[wire.HEADER_ID] for each in headers})
    effects = real.receive(headers, cast.surprise_rng)
    if effects != wanted:
        cast.world.break_rule(f"S6 {wanted} messages had {effects} effects after the inbox")
    if len(headers) > wanted:
        cast.world.note("inbox saw duplicates")
