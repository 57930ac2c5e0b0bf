"""`Reader.end` and `Reader.passed`: a stream's end is found with the plugin's own marker, which no reader returns."""

from __future__ import annotations

import time

import pytest
from txcore_conformance import raw
from txcore_conformance.harness import Harness
from txcore_conformance.kit import Answers, Kit, error_of
from txcore_conformance.memory import MemoryHarness
from txcore_rabbitmq.names import log_exchange, log_name
from txcore_rabbitmq.testing import connect

from txcore import wire
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError
from txcore.history.folding import Journeys
from txcore.records import HalfRecord, LogKind, LogRecord, OpKind, Position


def records_of(kit, kind):
    """Return the message ids of all records in a log of partition 0, as a plain client reads them."""
    found = []
    with connect(kit.broker.url) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1_000)
        name = log_name(kit.group, kind, 0)
        channel.basic_publish(log_exchange(kit.group, kind), name, b"last")
        channel.basic_consume(
            name,
            lambda _channel, _method, properties, body: found.append((properties.message_id, body)),
            arguments={"x-stream-offset": "first"},
        )
        kit.until(lambda: connection.process_data_events(0) or any(body == b"last" for _, body in found))
    return [message_id for message_id, body in found if body != b"last"]


@pytest.mark.parametrize("kind", list(LogKind))
def test_the_end_of_an_empty_log_is_found_and_reached(kit, kind):
    """A reader of an empty log finds its end and passes it."""
    reader = kit.connect().read(kit.group, kind, 0)
    assert raw.read_to(kit, reader, kit.wait(reader.end())) == []
    reader.close()


def test_the_end_is_found_although_nothing_was_read_and_is_reached_with_the_last_record(kit):
    """The end of a long log is found before any record is read, and passed only with the last record."""
    backend, queue = kit.connect(), kit.queue()
    halves = [raw.half(kit, queue) for _ in range(1_000)]
    raw.append(kit, *halves, backend=backend)
    reader = backend.read(kit.group, LogKind.HALF, 0)
    assert reader.passed == 0
    end, read = kit.wait(reader.end()), []

    def is_read():
        before = len(read)
        read.extend(reader.read(7))
        assert reader.passed < end or len(read) == len(halves)
        assert len(read) == before or reader.passed > read[-1].position
        return reader.passed >= end

    while not is_read():
        pass
    assert [record.body for record in read] == [half.body for half in halves]
    later = raw.half(kit, queue)
    raw.append(kit, later, backend=backend)
    assert kit.wait(reader.end()) > end
    assert kit.until(lambda: reader.read(10))[0].body == later.body
    again = backend.read(kit.group, LogKind.HALF, 0, read[-1].position)
    kit.until(lambda: read.extend(again.read(10)) or read[-1].body == later.body)
    assert [record.body for record in read[1_000:]] == [halves[-1].body, later.body]
    for each in (reader, again):
        each.close()


def test_many_that_ask_at_once_share_a_marker(kit):
    """Two hundred questions at once need only a few markers, and their ends ascend."""
    reader = kit.connect().read(kit.group, LogKind.OP, 0)
    ends = [kit.wait(future) for future in [reader.end() for _ in range(200)]]
    assert ends == sorted(ends)
    markers = records_of(kit, LogKind.OP)
    assert 1 <= len(markers) <= 5
    assert all(marker.startswith("txcore-end.") for marker in markers)
    reader.close()


def test_two_readers_of_one_log_pass_each_others_markers(kit):
    """Two readers that ask for ends in one log pass all markers, and return none."""
    one, other = (kit.connect().read(kit.group, LogKind.HALF, 1) for _ in range(2))
    for _ in range(3):
        for reader in (one, other):
            assert raw.read_to(kit, reader, kit.wait(reader.end())) == []


def test_the_end_of_a_group_that_was_never_made_is_a_config_error(kit):
    """A question for the end of a missing group is a ConfigError."""
    reader = kit.backend.read(f"no-{kit.group}", LogKind.HALF, 0)
    error = error_of(reader.end, kit.timeout_s)
    assert isinstance(error, ConfigError)
    reader.close()


def test_a_closed_reader_answers_no_question(kit):
    """Closing a reader fails its open questions at once, and later ones too."""
    reader = kit.connect().read(kit.group, LogKind.HALF, 0)
    pending = reader.end()
    reader.close()
    began_s = time.monotonic()
    for future in (pending, reader.end()):
        error = error_of(lambda future=future: future, kit.timeout_s)
        assert error is None or isinstance(error, BackendUnavailableError)
    assert isinstance(error, BackendUnavailableError)
    assert time.monotonic() - began_s < 5.0


def test_a_broker_that_is_away_is_a_timely_error_and_then_an_answer(hurt):
    """While the network is cut, a question for the end fails in time; the same reader answers when it is back."""
    backend = hurt.connect(proxied=True, heartbeat_s=1, control_timeout_s=2)
    reader = backend.read(hurt.group, LogKind.HALF, 0)
    hurt.wait(reader.end())
    hurt.broker.proxy.refuse()
    hurt.broker.proxy.cut()
    began_s = time.monotonic()
    error = error_of(reader.end, hurt.timeout_s)
    assert isinstance(error, BackendUnavailableError | BackendTimeoutError)
    assert time.monotonic() - began_s < 15.0
    hurt.broker.proxy.forward()
    hurt.until(lambda: error_of(reader.end, hurt.timeout_s) is None)
    reader.close()


class TestAReaderThatDoesNotKnowMarkers:
    """An older plugin, which returns every record, handles markers without anything that an operator would see."""

    def test_a_checker_passes_over_the_half_and_parks_nothing(self, caplog):
        harness: Harness = MemoryHarness()
        kit = Kit(harness)
        try:
            kit.history.unjudged = "a half that no producer made"
            kit.wait(kit.backend.ensure_group(kit.group))
            nonce = bytes(15) + b"\x01"
            marker = wire.encode_end_marker(kit.group, LogKind.HALF, 0, nonce, "me")
            raw.append(kit, HalfRecord(kit.group, 0, nonce, 0, marker, []))
            checker = kit.checker(Answers())
            kit.sweep(checker)
            assert nonce not in [op.transaction_id for op in raw.ops(kit)]
            assert (kit.operator().pending(), kit.operator().parked()) == ([], [])
            assert caplog.records == []
        finally:
            kit.close()

    def test_the_op_is_a_tick_and_the_parked_record_is_skipped(self):
        nonce = bytes(15) + b"\x02"
        op = wire.decode_ops(wire.encode_end_marker("g", LogKind.OP, 0, nonce, "me"))
        assert [(each.kind, each.transaction_id) for each in op] == [(OpKind.TICK, nonce)]
        parked = wire.encode_end_marker("g", LogKind.PARKED, 0, nonce, "me")
        assert Journeys(0, b"", None).read_parked(LogRecord(Position(0), parked)) is None
