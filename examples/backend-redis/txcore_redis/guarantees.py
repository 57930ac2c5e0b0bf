"""The guarantees of a Redis server, for `txcore backends`."""

from __future__ import annotations

from typing import Final

from txcore.guarantees import Guarantees
from txcore.records import Capabilities
from txcore_redis.options import Options

BATCH_COUNT_MAX: Final = 1_000
NOTE_SIZE_MAX: Final = 1_000_000


def capabilities_of(options: Options) -> Capabilities:
    """Return the capabilities of a server that is used with *options*."""
    return Capabilities(
        atomic_release=True,
        resolution_is_unique=True,
        fences_checkers=True,
        server_time=True,
        rejects_when_full=True,
        fsync_before_ack="configured",
        body_size_max=options.body_size_max,
        batch_count_max=min(BATCH_COUNT_MAX, options.queue_max),
        note_size_max=NOTE_SIZE_MAX,
        release_time_max_s=options.delivery_timeout_s,
        notes={
            "server_time": "the millisecond in the entry's id, from the server's clock",
            "fsync_before_ack": "only with `appendfsync always`; with `everysec` a power failure loses a second",
        },
    )


GUARANTEES: Final = (
    Guarantees(
        url="redis://host:6379",
        capabilities=capabilities_of(Options()),
        duplicates=("the server loses the end of its file (`appendfsync everysec`), or a failover loses writes",),
        zombies="the server itself: a script refuses a release under an outdated claim",
        order="per topic, in the order of the releases",
        message_size_max="1,000,000 bytes a transaction (`body_size_max`)",
        retention="nothing is dropped by itself; at `maxmemory` new halves are refused",
        version_min="Redis 7.0",
        versions_tested=("7.0",),
    ),
)
