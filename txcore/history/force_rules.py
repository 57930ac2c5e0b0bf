"""The rule of forced decisions: which one an operator may ask for, and which one a checker executes (R11).

The logs are judged when the request is written, the fence's answer when it is executed. A plan judges both beforehand.
"""

from __future__ import annotations

import enum
from typing import Final

from txcore.fence import FenceAnswer
from txcore.history.journey import Journey, why_no_half
from txcore.ids import id_text
from txcore.records import REASON_SIZE_MAX, Op, OpKind

REASON_TEXT: Final = "a forced decision needs a reason; it is kept in the op log"
DISMISS_TEXTS: Final = {
    OpKind.ROLLBACK: "will take it off the list; its bytes stay in the logs",
    OpKind.COMMIT: (
        "will take it off the list and publish NOTHING: COMMIT is journaled, but the messages are gone with the half; "
        "first publish by hand those that are not out"
    ),
}


class Ruling(enum.Enum):
    """The effect of asking for a decision."""

    REQUEST = "request"  #: the owner of the partition executes it, through the fence
    DISMISS = "dismiss"  #: no owner works on it and nothing of it can be published: its entry is closed
    HOLDS = "holds"  #: the decision is final already
    REVERSED = "reversed"  #: the other decision is final
    REFUSED = "refused"


class Consent(enum.Enum):
    """The fence's part in a forced decision."""

    AGREES = "agrees"  #: it says the same, so it decides
    ABSTAINS = "abstains"  #: no row is there or can come, and the half needs none: the operator speaks for the listener
    OBJECTS = "objects"  #: only an override goes against it
    FORBIDS = "forbids"  #: the messages went into the message table, whose relay delivers them or has sent them


def ruling_on(journey: Journey, kind: OpKind, *, override: bool) -> tuple[Ruling, str]:
    """Return whether the logs allow an operator to decide *kind*, and the reason or effect as text; "" for REQUEST.

    A journaled decision may have published targets already, so it can be neither reversed nor overridden.

    Args:
        override: Whether the operator decides against the fence.
    """
    if journey.final:
        if journey.final == kind:
            return Ruling.HOLDS, f"finished already: {kind.name}"
        return Ruling.REVERSED, f"finished already, the other way: {OpKind(journey.final).name}"
    decided = OpKind(journey.decided) if journey.decided else kind
    if decided is not kind:
        return Ruling.REFUSED, f"{decided.name} is journaled and messages may be out; it cannot be reversed"
    if journey.is_dismissible and kind in {OpKind.ROLLBACK, journey.decided}:
        return Ruling.DISMISS, DISMISS_TEXTS[kind]
    if journey.inner_half is not None:
        inner = id_text(journey.inner_half.transaction_id)
        return Ruling.REFUSED, f"it holds the half of {inner}; resume it, then decide that one"
    if journey.any_half is None or journey.is_newer:
        return Ruling.REFUSED, why_no_half(journey)
    if journey.decided and override:
        return Ruling.REFUSED, f"{decided.name} is journaled already, there is nothing to override"
    return Ruling.REQUEST, ""


def consent_of(answer: FenceAnswer, kind: OpKind, *, fence_decides: bool) -> Consent:
    """Return whether the answer of a check allows to decide *kind*.

    Args:
        answer: Of `Fence.check`, which leaves a tombstone where there is no row.
        fence_decides: Whether no transaction of this half commits without a row.
    """
    if answer is FenceAnswer.ROLLBACK and not fence_decides:
        return Consent.ABSTAINS
    if answer in {FenceAnswer.VIA_TABLE, FenceAnswer.SENT}:
        return Consent.FORBIDS
    return Consent.AGREES if answer.value == kind.name else Consent.OBJECTS


def force_op(journey: Journey, kind: OpKind, generation: int, by: str, at_ms: int, forced: int, reason: str) -> Op:
    """Return an operator's request for a decision."""
    return Op(
        OpKind.FORCE,
        journey.transaction_id,
        generation,
        by,
        at_ms,
        decision=kind,
        forced=forced,
        reason=reason[:REASON_SIZE_MAX],
    )
