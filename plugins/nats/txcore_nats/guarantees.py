"""The guarantees of NATS JetStream under txcore, for `docs/guarantees.md`."""

from __future__ import annotations

from typing import Final

from txcore.guarantees import Guarantees
from txcore_nats.options import Options, capabilities_of

GUARANTEES: Final = (
    Guarantees(
        url="nats://user:password@host:4222",
        capabilities=capabilities_of(Options()),
        duplicates=(
            (
                "a second publish later than the target stream's duplicate window, or one that the stream has "
                "forgotten (a restart of a work-queue or interest stream): after a crash between a target and its op, "
                "an answer that was lost or late, a producer that stalls past its immunity, or a takeover"
            ),
        ),
        zombies="a second end is refused by the store, from any writer; the targets of an outdated checker are "
        "dropped within the duplicate window, else duplicates; its records do not count after the new claim",
        order="per stream, in the order of the releases of one process; none between processes",
        message_size_max="1,000,000 bytes a transaction (`body_size_max`); the server's `max_payload` of 1 MiB, and "
        "the target stream's `max_msg_size`",
        retention="pending halves for ever: a half log of 1 GiB (`half_bytes_max`) refuses when it is full; decided "
        "halves and ops are removed six hours later (`keep_s`), halves sooner when the log is half full, before the "
        "checkpoint only; parked records are kept",
        version_min="NATS 2.9",
        versions_tested=("2.9.25", "2.15.2"),
    ),
    Guarantees(
        url="nats://host:4222?release=atomic",
        capabilities=capabilities_of(Options(release="atomic")),
        duplicates=(),
        zombies="an outdated checker's batch is refused whole: it carries the place of its CLAIM",
        order="per stream, in the order of the releases of one process, except those that were refused once; none "
        "between processes",
        message_size_max="1,000,000 bytes (`body_size_max`) and 990 messages a transaction; the server's `max_payload` "
        "of 1 MiB, and the stream's `max_msg_size`",
        retention="as above; ops and parked records are in the stream that holds the targets, whose own limits must "
        "spare them (verified)",
        version_min="NATS 2.12",
        versions_tested=("2.15.2",),
    ),
)
