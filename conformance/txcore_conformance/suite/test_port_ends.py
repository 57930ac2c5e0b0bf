"""The end of a log, reported by the log itself: `Reader.end` and `Reader.passed`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from txcore.errors import BackendUnavailableError, ClosedError
from txcore.port import Reader
from txcore.records import LogKind, LogRecord, OpKind, Status
from txcore_conformance import raw
from txcore_conformance.kit import Kit, error_of

CALL_TIME_MAX_S = 0.05
"""Longest time, in seconds, of a call that promises a millisecond, on a busy machine."""
EMPTY_READS = 5


def _everything(kit: Kit, kind: LogKind, *, start: LogRecord | None = None, count_max: int = 100) -> list[LogRecord]:
    """Open a reader, ask for the end, and read up to the end."""
    reader = kit.backend.read(kit.group, kind, 0, None if start is None else start.position)
    try:
        return raw.read_to(kit, reader, kit.wait(reader.end()), count_max=count_max)
    finally:
        reader.close()


def _bodies(records: Sequence[LogRecord]) -> list[bytes]:
    return [record.body for record in records]


@pytest.mark.parametrize("kind", list(LogKind))
def test_an_empty_log_is_passed_without_a_record(kit: Kit, kind: LogKind) -> None:
    """A reader passes the end of an empty log without a record."""
    assert [] == _everything(kit, kind)


def test_a_reader_that_has_passed_the_end_has_returned_all_that_was_stored(kit: Kit, topic: str) -> None:
    """A reader has returned every stored record when `passed` reaches the end, also in small steps."""
    raw.append(kit, raw.half(kit, topic, body=b"first"))
    assert 1 == len(_everything(kit, LogKind.HALF))
    raw.append(kit, *[raw.half(kit, topic) for _ in range(40)])
    records = _everything(kit, LogKind.HALF, count_max=3)
    assert 41 == len(records)
    assert _bodies(records) == _bodies(raw.halves(kit, 41))


def test_passed_never_runs_ahead_of_what_read_returned(kit: Kit, topic: str) -> None:
    """Before each read `passed` is at or before the next record; after all reads it is after the last one."""
    raw.append(kit, *[raw.half(kit, topic) for _ in range(9)])
    everything = raw.halves(kit, 9)
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    end = kit.wait(reader.end())
    assert end > everything[-1].position
    seen = 0
    while seen < 9:
        assert reader.passed <= everything[seen].position
        batch = kit.until(lambda: list(reader.read(2)), "the next records")
        seen += len(batch)
        assert reader.passed > batch[-1].position
    raw.read_to(kit, reader, end)
    reader.close()


def test_an_end_does_not_move_with_later_records(kit: Kit, topic: str) -> None:
    """The answer of `Reader.end` excludes records appended after the call; a later call's answer includes them."""
    raw.append(kit, raw.half(kit, topic))
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    before = kit.wait(reader.end())
    raw.append(kit, *[raw.half(kit, topic) for _ in range(5)])
    after = kit.wait(reader.end())
    assert before < after
    records = raw.read_to(kit, reader, after)
    assert 1 == len([record for record in records if record.position < before])
    assert 6 == len(records)
    reader.close()


def test_a_start_in_the_middle_is_read_to_the_same_end(kit: Kit, topic: str) -> None:
    """A reader that begins in the middle returns the records after its start and passes the same end."""
    raw.append(kit, *[raw.half(kit, topic) for _ in range(9)])
    records = raw.halves(kit, 9)
    assert _bodies(records[5:]) == _bodies(_everything(kit, LogKind.HALF, start=records[5]))
    assert _bodies(records[8:]) == _bodies(_everything(kit, LogKind.HALF, start=records[8]))


def test_records_of_other_logs_after_the_last_do_not_stop_a_reader(kit: Kit, topic: str) -> None:
    """A reader passes gaps at the end of its log: other partitions, other logs, records of a transaction."""
    raw.append(kit, *[raw.half(kit, topic) for _ in range(3)])
    raw.append(kit, *[raw.half(kit, topic, partition=1) for _ in range(30)])
    other = raw.half(kit, topic, partition=1)
    raw.append(kit, other)
    raw.release(kit, raw.commit(other))
    assert 3 == len(_everything(kit, LogKind.HALF))
    assert [] == _everything(kit, LogKind.OP)
    assert [] == _everything(kit, LogKind.PARKED)


def test_an_op_log_with_merged_records_is_read_to_its_end(kit: Kit, topic: str) -> None:
    """All ops released before a tick are before the end that the log reports after that tick."""
    halves = [raw.half(kit, topic) for _ in range(60)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half, flush=False) for half in halves])
    raw.mark(kit, OpKind.TICK)
    bodies = _bodies(_everything(kit, LogKind.OP))
    assert all(any(half.transaction_id in body for body in bodies) for half in halves)


