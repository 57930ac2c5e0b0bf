"""The half that resumes a parked transaction: the same id, the next generation (R11)."""

from __future__ import annotations

import msgspec

from txcore import wire
from txcore.errors import NewerRecordError, TransactionStateError, WireFormatError
from txcore.history.journey import Journey, why_no_half
from txcore.history.parked_entries import STRANGE_CODES, half_in
from txcore.ids import TransactionId, id_text, known_id
from txcore.records import REASON_SIZE_MAX, Half, ParkCode


def next_generation(journey: Journey, by: str, reason: str) -> Half:
    """Return the copy to append for a resume: the same id, one generation on, a fresh check budget.

    It has no proof yet. A half that no checker could read when it was parked keeps its immunity: its producer may still
    be at work.

    Raises:
        TransactionStateError: there is no half to resume, or the new record would not be readable; says why.
    """
    entry = journey.parked[-1] if journey.parked else None
    half = _parked_half(journey) or journey.any_half
    if half is None or journey.is_newer:
        raise TransactionStateError(f"{id_text(journey.transaction_id)} cannot be resumed: {why_no_half(journey)}")
    was_unread = entry is not None and entry.code in {*STRANGE_CODES, ParkCode.NEWER}
    decided, forced = journey.journaled or journey.copied_decision, journey.decided_by
    if not decided and half.decided:
        decided, forced = half.decided, half.forced  # in what was parked; the logs no longer show it
    generation = max(journey.discarded_generation, journey.closed_generation, journey.generation, half.generation) + 1
    known = (half, *journey.halves)
    copy = msgspec.structs.replace(
        half,
        generation=generation,
        immunity_ms=half.immunity_ms if was_unread else 0,
        first_appended_ms=0,
        age_ms=0,
        count=0,
        folded_to=journey.ops[-1][0] if journey.ops else -1,
        decided=decided,
        forced=forced if decided else 0,
        proved_at=-1,
        token=journey.token_before,
        reason=f"{by}: {reason}"[:REASON_SIZE_MAX],
        missing=list(entry.missing) if entry is not None else half.missing,
        final_at=journey.committed_at,
        first_position=min((each.first_position for each in known if each.first_position >= 0), default=-1),
        held_at=-1,
        version=max(half.version, wire.OWNER_VERSION if journey.committed_at >= 0 else wire.VERSION),
    )
    try:
        wire.decode_half(wire.encode_half(copy))  # a record that its reader refuses would only be parked again
    except WireFormatError as error:
        raise TransactionStateError(f"{id_text(journey.transaction_id)} cannot be resumed: {error}") from error
    return copy


def _parked_half(journey: Journey) -> Half | None:
    """Return the half as it was parked: the half log may hold forged records of it by now."""
    entry = journey.parked[-1] if journey.parked else None
    half = half_in(entry) if entry is not None and entry.code not in STRANGE_CODES else None
    return half if half is not None and half.transaction_id == journey.transaction_id else None


def next_of_inner(poison: Journey, own: Journey | None, by: str, reason: str) -> Half | None:
    """Return the copy to append for a resume of the half inside *poison*; None where that is under way or finished.

    Args:
        own: The journey of the half under its own id; None where the logs hold nothing.

    Raises:
        TransactionStateError: *poison* holds no half.
    """
    half = poison.inner_half
    if half is None:
        raise TransactionStateError(f"{id_text(poison.transaction_id)} cannot be resumed: {why_no_half(poison)}")
    journey = own or Journey(known_id(half.transaction_id), poison.partition, poison.group)
    if journey.final or journey.generation > half.generation:
        return None
    if not journey.halves:
        journey.add_half(half, None)
    if not journey.parked:
        journey.add_parked(poison.parked[-1])
    # Its entry's DISCARD has closed this generation; the ops before it are those that were read.
    journey.discarded_generation = max(journey.discarded_generation, half.generation)
    journey.ops = max(journey.ops, poison.ops, key=lambda ops: ops[-1][0] if ops else -1)
    return next_generation(journey, by, reason)


def resumable_id(journey: Journey) -> TransactionId:
    """Return the id under which a parked transaction may resume: poison may hold a half, perhaps of a newer txcore."""
    if journey.is_poison:
        try:
            return known_id(wire.decode_head(journey.parked[-1].half).transaction_id)
        except NewerRecordError as newer:
            return newer.transaction_id or journey.transaction_id
        except WireFormatError:
            pass
    return journey.transaction_id
