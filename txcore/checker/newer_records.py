"""Records of a newer txcore: they stop their partition, unless the settings say that such halves are parked (R12)."""

from __future__ import annotations

from txcore.checker.decide import Pending, unreadable
from txcore.checker.limits import NewerRecords
from txcore.checker.tenure import Tenure
from txcore.errors import NewerRecordError
from txcore.records import LogRecord, ParkCode
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow


def stop_unless_parked(tenure: Tenure, error: NewerRecordError) -> None:
    """Raise *error*, which ends the reading, unless the settings say to park newer halves and to skip newer ops."""
    if tenure.context.limits.newer_records is not NewerRecords.PARK:
        raise error


def newer_half(tenure: Tenure, record: LogRecord, error: NewerRecordError) -> Pending | None:
    """Return a pending that is parked under the half's own id; None if it is no half of this partition.

    Raises:
        NewerRecordError: the settings say that the partition stops there.
    """
    is_ours = error.group == tenure.context.group and error.partition == tenure.partition
    if not is_ours or error.transaction_id is None:
        return None
    stop_unless_parked(tenure, error)
    reason = f"position {record.position}: {error}"
    identity = bytes(error.transaction_id)
    return unreadable(identity, record.position, error.generation, ParkCode.NEWER, reason, record.body)


def wait_for_upgrade(tenure: Tenure, error: NewerRecordError) -> Flow[None]:
    """Hold the partition without touching it: claiming it again and again would change nothing."""
    tenure.blocked = str(error)
    tenure.context.report.event(names.PARTITION_BLOCKED, partition=tenure.partition, reason=tenure.blocked)
    while tenure.is_active and not tenure.is_draining:
        yield tenure.context.limits.idle_poll_s
