"""How a memory broker behaves: profiles that imitate real brokers, and what goes wrong."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txcore.records import (
    FINAL_KINDS,
    Capabilities,
    Checkpoint,
    LogKind,
    OpKind,
)

UNIQUE_KINDS: Final = FINAL_KINDS | {OpKind.DISCARD}
PARTITION_COUNT_DEFAULT: Final = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """How the broker behaves.

    Attributes:
        position_step: Positions ascend by this much at every seventh append, by 1 otherwise (gaps).
        merge_delay_s: How long ops wait to be merged into one record; 0 for one record per op.
        answer_timeout_s: When a request without an answer is settled UNKNOWN.
        auto_create: Unknown target topics come into being; else halves for them are refused.
        partitions: Of a group that is made without a number.
    """

    name: str
    capabilities: Capabilities
    position_step: int = 1
    merge_delay_s: float = 0.0
    answer_timeout_s: float = 1.0
    auto_create: bool = True
    partitions: int = PARTITION_COUNT_DEFAULT


STRONG: Final = Profile(
    "strong",
    Capabilities(
        atomic_release=True,
        resolution_is_unique=True,
        fences_checkers=True,
        server_time=True,
        rejects_when_full=True,
        fsync_before_ack="yes",
    ),
)
KAFKA_LIKE: Final = Profile(
    "kafka-like",
    Capabilities(
        atomic_release=False,
        resolution_is_unique=False,
        fences_checkers=False,
        server_time=True,
        rejects_when_full=False,
        half_retention_s=600.0,
        op_retention_s=1_200.0,
    ),
    position_step=3,
    merge_delay_s=0.05,
)
RABBITMQ_LIKE: Final = Profile(
    "rabbitmq-like",
    Capabilities(
        atomic_release=False,
        resolution_is_unique=False,
        fences_checkers=False,
        server_time=False,
        rejects_when_full=False,
        half_retention_s=600.0,
        op_retention_s=1_200.0,
    ),
    position_step=2,
    merge_delay_s=0.02,
)
NATS_LIKE: Final = Profile(
    "nats-like",
    Capabilities(
        atomic_release=False,
        resolution_is_unique=True,
        fences_checkers=False,
        server_time=True,
        rejects_when_full=True,
        deduplicates_targets_s=20.0,
    ),
    position_step=2,
)
PROFILES: Final = {profile.name: profile for profile in (STRONG, KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE)}


class Fate(enum.Enum):
    """What becomes of one request."""

    DONE = "done"
    LOST = "lost"  #: never arrives; the client learns nothing
    ACK_LOST = "ack lost"  #: carried out; the client learns nothing
    LATE = "late"  #: carried out after the client has given up waiting
    REFUSED = "refused"  #: the broker says no
    TWICE = "twice"  #: carried out twice (a resend below the client), acknowledged once


class Faults:
    """What goes wrong; the default is nothing. The simulator overrides these methods.

    Attributes:
        half_skew_ms: By how much the clock that stamps half logs is ahead of that of the op logs, whose leaders differ.
    """

    half_skew_ms = 0

    def fate(self, what: str, transaction_ids: Sequence[bytes]) -> Fate:  # noqa: ARG002
        """Return the fate of a request; *what* is half, target, parked, op, mark or checkpoint."""
        return Fate.DONE

    def delay_s(self) -> float:
        """Return how long the next leg of a request travels."""
        return 0.0

    def checkpoint_sent(self, member: str, partition: int, checkpoint: Checkpoint) -> None:
        """Look at a checkpoint at the moment a checker writes it."""

    def visible(self, count: int) -> int:
        """Return how many of *count* arrived records a read returns."""
        return count

    def readable(self, kind: LogKind, partition: int, count: int) -> int:  # noqa: ARG002
        """Return how many of *count* arrived records a read of one log returns; 0 makes that log silent."""
        return self.visible(count)

    def fetch_delay_s(self) -> float:
        """Return how long it takes to read single records again."""
        return 0.0
