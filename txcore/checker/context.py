"""The context that all partition owners of one checker share, and the choice of the listener for a half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from txcore.checker.body_cache import Bodies
from txcore.checker.limits import Limits
from txcore.clock import Clock, Randomness
from txcore.fence import Fence
from txcore.listener import CheckListener, HalfView
from txcore.message import CheckPolicy, Message
from txcore.port import Backend
from txcore.port import Claim as ClaimPort
from txcore.records import Half
from txcore.runtime import instrumentation as names
from txcore.runtime.instrumentation import Reporter, trace_of


@dataclass(slots=True)
class CheckContext:
    """The objects that all owners of one checker share. `answers` is None where only the fence answers."""

    backend: Backend
    group: str
    clock: Clock
    randomness: Randomness
    claim: ClaimPort
    policy: CheckPolicy
    limits: Limits
    report: Reporter
    by: str
    listeners: Sequence[CheckListener] = ()
    fence: Fence | None = None
    counts: dict[str, int] = field(default_factory=dict)
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.body_bytes_max)

    def asked(self, *transaction_ids: bytes) -> None:
        """Report and count that listener or fence are asked about these."""
        self.count("asked", len(transaction_ids))
        for transaction_id in transaction_ids:
            self.report.event(names.CHECK_ASKED, transaction_id=transaction_id)

    def finished(self, half: Half, end: str, began_s: float) -> None:
        """Report and count a half that was released."""
        took_s = self.clock.elapsed_s() - began_s
        identity = half.transaction_id
        self.report.event(names.HALF_FINISHED, transaction_id=identity, end=end, took_s=took_s, trace=trace_of(half))
        self.count(end.lower())

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter of this checker."""
        self.counts[name] = self.counts.get(name, 0) + number


def listener_for(listeners: Sequence[CheckListener], half: Half) -> CheckListener | None:
    """Return the first listener that declared all topics of *half*, or none at all; None if there is no such one."""
    for listener in listeners:
        topics = getattr(listener, "topics", None)
        if topics is None or all(message.topic in topics for message in half.messages):
            return listener
    return None


def view_of(half: Half, check_times: int) -> HalfView:
    """Return the view of *half* for a listener."""
    messages = tuple(Message(m.topic, m.body, m.key, m.headers) for m in half.messages)
    return HalfView(half.transaction_id, half.group, messages, check_times, half.born_ms)
