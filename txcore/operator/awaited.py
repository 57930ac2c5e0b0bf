"""The end of an operator's request, as a survey that is kept up to date shows it."""

from __future__ import annotations

from dataclasses import dataclass

from txcore.errors import TransactionStateError
from txcore.history.journey import Journey
from txcore.ids import TransactionId
from txcore.records import OpKind
from txcore.results import EndResult, EndState


@dataclass(frozen=True, slots=True)
class Awaited:
    """A request whose end is awaited: of a decision, or of a resume (`kind` None, any final op will do)."""

    transaction_id: TransactionId
    kind: OpKind | None
    generation: int

    @classmethod
    def after(cls, journey: Journey, kind: OpKind | None) -> Awaited:
        """Return the end to wait for after a request about *journey*, as read when the request was made."""
        generation = journey.generation
        if journey.is_parked:
            generation = max(journey.discarded_generation, generation) + 1
        return cls(journey.transaction_id, kind, generation)

    def end_in(self, journey: Journey | None, by: str) -> EndResult | None:
        """Return the end of this request of operator *by*; None while it is open.

        ACCEPTED: the final op agrees. CONFLICT: another final op holds, the owner refused, or it was parked (again);
        the error says which.
        """
        if journey is None:
            return None
        if journey.final:
            agrees = self.kind in {None, journey.final}
            error = None if agrees else TransactionStateError(f"the other end holds: {OpKind(journey.final).name}")
            return EndResult(EndState.ACCEPTED if agrees else EndState.CONFLICT, journey.transaction_id, error)
        if self.kind is OpKind.ROLLBACK and journey.awaits_release:
            error = TransactionStateError("the other end holds: it is committed, and waits for its release")
            return EndResult(EndState.CONFLICT, journey.transaction_id, error)
        reply = journey.reply_to(by) if self.kind is not None else None
        if reply is not None:
            return EndResult(EndState.CONFLICT, journey.transaction_id, TransactionStateError(reply.reason))
        if journey.discarded_generation >= self.generation:
            code = next((op.reason for _, op in reversed(journey.ops) if op.kind == OpKind.DISCARD), "")
            return EndResult(EndState.CONFLICT, journey.transaction_id, TransactionStateError(f"parked: {code}"))
        return None
