"""Readers report losses, leave waiting records on the server, and return halves before the ops that close them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from txcore_conformance import raw

from txcore.errors import BackendUnavailableError, DataLossError
from txcore.records import LogKind, OpKind


def test_reading_on_after_removed_records_is_a_reported_loss(kit):
    """A reader raises DataLossError if its start was trimmed, or if it starts at the beginning of a trimmed log."""
    topic = kit.topic()
    halves = [raw.half(kit, topic) for _ in range(6)]
    raw.append(kit, *halves[:2])
    records = raw.halves(kit, 2)
    raw.append(kit, *halves[2:])
    rest = raw.halves(kit, 6)
    kit.harness.trim(kit.group, LogKind.HALF, 0, rest[4].position)
    reader = kit.backend.read(kit.group, LogKind.HALF, 0, records[1].position)
    with pytest.raises(DataLossError) as raised:
        kit.until(lambda: reader.read(10))
    assert (records[1].position, rest[4].position) == (raised.value.asked, raised.value.first)
    kit.harness.trim(kit.group, LogKind.HALF, 0, rest[5].position + 1)
    nothing_left = kit.backend.read(kit.group, LogKind.HALF, 0, rest[5].position)
    with pytest.raises(DataLossError) as raised:
        kit.until(lambda: nothing_left.read(10))
    assert raised.value.first is None
    reopened = kit.backend.read(kit.group, LogKind.HALF, 0)
    raw.append(kit, halves[0])
    with pytest.raises(DataLossError) as raised:
        kit.until(lambda: reopened.read(10))
    assert raised.value.first == rest[5].position + 1
    for each in (reader, nothing_left, reopened):
        each.close()


def test_a_reader_takes_no_more_than_it_has_room_for(kit):
    """A reader buffers a limited number of records; the others wait on the server until it reads."""
    topic = kit.topic()
    count = 6_000
    for _ in range(3):
        raw.append(kit, *[raw.half(kit, topic, body=b"x") for _ in range(count // 3)])
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    kit.until(lambda: len(reader._records) >= 2_000, "a full buffer")
    kit.until(lambda: reader._is_thirsty)
    assert len(reader._records) <= 3_500
    found = []
    kit.until(lambda: found.extend(reader.read(1_000)) or len(found) >= count)
    assert count == len(found) == len({record.position for record in found})
    reader.close()


def test_ops_wait_for_halves_whose_reader_was_opened_before(kit, monkeypatch):
    """A reader of ops returns no op before a slow reader of halves, opened earlier, has all stored halves."""
    topic = kit.topic()
    halves = [raw.half(kit, topic) for _ in range(700)]
    raw.append(kit, *halves)
    raw.release(kit, raw.rollback(halves[0]))
    api = kit.backend._shared.api
    call, delayed = api.call, []

    async def slow(name, request=None):
        if name.startswith("CONSUMER.CREATE") and name.endswith("_half"):
            delayed.append(name)
            await asyncio.sleep(0.5)
        return await call(name, request)

    monkeypatch.setattr(api, "call", slow)
    first = kit.backend.read(kit.group, LogKind.HALF, 0)
    second = kit.backend.read(kit.group, LogKind.OP, 0)
    assert len(kit.until(lambda: list(second.read(10)))) == 1
    assert [len(delayed)] == [1]
    found = []
    while batch := first.read(100):
        found.extend(batch)
    assert len(found) == 700
    second.close()
    first.close()
    unread = kit.backend.read(kit.group, LogKind.HALF, 0)
    unread.close()
    third = kit.backend.read(kit.group, LogKind.OP, 0)
    lasts_s, _ = kit.lasts_s(lambda: kit.until(lambda: list(third.read(10))))
    assert lasts_s < kit.backend._options.control_timeout_s
    third.close()


def test_readers_continue_after_a_cut_without_loss_or_repetition(kit, proxy):
    """A reader whose connection is cut returns each record once, in order."""
    topic = kit.topic()
    backend = kit.connect(proxied=True)
    raw.append(kit, *[raw.half(kit, topic) for _ in range(500)])
    reader = backend.read(kit.group, LogKind.HALF, 0)
    found = []

    def read(count):
        with contextlib.suppress(BackendUnavailableError):
            found.extend(reader.read(100))
        return len(found) >= count

    kit.until(lambda: read(100))
    proxy.cut()
    raw.append(kit, *[raw.half(kit, topic) for _ in range(500)])
    kit.until(lambda: read(1_000))
    positions = [record.position for record in found]
    assert len(positions) == 1_000
    assert sorted(set(positions)) == positions
    reader.close()


def test_a_readers_consumer_that_was_deleted_is_made_again(kit):
    """A reader creates another consumer after an operator or the server deleted its consumer."""
    topic = kit.topic()
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    first = raw.half(kit, topic)
    raw.append(kit, first)
    assert kit.until(lambda: list(reader.read(10)))
    stream = f"txc_{kit.group}_half"
    for name in kit.api(f"CONSUMER.NAMES.{stream}")["consumers"]:
        kit.api(f"CONSUMER.DELETE.{stream}.{name}")
    second = raw.half(kit, topic)
    raw.append(kit, second)

    def read():
        with contextlib.suppress(BackendUnavailableError):
            return [record.body for record in reader.read(10)]

    assert [second.body] == kit.until(read)
    reader.close()


def test_a_failing_taker_of_records_loses_none(kit):
    """A record whose receiver raised an error is delivered again, with the next consumer."""
    topic = kit.topic()
    reader = kit.backend.read(kit.group, LogKind.HALF, 0)
    received, failures = reader.received, []

    def sometimes(message, sequence, appended_ms):
        if sequence == 2 and not failures:
            failures.append(sequence)
            raise RuntimeError("a caller's bug")
        received(message, sequence, appended_ms)

    reader.received = sometimes
    halves = [raw.half(kit, topic) for _ in range(3)]
    for half in halves:
        raw.append(kit, half)
    found = []

    def read():
        with contextlib.suppress(BackendUnavailableError):
            found.extend(reader.read(10))
        return len(found) >= 3

    kit.until(read)
    assert [half.body for half in halves] == [record.body for record in found]
    assert failures == [2]
    reader.close()


@pytest.mark.parametrize("kind", [LogKind.HALF, LogKind.OP, LogKind.PARKED])
def test_an_end_after_which_everything_was_purged_is_passed(kit, kind):
    """A reader passes the end although all records before it were purged, so that none arrives any more."""
    topic, token = kit.topic(), b"t" * 16
    halves = [raw.half(kit, topic) for _ in range(3)]
    raw.append(kit, *halves)
    raw.mark(kit, OpKind.CLAIM, token)
    raw.release(kit, *[raw.discard(half, token) for half in halves])
    reader = kit.backend.read(kit.group, kind, 0)
    kit.until(lambda: reader.read(1), "the first record")
    late = kit.backend.read(kit.group, kind, 0, kit.until(lambda: reader.read(1), "the second")[0].position)
    end = kit.wait(late.end())
    kit.until(lambda: late.read(1), "its first record")
    kit.until(lambda: late.read(10) or late.passed >= end, "the rest")
    raw.append(kit, *[raw.half(kit, topic) for _ in range(3)])
    raw.release(kit, *[raw.discard(raw.half(kit, topic), token) for _ in range(3)])
    end = kit.wait(late.end())
    stream, subject = kit.harness._place_of(kit.group, kind, 0)
    kit.api(f"STREAM.PURGE.{stream}", filter=subject)
    kit.until(lambda: late.read(10) is None or late.passed >= end, "the end")
    kit.history.unjudged = "its logs were purged"
    for each in (reader, late):
        each.close()
