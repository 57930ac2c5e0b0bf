"""The guarantees of RabbitMQ, for `docs/guarantees.md`."""

from __future__ import annotations

from typing import Final

from txcore.guarantees import Guarantees
from txcore.records import Capabilities
from txcore_rabbitmq.options import Options

NOTE_SIZE_MAX: Final = 32_000
BATCH_COUNT_MAX: Final = 10_000
SETTLING_ALLOWANCE_S: Final = 0.15
"""Longest delay of deadlines, in seconds: they are checked twenty times a second, and sent items wait for one more
check."""


def capabilities_of(options: Options) -> Capabilities:
    """Return the capabilities of a backend opened with *options*, for any version of the broker."""
    return Capabilities(
        atomic_release=False,
        resolution_is_unique=False,
        fences_checkers=False,
        server_time=False,
        rejects_when_full=False,
        fsync_before_ack="no",
        body_size_max=options.body_size_max,
        batch_count_max=min(BATCH_COUNT_MAX, options.queue_count),
        note_size_max=NOTE_SIZE_MAX,
        # Targets, then the op, each within its own delivery.
        release_time_max_s=2 * options.delivery_timeout_s + options.merge_delay_s + SETTLING_ALLOWANCE_S,
        half_retention_s=float(options.half_retention_s),
        op_retention_s=2 * float(options.half_retention_s),
        notes={
            "fsync_before_ack": "streams and classic queues never sync before they confirm; quorum queues, as targets, "
            "sync on a majority",
            "server_time": "AMQP 0-9-1 gives no time of append, so immunity runs from when a checker saw the half",
        },
    )


GUARANTEES: Final = (
    Guarantees(
        url="rabbitmq://user:password@host:5672/vhost",
        capabilities=capabilities_of(Options()),
        duplicates=(
            "a crash between a target's confirm and its op",
            "a confirm that was lost with its connection, or came after the delivery timeout",
            "a producer that stalls past its immunity between its look at the clock and the network",
            "a takeover: the frozen checker publishes what its successor has published",
            "an exchange with several queues of which one refuses: the others got it, and get it again",
        ),
        zombies="the CLAIM in the op log: what an outdated checker writes does not count; its targets are duplicates",
        order="per queue, in the order of the releases of one process; none between processes",
        message_size_max="1,000,000 bytes a transaction (`body_size_max`); the broker's `max_message_size` is 16 MiB "
        "since 4.0, 128 MiB before",
        retention="halves 7 days (`half_retention_s`), ops 14, whole segments at a time; pending halves are carried "
        "forward in time; parked records are kept (in groups made before 0.1 for 14 days: `txcore doctor` names them)",
        version_min="RabbitMQ 3.9 (streams)",
        versions_tested=("3.10.8", "4.0.5", "4.3.6"),
    ),
)
