"""The guarantees of Kafka under txcore, for `docs/guarantees.md`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from txcore.guarantees import Guarantees
from txcore.records import Capabilities
from txcore_kafka.options import TRANSACTION, Options

SETTLE_TICK_S: Final = 0.2
"""Longest time, in seconds, from an item's deadline until it is settled."""
BATCH_COUNT_MAX: Final = 2_000
NOTE_SIZE_MAX: Final = 32_000


BLOCKED_FACTOR: Final = 1.5
"""Least time from a producer's hand-over to the end of its immunity, as a multiple of the longest life of a
transaction. Until then it may still be committed, and readers of committed records may not see its op."""


def release_time_max_s(options: Options) -> float:
    """Return the least time, in seconds, between a producer's hand-over and the end of its immunity."""
    if options.is_transactional:
        return BLOCKED_FACTOR * (options.transaction_timeout_s + options.transaction_sweep_s)
    return options.delivery_timeout_s + SETTLE_TICK_S


CLOCK_SKEW_MAX_S: Final = 10.0
"""Largest difference of clocks, in seconds, that does not shorten an immunity: half and op partitions may have leaders
on different nodes."""


def capabilities_of(options: Options) -> Capabilities:
    """Return the capabilities of a backend opened with *options*."""
    return Capabilities(
        atomic_release=options.is_transactional,
        resolution_is_unique=False,
        fences_checkers=False,
        server_time=True,
        rejects_when_full=False,
        fsync_before_ack="no",
        body_size_max=options.body_size_max,
        batch_count_max=BATCH_COUNT_MAX,
        note_size_max=NOTE_SIZE_MAX,
        release_time_max_s=release_time_max_s(options),
        half_retention_s=options.half_retention_s,
        op_retention_s=2 * options.half_retention_s,
        clock_skew_max_s=CLOCK_SKEW_MAX_S,
        notes={"fsync_before_ack": "Kafka relies on replicas; `flush.messages=1` on the half topic syncs each append"},
    )


_STEPS: Final = Guarantees(
    url="kafka://host:9092",
    capabilities=capabilities_of(Options()),
    duplicates=(
        "a crash between a target and its op",
        "an acknowledgement that was lost or late, seen by the process that hands over",
        "a producer that was stopped for longer than its immunity after its last look at the clock",
        "a checker that acts once more after another one took over",
    ),
    zombies="nothing stops its targets: duplicates with the same id; its records do not count after the new claim",
    order="per partition of a topic, in the order in which transactions end; not across transactions of one key",
    message_size_max="1,000,000 bytes a transaction (`body_size_max`); a target's own `max.message.bytes`",
    retention="halves for 7 days (`half_retention_s`), pending ones are carried forward; ops twice as long; "
    "parked records are kept",
    version_min="Kafka 2.4",
    versions_tested=("3.9.1", "4.3.1"),
)
GUARANTEES: Final = (
    _STEPS,
    replace(
        _STEPS,
        url="kafka://host:9092?release=transaction",
        capabilities=capabilities_of(Options(release=TRANSACTION)),
        duplicates=(
            "a transaction whose end stays uncertain (a lost or late answer to its commit), decided again by a checker",
            "a producer that was stopped for longer than its immunity after its last look at the clock",
            "consumers that read uncommitted records (the default of Java clients) see aborted ones too",
        ),
        zombies="the broker refuses the transaction of a member whose generation is over",
        version_min="Kafka 2.5",
        versions_tested=("4.3.1",),
    ),
)
