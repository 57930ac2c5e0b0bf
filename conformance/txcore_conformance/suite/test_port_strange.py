"""Foreign records in a log, and targets that do not exist."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from txcore.records import HalfRecord, LogKind, LogRecord, Status, TargetMessage
from txcore_conformance import raw
from txcore_conformance.kit import Kit

BUSY_S = 2.0
"""Extra time, in seconds, for a busy machine."""


def test_a_target_that_does_not_exist_is_refused_in_time(kit: Kit, topic: str) -> None:
    """The target is REFUSED within `release_time_max_s`, named in `missing`, without an op: it is not an outage."""
    missing = kit.harness.missing_topic()
    if missing is None:
        pytest.skip("any topic will do on this backend")
    half, good = raw.half(kit, topic), raw.half(kit, topic)
    raw.append(kit, half, good)
    gone = HalfRecord(
        half.group, 0, half.transaction_id, 0, half.body, [TargetMessage(missing, b"key", b"payload", {})]
    )
    began_s = time.monotonic()
    refused, accepted = raw.release(kit, raw.commit(gone), raw.commit(good))
    assert time.monotonic() - began_s < kit.promises.release_time_max_s + BUSY_S
    assert (Status.REFUSED, (0,)) == (refused.status, refused.missing)
    assert Status.DURABLE is accepted.status
    assert [good.transaction_id] == [each.transaction_id for each in raw.ops(kit)]
    assert [b"payload"] == kit.bodies(topic)


@pytest.mark.parametrize("kind", [LogKind.OP, LogKind.HALF])
def test_stray_bytes_in_a_log_are_returned_unchanged(kit: Kit, topic: str, kind: LogKind) -> None:
    """A reader returns foreign bytes unchanged, and then the records after them."""
    stray = b"\xc1 no record of txcore's"
    first, last = raw.half(kit, topic), raw.half(kit, topic)
    for half in (first, last):
        raw.append(kit, half)
        raw.release(kit, raw.rollback(half))
        if half is first and not kit.harness.append_stray(kit.group, kind, 0, stray):
            pytest.skip("this backend's logs cannot be written by others")
    kit.history.unjudged = "a log holds bytes that are not a record"

    def is_last(found: Sequence[LogRecord]) -> bool:
        return bool(found) and last.transaction_id in found[-1].body

    bodies = [record.body for record in raw.read(kit, kind, is_last)]
    # A reader of a group that signs returns the bytes after the reason why it does not believe them.
    (place,) = (index for index, body in enumerate(bodies) if body.endswith(stray))
    assert first.transaction_id in bodies[place - 1]
    reader = kit.backend.read(kit.group, kind, 0)
    end = kit.wait(reader.end())
    kit.until(lambda: reader.passed >= end or reader.read(1) is None, "the end")
    reader.close()
