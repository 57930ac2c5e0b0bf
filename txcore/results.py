"""The results of ends: typed, idempotent, never an exception for an outcome that the protocol knows."""

from __future__ import annotations

import enum

import msgspec

from txcore.enums import direct
from txcore.ids import TransactionId
from txcore.message import LocalTransactionState


@direct
class EndState(enum.Enum):
    """The outcome of a commit or rollback."""

    #: commit: every target is confirmed, or will be: of a half that its owner releases the decision is stored;
    #: rollback: no target will ever exist
    ACCEPTED = "ACCEPTED"
    ALREADY_DONE = "ALREADY_DONE"  #: the same end was reached before, by this call's twin or by the checker
    CONFLICT = "CONFLICT"  #: the opposite end holds; this call published nothing, where the store can know
    TOO_LATE = "TOO_LATE"  #: the producer gave way; the checker decides, and was asked to check soon
    VIA_TABLE = "VIA_TABLE"  #: commit: the messages are in the message table, whose relay publishes each of them
    UNKNOWN = "UNKNOWN"  #: no certain answer; the checker decides


class EndResult(msgspec.Struct, frozen=True):
    """The result of one commit or rollback; `error` holds the reason, if any, why it is not ACCEPTED."""

    state: EndState
    transaction_id: TransactionId
    error: BaseException | None = None

    def __str__(self) -> str:
        """Return the state and the id, for logs."""
        return f"{self.state.value} {self.transaction_id}"


class TransactionSendResult(msgspec.Struct, frozen=True):
    """The result of the listener style (RocketMQ: TransactionSendResult).

    Attributes:
        local_transaction_state: The listener's answer; UNKNOWN when it raised or answered nothing.
        end: The result of the message's end; None when the answer is UNKNOWN and the check decides.
        error: The listener's exception, or the reason why nothing was sent (`send_many` only; else it is raised).
    """

    transaction_id: TransactionId
    local_transaction_state: LocalTransactionState
    end: EndResult | None = None
    error: BaseException | None = None
