"""The behaviour of a memory broker: profiles that imitate real brokers, and faults."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from txcore.records import Capabilities, Checkpoint, LogKind

PARTITION_COUNT_DEFAULT: Final = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of the broker.

    Attributes:
        position_step: Step of the positions at every seventh append; 1 otherwise (gaps).
        merge_delay_s: Seconds for which ops wait to be merged into one record; 0 for one record per op.
        answer_timeout_s: Seconds after which a request without an answer is settled UNKNOWN.
        auto_create: Whether unknown target topics are created; else halves for them are refused.
        is_transactional: Whether a release is a transaction of the broker's, as with Kafka: it is carried out once, and
            one of a claim takes effect before the next mark of its partition, or never.
        partitions: Number of partitions of a group that is made without a number.
    """

    name: str
    capabilities: Capabilities
    position_step: int = 1
    merge_delay_s: float = 0.0
    answer_timeout_s: float = 1.0
    auto_create: bool = True
    is_transactional: bool = False
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
TRANSACTION_LIKE: Final = replace(
    KAFKA_LIKE,
    name="transaction-like",
    capabilities=replace(KAFKA_LIKE.capabilities, atomic_release=True, fences_checkers=True),
    is_transactional=True,
)
RABBITMQ_LIKE: Final = Profile(
    "rabbitmq-like",
    replace(KAFKA_LIKE.capabilities, server_time=False),
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
    """The fate of one request."""

    DONE = "done"
    LOST = "lost"  #: never arrives; the client gets no answer
    ACK_LOST = "ack lost"  #: carried out; the client gets no answer
    LATE = "late"  #: carried out after the client has given up waiting
    REFUSED = "refused"  #: the broker refuses it
    TWICE = "twice"  #: carried out twice (a resend below the client), acknowledged once


class Faults:
    """The faults of a broker; none by default. The simulator overrides these methods.

    Attributes:
        half_skew_ms: Milliseconds by which the half logs' clock is ahead of the op logs' one; their leaders differ.
    """

    half_skew_ms = 0

    def fate(self, what: str, transaction_ids: Sequence[bytes]) -> Fate:  # noqa: ARG002
        """Return the fate of a request; *what* is half, target, parked, op, mark or checkpoint."""
        return Fate.DONE

    def delay_s(self) -> float:
        """Return the seconds that the next leg of a request takes."""
        return 0.0

    def checkpoint_sent(self, member: str, partition: int, checkpoint: Checkpoint) -> None:
        """Look at a checkpoint at the moment a checker writes it."""

    def visible(self, count: int) -> int:
        """Return the number of *count* arrived records that a read returns."""
        return count

    def readable(self, kind: LogKind, partition: int, count: int) -> int:  # noqa: ARG002
        """Return the number of *count* arrived records that a read of one log returns; 0 makes that log silent."""
        return self.visible(count)

    def fetch_delay_s(self) -> float:
        """Return the seconds that it takes to read single records again."""
        return 0.0
