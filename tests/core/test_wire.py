"""The wire format: what is written is read back, and any other bytes are a WireFormatError and nothing else."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txcore import wire
from txcore.errors import WireFormatError
from txcore.records import Half, Op, OpKind, Parked, TargetMessage

ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**63 - 1)
messages = st.builds(
    TargetMessage,
    st.text(max_size=20),
    st.none() | st.binary(max_size=20),
    st.binary(max_size=200),
    st.dictionaries(st.text(max_size=10), st.text(max_size=20) | st.binary(max_size=20), max_size=5),
)
halves = st.builds(
    Half,
    version=st.just(1),
    transaction_id=ids,
    group=st.text(max_size=20),
    partition=numbers,
    generation=numbers,
    born_ms=numbers,
    immunity_ms=numbers,
    interval_ms=numbers,
    check_max=numbers,
    fenced=st.booleans(),
    by=st.text(max_size=20),
    messages=st.lists(messages, max_size=4),
    first_appended_ms=numbers,
    age_ms=numbers,
    count=numbers,
    folded_to=st.integers(-1, 2**63 - 1),
    decided=st.sampled_from([0, 1, 2]),
    token=st.binary(max_size=16),
    reason=st.text(max_size=30),
    missing=st.lists(numbers, max_size=4),
)
ops = st.builds(
    Op,
    kind=st.sampled_from([int(kind) for kind in OpKind]),
    transaction_id=ids,
    generation=numbers,
    by=st.text(max_size=20),
    at_ms=numbers,
    token=st.binary(max_size=16),
    count=numbers,
    decision=st.sampled_from([0, 1, 2]),
    forced=st.sampled_from([0, 1, 2]),
    reason=st.text(max_size=30),
)
parked = st.builds(
    Parked,
    version=st.just(1),
    transaction_id=ids,
    generation=numbers,
    code=st.text(max_size=20),
    reason=st.text(max_size=30),
    count=numbers,
    by=st.text(max_size=20),
    at_ms=numbers,
    token=st.binary(max_size=16),
    half=st.binary(max_size=100),
    missing=st.lists(numbers, max_size=4),
)
DECODERS = (wire.decode_half, wire.decode_ops, wire.decode_parked)
SOME_OPS = [Op(OpKind.COMMIT, bytes(16), by="p"), Op(OpKind.CHECKED, bytes(16), count=3, token=b"t" * 16)]
SOME_HALF = Half(
    1,
    bytes(16),
    "orders",
    0,
    0,
    1,
    6_000,
    0,
    0,
    fenced=True,
    by="p",
    messages=[TargetMessage("t", b"k", b"body", {"a": "b", "c": b"d"})],
)


@given(halves)
def test_a_half_is_read_back_as_it_was_written(half):
    """Every field, payload bytes included."""
    assert half == wire.decode_half(wire.encode_half(half))


@given(st.lists(ops, max_size=5))
def test_merged_ops_are_read_back_in_order(written):
    """One record, one or many ops."""
    assert written == wire.decode_ops(wire.encode_ops(written))


@given(parked)
def test_a_parked_record_is_read_back_as_it_was_written(record):
    """The half inside stays bytes."""
    assert record == wire.decode_parked(wire.encode_parked(record))


def decode_all(body):
    """Decode *body* as each kind of record; only WireFormatError may come out."""
    for decoder in DECODERS:
        with contextlib.suppress(WireFormatError):
            decoder(body)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x91" * 5_000)
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
def test_random_bytes_are_a_wire_format_error(body):
    """Whatever stands in a log, the checker gets one kind of error."""
    decode_all(body)


@given(st.sampled_from([wire.encode_half(SOME_HALF), wire.encode_ops(SOME_OPS)]), st.data())
def test_damaged_records_are_read_or_refused(body, data):
    """A record with changed, inserted or missing bytes never raises anything else."""
    place = data.draw(st.integers(0, len(body) - 1))
    cut = data.draw(st.integers(0, 8))
    decode_all(body[:place] + data.draw(st.binary(max_size=8)) + body[place + cut :])


def changed(body, change):
    """Return *body* with its outer array changed by a function."""
    fields = msgspec.msgpack.decode(body)
    change(fields)
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize("index", [2, 12])
def test_a_field_of_another_type_is_refused(index):
    """By the field's place."""
    with pytest.raises(WireFormatError, match=r"half record"):
        wire.decode_half(changed(wire.encode_half(SOME_HALF), lambda fields: fields.__setitem__(index, 1.5)))


def test_an_unknown_op_kind_is_refused():
    """A later version's op is not skipped silently."""
    with pytest.raises(WireFormatError, match="op kind 99 is unknown"):
        wire.decode_ops(wire.encode_ops([Op(99, bytes(16))]))


@pytest.mark.parametrize("length", [0, 15, 17])
def test_an_id_of_another_length_is_refused(length):
    """In halves and ops alike."""
    with pytest.raises(WireFormatError, match="16 bytes"):
        wire.decode_ops(wire.encode_ops([Op(OpKind.COMMIT, bytes(length))]))


@pytest.mark.parametrize("value", [1, None, ["x"], 1.5, {"a": "b"}])
def test_a_header_that_is_neither_text_nor_bytes_is_refused(value):
    """It could not be published."""
    half = msgspec.structs.replace(SOME_HALF, messages=[TargetMessage("t", None, b"", {"a": value})])
    with pytest.raises(WireFormatError, match="neither str nor bytes"):
        wire.decode_half(wire.encode_half(half))


def test_one_kind_of_record_is_not_taken_for_another():
    """Tags tell them apart."""
    body = wire.encode_half(SOME_HALF)
    for decoder in (wire.decode_ops, wire.decode_parked):
        with pytest.raises(WireFormatError):
            decoder(body)


def test_target_headers_are_the_users_then_ours():
    """The key travels as a header only where records have none."""
    message = TargetMessage("t", b"k", b"", {"a": "b"})
    with_key = wire.target_headers("orders", bytes(16), 2, message, "p:1", key_as_header=True)
    assert {
        "a": "b",
        "txcore-id": "00000000-0000-0000-0000-000000000000:2",
        "txcore-group": "orders",
        "txcore-by": "p:1",
        "txcore-key": b"k",
    } == with_key
    without = wire.target_headers("orders", bytes(16), 2, message, "p:1", key_as_header=False)
    assert set(with_key) - set(without) == {"txcore-key"}
    assert {"a": "b"} == message.headers
