"""The plan of a state-changing command for each transaction, made before anything is written: pure.

The partition's owner decides again by the same rules, under its own token and through the fence. A plan only keeps
an operator from a request that will be refused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txcore.fence import FenceAnswer
from txcore.history.force_rules import Consent, Ruling, consent_of, ruling_on
from txcore.history.journey import why_no_half
from txcore.ids import id_text
from txcore.operator.to_json import kind_name
from txcore.records import OpKind, ParkCode

if TYPE_CHECKING:
    from txcore.fence import FenceReading
    from txcore.history.journey import Journey
    from txcore.records import Half


class Verb(enum.Enum):
    """The request of an operator."""

    RESUME = "resume"
    COMMIT = "commit"
    ROLLBACK = "rollback"

    @property
    def words(self) -> str:
        """The effect of a decision on the messages; the database's own end is no operator's to decide."""
        return "publish its messages" if self is Verb.COMMIT else "drop its messages"

    @property
    def kind(self) -> OpKind:
        """The requested decision; not for RESUME."""
        return OpKind[self.name]


class Step(enum.Enum):
    """The action for one transaction."""

    ACT = "act"
    ALREADY = "already"  #: the requested state holds already, or is under way
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Plan:
    """One transaction, the action for it, the reason, the fence's answer, and whether a decision overrides that."""

    journey: Journey
    step: Step
    text: str
    fence_text: str
    reading: FenceReading | None
    is_override: bool


FENCE_TEXTS: Final = {
    FenceAnswer.COMMIT: "COMMIT: the local transaction committed",
    FenceAnswer.ROLLBACK: "ROLLBACK: a check has closed it, the database can never commit it",
    FenceAnswer.VIA_TABLE: "VIA_TABLE: it travels by the local message table",
    FenceAnswer.SENT: "SENT: it went by the local message table, whose relay has sent it",
    FenceAnswer.FORCED: "FORCED: an operator has gone against the fence before",
    FenceAnswer.PRUNED: "PRUNED: its row may have been deleted, so its end is not known",
    FenceAnswer.ABSENT: "ABSENT: no row; it was rolled back, or is still open",
}
NO_ROW_TEXTS: Final = {
    FenceAnswer.ROLLBACK: "ROLLBACK: a check found no row, so the listener decides",
    FenceAnswer.ABSENT: "ABSENT: no row yet; without one the listener decides",
}
"""Texts that replace those of `FENCE_TEXTS` for a half whose listener may not have written a row."""
OBJECTIONS: Final = {
    FenceAnswer.ABSENT: "the database has no row, so it says ROLLBACK",
    FenceAnswer.NO_ANSWER: "the database does not answer",
    FenceAnswer.PRUNED: "the fence's row may have been pruned, so there is no answer",
    FenceAnswer.FORCED: "an operator has forced it before",
    FenceAnswer.VIA_TABLE: "it travels by the local message table, whose relay delivers it",
    FenceAnswer.SENT: "it went by the local message table, whose relay has sent it",
}
"""The reasons against a decision, by the fence's answer; for every other one its name."""
DOUBTS: Final = {
    FenceAnswer.COMMIT: "the database committed it, so some of its messages may have been delivered already",
    FenceAnswer.ABSENT: "should its database transaction still be open, it will fail to commit",
}
"""The warnings about a decision against the fence, by its answer."""
_STEPS: Final = {Ruling.HOLDS: Step.ALREADY, Ruling.DISMISS: Step.ACT}


def plan(verb: Verb, journey: Journey, reading: FenceReading | None, *, override: bool) -> Plan:
    """Return the plan for *journey*.

    Args:
        reading: The fence's answer; None where it was not asked.
        override: Whether the operator decides against the fence.
    """
    step, text = _resume(journey) if verb is Verb.RESUME else _force(verb, journey, reading, override=override)
    half = journey.any_half
    is_override = override and half is not None and half.asks_fence
    return Plan(journey, step, text, fence_text(journey, reading), reading, is_override)


def fence_text(journey: Journey, reading: FenceReading | None) -> str:
    """Return the fence's answer as text."""
    half = journey.any_half
    if half is None:
        return "no half"
    if not half.asks_fence:
        return "no fence: the listener decides"
    if reading is None:
        return "not asked: no --database"
    if reading.answer is FenceAnswer.NO_ANSWER:
        return f"no answer: {reading.reason}"
    texts = FENCE_TEXTS if half.fence_decides else {**FENCE_TEXTS, **NO_ROW_TEXTS}
    return texts[reading.answer]


def decider_text(half: Half) -> str:
    """Return the name of the decider of *half*, for use in a sentence."""
    if half.fence_decides:
        return "the fence"
    return "the fence, or without a row the listener" if half.asks_fence else "the listener"


def _resume(journey: Journey) -> tuple[Step, str]:
    if journey.final:
        return Step.ALREADY, f"finished already: {kind_name(journey.final)}"
    if journey.is_pending and not journey.is_newer:
        return Step.ALREADY, "pending already"
    inner = journey.inner_half
    if inner is not None:
        return Step.ACT, f"will resume the half in it, {id_text(inner.transaction_id)}, and take the entry off the list"
    if not journey.is_parked or journey.is_newer or journey.any_half is None:
        return Step.REFUSED, why_no_half(journey)
    if journey.decided:
        return Step.ACT, f"will publish what is missing; {kind_name(journey.decided)} is decided"
    return Step.ACT, f"will be asked again, as generation {journey.discarded_generation + 1}"


def _force(verb: Verb, journey: Journey, reading: FenceReading | None, *, override: bool) -> tuple[Step, str]:
    ruling, text = ruling_on(journey, verb.kind, override=override)
    half = journey.any_half
    if ruling is not Ruling.REQUEST or half is None:
        return _STEPS.get(ruling, Step.REFUSED), text
    if journey.decided and journey.is_parked:
        return Step.ACT, f"will publish what is missing; {kind_name(journey.decided)} is decided"
    if journey.decided:
        return Step.ALREADY, f"decided already: {kind_name(journey.decided)}; the checker is carrying it out"
    if not half.asks_fence:
        return Step.ACT, f"will {verb.words}; there is no fence to contradict it"
    consent, why = Consent.OBJECTS, "the fence was not asked; give --database"
    if reading is not None:
        # A check leaves a tombstone where there is no row.
        answer = FenceAnswer.ROLLBACK if reading.answer is FenceAnswer.ABSENT else reading.answer
        consent = consent_of(answer, verb.kind, fence_decides=half.fence_decides)
        why = OBJECTIONS.get(reading.answer, f"the database says {answer.value}")
    if consent is Consent.ABSTAINS:
        return Step.ACT, f"will {verb.words}, in the listener's place; the fence has no row"
    if consent is Consent.AGREES:
        return Step.ACT, f"will {verb.words}, through the fence"
    if consent is Consent.FORBIDS:
        return Step.REFUSED, why
    if override:
        return Step.ACT, f"will {verb.words} AGAINST THE FENCE: {why}"
    return Step.REFUSED, f"{why}; --override-fence goes against it"


def is_doubtful(each: Plan) -> str:
    """Return a further warning for the operator; "" for none."""
    entry = each.journey.parked_as
    if entry is not None and entry.code == ParkCode.COVERAGE_GAP:
        return "part of its log is gone: it may have been delivered before, and would be again with the same id"
    if each.reading is None or "AGAINST" not in each.text:
        return ""
    return DOUBTS.get(each.reading.answer, "")
