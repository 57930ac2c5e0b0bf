"""The messages that are not in their topic yet, and why; for the texts of failed assertions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from txcore.errors import TxcoreError
from txcore.hookspecs import Event, hookimpl
from txcore.ids import id_text
from txcore.memory import MemoryBackend
from txcore.operator.operator import Operator
from txcore.runtime import instrumentation as names
from txcore.testing.clock import ManualClock

NOT_ASKED: Final = (
    "its transaction has not ended, as after a crash, and no checker has asked yet; kit.drain() lets one decide"
)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """One transaction whose messages are not published.

    Attributes:
        reason: Why, in words.
        is_parked: It was given up, until an operator resumes it.
    """

    group: str
    transaction_id: bytes
    topics: tuple[str, ...]
    reason: str
    is_parked: bool = False

    def __str__(self) -> str:
        """Return one line."""
        state = "parked" if self.is_parked else "undecided"
        topics = ", ".join(map(repr, self.topics)) or "no known topic"
        return (
            f"{state}: transaction {id_text(self.transaction_id)} of group {self.group!r}, for {topics}: {self.reason}"
        )


class Reasons:
    """A plugin of the kit's checkers: the last thing that each transaction's check has met."""

    def __init__(self) -> None:
        self._of: dict[bytes, str] = {}

    def of(self, transaction_id: bytes) -> str:
        """Return the reason, or that no checker has asked."""
        return self._of.get(transaction_id, NOT_ASKED)

    @hookimpl
    def txcore_on_event(self, event: Event) -> None:
        """Keep the reason that an event names."""
        fields: dict[str, Any] = dict(event.fields)
        identity = fields.get("transaction_id")
        if not identity:
            return
        if event.name == names.CHECK_ANSWERED and fields["answer"] == "UNKNOWN":
            self._of[identity] = "its listener answers UNKNOWN"
        elif event.name == names.CHECK_ANSWERED and fields["answer"] == "VIA_TABLE":
            self._of[identity] = "its messages are in the message table, whose relay has not sent them"
        elif event.name in {names.CHECK_NO_ANSWER, names.CHECK_WRONG_LISTENER, names.CHECK_WRONG_DATABASE}:
            self._of[identity] = str(fields.get("reason") or fields.get("error") or f"the answer {fields['answer']}")
        elif event.name in {names.RELEASE_REFUSED, names.RELEASE_UNKNOWN}:
            self._of[identity] = f"its publication failed: {fields.get('error', 'no answer')}"


def unsettled(backend: MemoryBackend, clock: ManualClock, reasons: Reasons) -> Iterator[Unsettled]:
    """Yield the transactions that are undecided or parked, oldest first in each group.

    Raises:
        TxcoreError: the logs cannot be read.
    """
    if backend.broker.down:
        raise TxcoreError("the memory broker is down")
    for group in backend.broker.groups():
        operator = Operator(backend, group, by="test")
        for each in operator.pending():
            age_s = max(clock.wall_ms() - each.born_ms, 0) / 1000
            reason = f"{reasons.of(each.transaction_id)} ({age_s:.0f} s old)"
            yield Unsettled(group, each.transaction_id, each.topics, reason)
        for parked in operator.parked():
            yield Unsettled(group, parked.transaction_id, parked.topics, parked.reason, is_parked=True)
