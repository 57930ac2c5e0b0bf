"""Conversions between txcore and the driver: headers, answers, errors."""

from __future__ import annotations

import inspect

import pytest
from nats import errors
from txcore_nats.codec import (
    HEADER_BASE64,
    ApiError,
    check_message,
    check_subject,
    decode_headers,
    encode_headers,
    is_conflict,
    read_ack,
    translate,
)
from txcore_nats.targets import RESERVED_SUBJECTS, covers

from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConfigError,
    MessageRejectedError,
    TxcoreError,
)
from txcore.records import Status, TargetMessage


@pytest.mark.parametrize(
    "value",
    [
        "",
        "plain",
        "Grüße 你好 🙂",
        " spaces ",
        "two\r\nlines",
        "\x00",
        "tab\there",
        b"",
        b"bytes",
        bytes(range(256)),
        b"\xff",
    ],
)
def test_header_values_come_back(value):
    """Every header value has the same bytes after it was encoded and decoded."""
    decoded = decode_headers(encode_headers({"name": value}))
    raw = value.encode() if isinstance(value, str) else value
    got = decoded["name"]
    assert raw == (got.encode() if isinstance(got, str) else got)
    assert HEADER_BASE64 not in decoded


def test_plain_text_is_left_readable():
    """Only a value that NATS cannot carry is encoded, and a header names it."""
    encoded = encode_headers({"trace": "7", "raw": b"\x00", "name": "Grüße"})
    assert encoded == {"trace": "7", "raw": "AA==", "name": "Grüße", HEADER_BASE64: "raw"}


def test_a_foreign_base64_header_is_left_alone():
    """A header with our name from another application, or with a value that is no base64, changes nothing."""
    assert decode_headers({"a": "*", HEADER_BASE64: "a,b"}) == {"a": "*"}
    assert decode_headers(None) == {}


@pytest.mark.parametrize("name", ["two words", "colon:", "ümlaut", "a\r\nb: c", "\x00"])
def test_header_names_that_nats_cannot_carry_are_refused(name):
    """A message with a header name that NATS cannot carry is refused instead of changed."""
    with pytest.raises(MessageRejectedError) as raised:
        check_message(TargetMessage("t", None, b"", {name: "x"}), 1_000_000)
    assert raised.value.reason == "headers"


def test_sizes_are_checked_with_headers():
    """Headers count for the limits, as text or as base64: for that of all headers and that of the message."""
    check_message(TargetMessage("t", None, b"x" * 90_000, {}), 100_000)
    for headers in ({"a": "x" * 70_000}, {"a": b"\xff" * 50_000}):
        with pytest.raises(MessageRejectedError, match="headers"):
            check_message(TargetMessage("t", None, b"", headers), 1_000_000)
    with pytest.raises(MessageRejectedError) as raised:
        check_message(TargetMessage("t", None, b"x" * 90_000, {"a": b"\xff" * 10_000}), 100_000)
    assert (raised.value.reason, raised.value.topic) == ("size", "t")


@pytest.mark.parametrize(
    "subject", ["a..b", ".a", "a.", "a b", "a.*", "a.>", "*", ">", "$JS.API.x", "txc.g.h.0", "a\nb"]
)
def test_topics_that_are_no_subjects_are_refused(subject):
    """Topics with wildcards, empty tokens or spaces, and those of NATS or txcore are refused."""
    with pytest.raises(MessageRejectedError) as raised:
        check_subject(subject, RESERVED_SUBJECTS)
    assert (subject, "topic") == (raised.value.topic, raised.value.reason)


@pytest.mark.parametrize("subject", ["a", "a.b.c", "a*b", "a>b", "ä", "txcore.x", "orders-1"])
def test_other_topics_are_subjects(subject):
    """A topic is accepted if a star or a greater-than sign is only a part of a token."""
    check_subject(subject, RESERVED_SUBJECTS)


def test_stream_subjects_cover_as_in_nats():
    """In a stream's subject `*` means one token, and `>` means one or more."""

    def is_covered(pattern, subject):
        return covers(tuple(pattern.split(".")), subject.split("."))

    assert is_covered("a.b", "a.b")
    assert is_covered("a.*", "a.b")
    assert is_covered("a.>", "a.b.c")
    assert is_covered(">", "a")
    assert not is_covered("a.>", "a")
    assert not is_covered("a.*", "a.b.c")
    assert not is_covered("a.b", "a.c")


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (b'{"stream":"s","seq":7}', Status.DURABLE, type(None)),
        (b'{"stream":"s","seq":7,"duplicate":true}', Status.DURABLE, type(None)),
        (
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}',
            Status.REFUSED,
            TxcoreError,
        ),
        (b'{"error":{"code":400,"err_code":10054,"description":"message size"}}', Status.REFUSED, MessageRejectedError),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}',
            Status.REFUSED,
            TxcoreError,
        ),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"no space left"}}',
            Status.UNKNOWN,
            BackendUnavailableError,
        ),
        (
            b'{"error":{"code":503,"err_code":10008,"description":"unavailable"}}',
            Status.UNKNOWN,
            BackendUnavailableError,
        ),
        (b'{"error":{"code":500,"err_code":99999,"description":"new"}}', Status.UNKNOWN, BackendUnavailableError),
        (b"+OK from a subscriber", Status.UNKNOWN, BackendUnavailableError),
        (b"{}", Status.UNKNOWN, BackendUnavailableError),
    ],
)
def test_answers_to_a_publish(answer, status, kind):
    """Only errors known as refusals are REFUSED; other errors, and answers that no stream sent, are UNKNOWN."""
    got, error, ack = read_ack("subject", None, answer)
    assert status is got
    assert isinstance(error, kind)
    assert is_conflict(ack) is (b"10071" in answer)


def test_every_error_of_the_driver_becomes_ours():
    """Each exception class of nats-py, and any other exception, is translated into the error tree."""
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert len(classes) > 20
    for cls in classes:
        error = cls("s", "r", 1, None) if cls is errors.SlowConsumerError else cls()
        assert isinstance(translate(error, "testing"), TxcoreError)
    assert isinstance(translate(errors.TimeoutError(), "testing"), BackendTimeoutError)
    assert isinstance(translate(ValueError(), "testing"), BackendUnavailableError)
    assert isinstance(translate(ApiError(503, 10039, "JetStream not enabled"), "testing"), ConfigError)
    assert isinstance(translate(ApiError(503, 10008, "no leader"), "testing"), BackendUnavailableError)
    assert isinstance(translate(ApiError(400, 10025, "bad request"), "testing"), ConfigError)
    assert "credentials" in str(translate(errors.Error("nats: 'Authorization Violation'"), "testing"))
    ours = BackendTimeoutError("already")
    assert translate(ours, "testing") is ours
