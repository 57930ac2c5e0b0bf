"""The entries of an operator's lists: the pending halves and the parked ones."""

from __future__ import annotations

from dataclasses import dataclass

from txcore.history.journey import Journey, topics_of
from txcore.ids import TransactionId
from txcore.operator.selection import topics_in


@dataclass(frozen=True, slots=True)
class PendingHalf:
    """An undecided half.

    Attributes:
        born_ms: The producer's wall clock, in milliseconds, when the half was made.
        check_times: Number of answered checks.
        newer_version: Wire version of a half that a newer txcore wrote, else 0. This txcore knows nothing else of such
            a half, whose partition waits for an upgraded checker.
    """

    transaction_id: TransactionId
    partition: int
    generation: int
    born_ms: int
    check_times: int
    topics: tuple[str, ...]
    newer_version: int = 0


@dataclass(frozen=True, slots=True)
class ParkedHalf:
    """A discarded half.

    Attributes:
        code, reason: Why the checker parked it, as a `ParkCode` and as a sentence.
        parked_ms: The checker's wall clock, in milliseconds, when it parked the half.
        check_times: Number of answered checks.
        missing: Indexes of the targets that were not published.
    """

    transaction_id: TransactionId
    partition: int
    generation: int
    code: str
    reason: str
    parked_ms: int
    check_times: int
    topics: tuple[str, ...]
    missing: tuple[int, ...]


def pending_half(journey: Journey) -> PendingHalf:
    """Return the list's entry for a pending journey."""
    half = journey.half
    topics = topics_of(half) if half is not None else ()
    version = journey.newer_version if journey.is_newer else 0
    return PendingHalf(
        journey.transaction_id, journey.partition, journey.generation, journey.born_ms, journey.count, topics, version
    )


def parked_half(journey: Journey) -> ParkedHalf:
    """Return the list's entry for a parked journey that has a parked record."""
    parked = journey.parked[-1]
    return ParkedHalf(
        journey.transaction_id,
        journey.partition,
        parked.generation,
        parked.code,
        parked.reason,
        parked.at_ms,
        parked.count,
        topics_in(journey),
        tuple(parked.missing),
    )