def test_the_parked_log_is_read_to_its_end(kit: Kit, topic: str) -> None:
    """Each parked record whose DISCARD is DURABLE is before the end of the parked log."""
    halves, token = [raw.half(kit, topic) for _ in range(4)], b"t" * 16
    raw.append(kit, *halves)
    raw.mark(kit, OpKind.CLAIM, token)
    parked = [raw.discard(half, token) for half in halves]
    assert {Status.DURABLE} == {outcome.status for outcome in raw.release(kit, *parked)}
    assert {each.parked for each in parked} == set(_bodies(_everything(kit, LogKind.PARKED)))
    raw.append(kit, *[raw.half(kit, topic) for _ in range(3)])
    assert 4 == len(_everything(kit, LogKind.PARKED))


def test_an_end_whose_last_records_are_gone_is_passed(kit: Kit, topic: str) -> None:
    """A reader does not wait for records that retention deletes after the end was reported."""
    raw.append(kit, *[raw.half(kit, topic) for _ in range(6)])
    records = raw.halves(kit, 6)
    kit.history.unjudged = "its halves are taken away"
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    kit.until(lambda: reader.read(1), "the first record")
    other = kit.backend.read(kit.group, LogKind.HALF, 0, records[5].position)
    end = kit.wait(other.end())
    if not kit.harness.trim(kit.group, LogKind.HALF, 0, records[5].position):
        pytest.skip("no log of this backend can be trimmed")
    raw.read_to(kit, other, end)
    for each in (reader, other):
        each.close()


def test_a_quiet_log_is_read_further_after_its_end_moved(kit: Kit, topic: str) -> None:
    """A reader that stopped at the end passes the next end too, after any time without records."""
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    raw.read_to(kit, reader, kit.wait(reader.end()))
    for _ in range(3):
        raw.append(kit, raw.half(kit, topic))
        assert 1 == len(raw.read_to(kit, reader, kit.wait(reader.end())))
    reader.close()


def test_asking_for_the_end_returns_at_once(kit: Kit, topic: str) -> None:
    """`Reader.end` does not wait for the broker, and the caller cannot cancel its Future."""
    raw.append(kit, raw.half(kit, topic))
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    kit.wait(reader.end())
    best_s = 1.0
    answers = []
    for _ in range(5):
        began_s = time.perf_counter()
        answers.append(reader.end())
        best_s = min(best_s, time.perf_counter() - began_s)
    assert not any(answer.cancel() for answer in answers)
    ends = [kit.wait(answer) for answer in answers]
    assert ends == sorted(ends)  # A backend that appends a record for each answer moves the end itself.
    assert best_s < CALL_TIME_MAX_S
    reader.close()


def test_a_closed_reader_reports_no_end(kit: Kit) -> None:
    """`Reader.end` of a closed reader raises an error, at once or through its Future."""
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    reader.close()
    assert isinstance(error_of(reader.end, kit.timeout_s), ClosedError | BackendUnavailableError)


def test_a_question_under_way_ends_with_its_reader(kit: Kit, topic: str) -> None:
    """Every Future of `Reader.end` ends after the reader or its backend is closed."""
    raw.append(kit, raw.half(kit, topic))
    backend = kit.open()
    readers = [backend.read(kit.group, kind, 0) for kind in LogKind]
    answers = [reader.end() for reader in readers]
    for reader in readers:
        reader.close()
    open_ones = [backend.read(kit.group, kind, 0) for kind in LogKind]
    late = [reader.end() for reader in open_ones]
    kit.wait(backend.close(kit.timeout_s))
    for answer in [*answers, *late]:
        error = answer.exception(kit.timeout_s)
        assert error is None or isinstance(error, BackendUnavailableError | ClosedError)
    for reader in open_ones:
        error = error_of(reader.end, kit.timeout_s)  # The Future ends, at once or in time.
        assert error is None or isinstance(error, BackendUnavailableError | ClosedError)


def test_a_silent_reader_has_passed_nothing(kit: Kit, topic: str) -> None:
    """While reads return nothing although the log has more, `passed` does not move; afterwards no record is missing."""
    silenceable = kit.harness.open_silenceable()
    if silenceable is None:
        pytest.skip("no reader of this backend can be silenced")
    backend, silence = silenceable
    kit.enlist(backend)
    raw.append(kit, raw.half(kit, topic))
    reader = backend.read(kit.group, LogKind.HALF, 0)
    first = raw.read_to(kit, reader, kit.wait(reader.end()))
    passed = reader.passed
    silence(True)
    try:
        raw.append(kit, *[raw.half(kit, topic) for _ in range(5)])
        direct = kit.backend.read(kit.group, LogKind.HALF, 0)
        end = kit.wait(direct.end())
        asked = reader.end()
        for _ in range(EMPTY_READS):
            assert [] == _read_or_nothing(reader)
            assert reader.passed == passed < end
        assert len(first) + 5 == len(raw.read_to(kit, direct, end))
        direct.close()
        if asked.exception(2 * kit.timeout_s) is None:
            assert asked.result() >= end
        assert [] == _read_or_nothing(reader)
        assert reader.passed == passed
    finally:
        silence(False)
    records = list(first)

    def is_read() -> bool:
        records.extend(_read_or_nothing(reader))
        return reader.passed >= end

    kit.until(is_read, "the rest of the log")
    assert len(first) + 5 == len(records)
    reader.close()


def _read_or_nothing(reader: Reader) -> list[LogRecord]:
    try:
        return list(reader.read(100))
    except BackendUnavailableError:
        return []
