"""What checking needs to know: the listener's side, the bounds, and what all owners of one checker share."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from txcore import instrumentation as names
from txcore.bodies import Bodies
from txcore.clock import Clock, Randomness
from txcore.enums import direct
from txcore.errors import ConfigError
from txcore.fence import Fence
from txcore.instrumentation import Reporter, trace_of
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.port import Backend
from txcore.port import Claim as ClaimPort
from txcore.records import Half


@dataclass(frozen=True, slots=True)
class HalfView:
    """What a listener is asked about.

    Attributes:
        check_times: Answered checks so far.
        born_ms: The producer's wall clock when the half was made.
    """

    transaction_id: bytes
    group: str
    messages: tuple[Message, ...]
    check_times: int
    born_ms: int


class CheckListener(Protocol):
    """What the checker asks of a listener. `topics`, where declared, are the only ones it is asked about."""

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Return what became of the local transaction."""


@direct
class NewerRecords(enum.StrEnum):
    """What a checker does about a record that a newer txcore has written."""

    STOP = "stop"  #: nothing more of its partition is judged until an upgraded checker takes over
    PARK = "park"  #: a half is parked with its bytes, to be resumed after the upgrade; an op is skipped and counted


@dataclass(slots=True)
class Limits:
    """The checker's bounds; each is a number of seconds unless named otherwise.

    Raises:
        ConfigError: a value is no number, a count is below 1, or a time below 0; `key` names it.
    """

    replay_max: int = 10_000  #: half records a restart may read again before the oldest are carried forward
    read_count_max: int = 1_000
    batch_count_max: int = 500  #: halves in hand at once per partition
    fence_batch_count_max: int = 200
    poll_s: float = 0.005
    idle_poll_s: float = 0.2
    mark_timeout_s: float = 5.0
    read_back_s: float = 5.0
    retry_s: float = 0.2  #: first back-off after a check without an answer or a failed write; doubles
    retry_max_s: float = 30.0
    check_deadline_s: float = 10.0
    calls_max: int = 8  #: questions to listener or fence at once
    immunity_min_s: float = 0.0  #: youngest age of a first check, where the half's own immunity is shorter
    refusals_max: int = 8  #: releases that a target refused before the half is parked as undeliverable
    checkpoint_interval_s: float = 2.0
    body_bytes_max: int = 4 << 20  #: bodies kept in memory; the others are read again when they are due
    newer_records: NewerRecords = NewerRecords.STOP

    def __post_init__(self) -> None:
        for each in fields(self):
            key, value = each.name, getattr(self, each.name)
            if key == "newer_records":
                self.newer_records = _newer_records(value)
            elif key.endswith("_s"):
                if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                    raise ConfigError(f"{key} is a number of seconds, not {value!r}", key=key)
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{key} is a whole number from 1, not {value!r}", key=key)


def _newer_records(value: str) -> NewerRecords:
    try:
        return NewerRecords(value)
    except ValueError:
        raise ConfigError(f'newer_records is "stop" or "park", not {value!r}', key="newer_records") from None


@dataclass(slots=True)
class CheckContext:
    """What all owners of one checker share. `answers` is None where only the fence answers."""

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
    """Return the first listener that declared all topics of *half*, or none at all; None when nobody did."""
    for listener in listeners:
        topics = getattr(listener, "topics", None)
        if topics is None or all(message.topic in topics for message in half.messages):
            return listener
    return None


def view_of(half: Half, check_times: int) -> HalfView:
    """Return what a listener is shown of *half*."""
    messages = tuple(Message(m.topic, m.body, m.key, m.headers) for m in half.messages)
    return HalfView(half.transaction_id, half.group, messages, check_times, half.born_ms)
