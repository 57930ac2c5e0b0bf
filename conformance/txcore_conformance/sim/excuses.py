"""What cannot be judged by the whole history: the broker lost records, or retention removed ops too early."""

from __future__ import annotations

from txcore import wire
from txcore.history.copies import copies_in, is_proven
from txcore.history.folding import Journeys
from txcore.history.journey import Journey
from txcore.records import LogKind
from txcore_conformance.sim.cast import GROUP, Cast
from txcore_conformance.sim.owning import is_ambiguous


def is_excused(cast: Cast, journey: Journey) -> bool:
    """Return whether the broker lost a record of the transaction, the proof of its copy, or a claim before its ops.

    A reader from the log's beginning ignores the ops of an owner whose claim was lost, and a copy without its proof.
    """
    if journey.partition in cast.lost_claims or journey.transaction_id in cast.lost_tail:
        return True
    if is_ambiguous(cast, journey.transaction_id):
        return True
    copies = (half for half in journey.halves if half.proved_at >= 0) if cast.lost_tail else ()
    return any(wire.proof_of(copy) in cast.lost_tail for copy in copies)


def is_listed(cast: Cast, journey: Journey) -> bool:
    """Return whether retention removed ops too early, and operators find the transaction on the list of parked ones.

    Without the CLAIM before a DISCARD no reader knows that it is void. A copy whose proof is gone is believed by
    none: its bytes are parked under a name of their own.
    """
    if not cast.is_eaten:
        return False
    return any(
        left.is_parked and (journey.transaction_id == left.transaction_id or _holds(left, journey.transaction_id))
        for left in _journeys_left(cast, journey.partition).found.values()
    )


def _holds(left: Journey, identity: bytes) -> bool:
    """Return whether parked bytes are a half of *identity*."""
    return left.inner_half is not None and left.inner_half.transaction_id == identity


def _journeys_left(cast: Cast, partition: int) -> Journeys:
    """Return the journeys in what the broker still has."""
    halves, ops, parked = (cast.world.broker.log(GROUP, kind, partition) for kind in LogKind)
    found, proofs = Journeys(partition), {record.position: record for record in ops}
    for record in halves:
        if all(is_proven(copy, proofs) for copy in copies_in([record])):
            found.read_half(record)
    for record in ops:
        found.read_ops(record)
    for record in parked:
        found.read_parked(record)
    return found
