"""The context that all partition owners of one checker share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from txcore.checker.body_cache import Bodies
from txcore.checker.contact import Contact, Failures
from txcore.checker.limits import Limits
from txcore.clock import Clock, Randomness
from txcore.fence import AnyFence
from txcore.listener import CheckListener
from txcore.message import CheckPolicy
from txcore.port import Backend
from txcore.port import Claim as ClaimPort
from txcore.runtime import instrumentation as names
from txcore.runtime.instrumentation import Reporter


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """The objects that all owners of one checker share, and its counts by name."""

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
    fence: AnyFence | None = None
    counts: Counter[str] = field(default_factory=Counter)
    bodies: Bodies = field(init=False)
    contact: Contact = field(init=False)
    failures: Failures = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.body_bytes_max)
        self.contact = Contact(self.clock, lambda: self.backend.ping(self.group), self._broker_changed)
        self.failures = Failures(self.clock)

    def asked(self, *transaction_ids: bytes) -> None:
        """Report and count that listener or fence are asked about these."""
        self.counts["asked"] += len(transaction_ids)
        for transaction_id in transaction_ids:
            self.report.event(names.CHECK_ASKED, transaction_id=transaction_id)

    def _broker_changed(self, trouble: str) -> None:
        if trouble:
            self.report.event(names.BROKER_DOWN, reason=trouble)
        else:
            self.report.event(names.BROKER_UP)
