"""Conversions between txcore and pika: errors and records; no broker is needed."""

from __future__ import annotations

import threading

import pytest
from pika import exceptions
from txcore_rabbitmq.codec import (
    decode_announcement,
    decode_checkpoint_or_marker,
    encode_marker,
    is_login_refused,
    is_missing,
    translate,
    translate_refusal,
)
from txcore_rabbitmq.connection import LoopThread

from txcore.backends.checkpoint_record import encode_checkpoint
from txcore.errors import BackendUnavailableError, ConfigError, MessageRejectedError, WireFormatError
from txcore.records import Checkpoint, Position

CLOSED = exceptions.ChannelClosedByBroker


def test_a_queue_whose_node_is_down_is_not_a_missing_queue():
    """A 404 for a queue whose node is down is a BackendUnavailableError, as the queue may exist."""
    down = CLOSED(404, "NOT_FOUND - home node 'a' of durable queue 'b' is down or inaccessible")
    missing = CLOSED(404, "NOT_FOUND - no queue 'b' in vhost '/'")
    starting = CLOSED(406, "PRECONDITION_FAILED - no replica on the local node")
    assert [is_missing(down), is_missing(missing)] == [False, True]
    kinds = [type(translate(error, "reading")) for error in (down, starting, missing)]
    assert kinds == [BackendUnavailableError, BackendUnavailableError, ConfigError]
    refusals = [type(translate_refusal(error, "topic")) for error in (down, missing)]
    assert refusals == [BackendUnavailableError, MessageRejectedError]


def test_a_setting_that_differs_is_the_errors_key():
    """The error for a different setting has that setting as its key, so that a program can find the option."""
    error = translate(
        CLOSED(406, "PRECONDITION_FAILED - inequivalent arg 'x-max-age' for queue 'q' in vhost '/': received …"),
        "group 'g'",
    )
    assert isinstance(error, ConfigError)
    assert (error.key, "group 'g'" in str(error)) == ("x-max-age", True)


@pytest.mark.parametrize("kind", [exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError])
def test_only_the_brokers_own_word_is_a_refused_login(kind):
    """A login counts as refused only if the broker itself gave the reason; pika reports a lost connection the same."""
    lost = translate(kind("StreamLostError: (\"Stream connection lost: ConnectionResetError(104, 'reset')\",)"), "x")
    said = translate(kind("ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - Login was refused'"), "x")
    assert [type(lost), type(said)] == [BackendUnavailableError] * 2
    assert [is_login_refused(lost), is_login_refused(said)] == [False, True]
    assert "refused" not in str(lost)


def test_the_innermost_of_nested_connection_errors_is_reported():
    """The reported error is the innermost one of pika's nested connection errors."""
    inner = exceptions.AMQPConnectionError(exceptions.AMQPConnectionError(ConnectionRefusedError(111, "refused")))
    assert str(translate(inner, "connecting")) == "connecting: ConnectionRefusedError(111, 'refused')"


def test_checkpoints_and_markers_travel():
    """Checkpoints and markers are decoded as they were encoded; other bytes are a WireFormatError."""
    checkpoint = Checkpoint(Position(7), None, b"t" * 16, b"note")
    assert decode_checkpoint_or_marker(encode_checkpoint(checkpoint)) == checkpoint
    assert decode_checkpoint_or_marker(encode_marker(b"nonce")) == b"nonce"
    for body in (b"", b"hello", encode_checkpoint(checkpoint)[:-1], b"\x96\xa4txcp\x02\xc0\xc0\xc4\x00\xc4\x00"):
        with pytest.raises(WireFormatError):
            decode_checkpoint_or_marker(body)
        with pytest.raises(WireFormatError):
            decode_announcement(body)


def test_a_failing_request_is_logged_and_takes_no_other_along(caplog):
    """Errors of a request, or inside the loop itself, are logged, and the thread runs later requests."""
    loop, done = LoopThread("under-test"), threading.Event()

    def fail():
        raise ValueError("not ours")

    try:
        loop.call(fail)
        loop.call(lambda: loop.ioloop.call_later(0, fail))  # not guarded, like pika's own callbacks
        loop.call(lambda: loop.later(0.05, done.set))
        assert done.wait(10)
    finally:
        loop.stop(10)
    assert [record.message for record in caplog.records] == ["rabbitmq.request_error", "rabbitmq.loop_error"]
