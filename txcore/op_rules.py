"""The meaning of an op beside others: the end that it says, the one that it excludes, the request that it answers."""

from __future__ import annotations

import msgspec

from txcore.records import COUNT_MAX, FINAL_KINDS, Count, FoldedTo, Op, OpKind, ParkCode


class PlacedOp(Op, array_like=True, gc=False):
    """A RELEASED, or the DISCARD of a half that is committed: `position` is the place of the COMMITTED, -1 without one.

    `targets` is reserved.
    """

    targets: list[Count] = msgspec.field(default_factory=list)
    position: FoldedTo = -1


def outcome_of(kind: int) -> int:
    """Return the end that an op of this kind decides or says: COMMIT for COMMITTED and RELEASED."""
    return OpKind.COMMIT if kind == OpKind.COMMITTED or kind == OpKind.RELEASED else kind  # noqa: PLR1714 - faster


def excludes(kind: int, generation: int, op: Op) -> bool:
    """Return whether a stored op of this kind and generation excludes *op*, where resolutions are unique.

    A final op does, and a DISCARD of its generation or a later one. After a COMMITTED come only the RELEASED of it, and
    a DISCARD whose writer has read it.
    """
    if kind == OpKind.COMMITTED:
        return op.kind != OpKind.RELEASED and getattr(op, "position", -1) < 0
    return kind in FINAL_KINDS or generation >= op.generation


def reply_count(position: int) -> int:
    """Return the `count` of a reply to the request at *position* of the op log, as the request's name."""
    return 1 + position % COUNT_MAX


def is_reply_to(reply: Op, position: int) -> bool:
    """Return whether a reply answers the request at *position*; a reply without a name answers any request.

    Another request may come while the first one is being refused. It must neither count as answered nor be forgotten.
    """
    return reply.count in {0, reply_count(position)}


def is_discard_in_force(op: Op, *, is_decided: bool) -> bool:
    """Return whether a DISCARD counts: for exhausted checks it does not count after a DECIDED.

    Both may be stored late and in this order, after their writer gave up on each. A checker that reads the DECIDED
    publishes, so the discard must be void, or a discarded half would be delivered. The other reasons to park do not
    depend on the answer. The same holds after a COMMITTED.
    """
    return not is_decided or op.reason != ParkCode.CHECKS_EXHAUSTED
