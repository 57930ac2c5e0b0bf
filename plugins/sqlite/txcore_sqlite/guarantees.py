"""The guarantees of a SQLite file, for `docs/guarantees.md`."""

from __future__ import annotations

from typing import Final

from txcore.guarantees import Guarantees
from txcore.records import Capabilities
from txcore_sqlite.options import Options

NOTE_SIZE_MAX: Final = 1_000_000
COMMIT_ALLOWANCE_S: Final = 0.5
"""Longest time of one transaction after its BEGIN, in seconds, for `release_time_max_s`."""
BATCH_COUNT_MAX: Final = 1_000


def capabilities_of(options: Options) -> Capabilities:
    """Return the capabilities of a file opened with *options*."""
    return Capabilities(
        atomic_release=True,
        resolution_is_unique=True,
        fences_checkers=True,
        server_time=True,
        rejects_when_full=True,
        fsync_before_ack="yes" if options.synchronous == "FULL" else "no",
        body_size_max=options.body_size_max,
        batch_count_max=min(BATCH_COUNT_MAX, options.queue_max),
        note_size_max=NOTE_SIZE_MAX,
        release_time_max_s=options.busy_timeout_s + COMMIT_ALLOWANCE_S,
        notes={"server_time": "the wall clock of the machine that writes"},
    )


GUARANTEES: Final = (
    Guarantees(
        url="sqlite:///broker.db",
        capabilities=capabilities_of(Options()),
        duplicates=(),
        zombies="the file itself: a release under an outdated claim is refused",
        order="per topic, in the order of the commits",
        message_size_max="1,000,000 bytes a transaction (`body_size_max`)",
        retention="nothing is dropped by itself; a full disk refuses new halves",
        version_min="SQLite 3.35",
        versions_tested=("3.40",),
    ),
)
