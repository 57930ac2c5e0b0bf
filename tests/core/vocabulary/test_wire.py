"""The wire format: written records are read back; all other bytes are a WireFormatError and nothing else."""

from __future__ import annotations

import contextlib
from typing import get_type_hints

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txcore import wire
from txcore.errors import NewerRecordError, WireFormatError
from txcore.message import CheckPolicy
from txcore.records import (
    CHECK_MAX_MAX,
    COUNT_MAX,
    POSITION_MAX,
    WAIT_S_MAX,
    WALL_MS_MAX,
    Half,
    Op,
    OpKind,
    Parked,
    TargetMessage,
)

ids = st.binary(min_size=16, max_size=16)
times = st.integers(0, WALL_MS_MAX)
waits = st.integers(0, WAIT_S_MAX * 1000)
counts = st.integers(0, COUNT_MAX)
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
    partition=counts,
    generation=counts,
    born_ms=times,
    immunity_ms=waits,
    interval_ms=waits,
    check_max=st.integers(0, CHECK_MAX_MAX),
    fenced=st.booleans(),
    by=st.text(max_size=20),
    messages=st.lists(messages, min_size=4, max_size=4),
    first_appended_ms=times,
    age_ms=times,
    count=counts,
    folded_to=st.integers(-1, POSITION_MAX),
    decided=st.sampled_from([0, 1, 2]),
    token=st.binary(max_size=16),
    reason=st.text(max_size=30),
    missing=st.lists(st.integers(0, 3), unique=True),
)
ops = st.builds(
    Op,
    kind=st.sampled_from([int(kind) for kind in OpKind]),
    transaction_id=ids,
    generation=counts,
    by=st.text(max_size=20),
    at_ms=times,
    token=st.binary(max_size=16),
    count=counts,
    decision=st.sampled_from([0, 1, 2]),
    forced=st.sampled_from([0, 1, 2]),
    reason=st.text(max_size=30),
)
parked = st.builds(
    Parked,
    version=st.just(1),
    transaction_id=ids,
    generation=counts,
    code=st.text(max_size=20),
    reason=st.text(max_size=30),
    count=counts,
    by=st.text(max_size=20),
    at_ms=times,
    token=st.binary(max_size=16),
    half=st.binary(max_size=100),
    missing=st.lists(counts, max_size=4),
)
DECODERS = (wire.decode_half, wire.decode_ops, wire.decode_parked)
SOME_OPS = [Op(OpKind.COMMIT, bytes(16), by="p"), Op(OpKind.CHECKED, bytes(16), count=3, token=b"t" * 16)]
SOME_HALF = Half(
    1,
    bytes(16),
    "orders",
    3,
    2,
    1,
    6_000,
    0,
    0,
    fenced=True,
    by="p",
    messages=[TargetMessage("t", b"k", b"body", {"a": "b", "c": b"d"})],
)

SOME_PARKED = Parked(1, bytes(16), 4, "POISON", "r", 0, "c", 1, b"t" * 16, b"half", [1])


@given(half=halves, others=st.lists(st.tuples(ids, counts, messages), max_size=4))
def test_a_template_encodes_many_halves_as_the_encoder_does(half, others):
    """Halves with one message each that are encoded together have the bytes of those encoded one by one."""
    identities, partitions, some = zip(*others, strict=True) if others else ((), (), ())
    expected = [
        wire.encode_half(msgspec.structs.replace(half, transaction_id=each, partition=partition, messages=[message]))
        for each, partition, message in others
    ]
    assert expected == wire.HalfTemplate(half).encode_each(identities, partitions, some)


@given(ops, st.lists(ids, max_size=3))
def test_a_template_encodes_ops_as_the_encoder_does(op, identities):
    """Ops that differ in their transaction only have the bytes of those encoded one by one."""
    expected = [wire.encode_op(msgspec.structs.replace(op, transaction_id=each)) for each in identities]
    assert expected == wire.OpTemplate(op).encode_each(identities)


@given(st.lists(ops, max_size=20))
def test_encoded_ops_make_the_record_of_their_ops(some):
    """A record of ops that were encoded before has the bytes of a record of the same ops."""
    assert wire.encode_ops(some) == wire.op_record([wire.encode_op(op) for op in some])


@given(halves)
def test_a_half_is_read_back_as_it_was_written(half):
    """Each field of a half is read back as it was written, payload bytes included."""
    assert half == wire.decode_half(wire.encode_half(half))


@given(st.lists(ops, max_size=5))
def test_merged_ops_are_read_back_in_order(written):
    """The ops of a record, however many, are read back in their order."""
    assert written == wire.decode_ops(wire.encode_ops(written))


@given(parked)
def test_a_parked_record_is_read_back_as_it_was_written(record):
    """A parked record is read back as it was written, with its half as bytes."""
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
    """For any bytes in a log, the checker gets one kind of error."""
    decode_all(body)


@given(st.sampled_from([wire.encode_half(SOME_HALF), wire.encode_ops(SOME_OPS)]), st.data())
def test_damaged_records_are_read_or_refused(body, data):
    """A record with changed, inserted or missing bytes raises no error but WireFormatError."""
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
    """A half with a field of another type is refused."""
    with pytest.raises(WireFormatError, match=r"half record"):
        wire.decode_half(changed(wire.encode_half(SOME_HALF), lambda fields: fields.__setitem__(index, 1.5)))


def test_an_op_of_an_unknown_kind_is_the_work_of_a_newer_txcore():
    """An op of an unknown kind raises NewerRecordError and is not skipped silently."""
    with pytest.raises(NewerRecordError, match="op kind 99 is unknown"):
        wire.decode_ops(wire.encode_ops([SOME_OPS[0], Op(99, bytes(16))]))


@pytest.mark.parametrize("kind", [-1, 0, 128, 2**64 - 1])
def test_an_op_of_an_impossible_kind_is_damage(kind):
    """An op kind that no version will ever write is damage."""
    with pytest.raises(WireFormatError, match=r"in `ops\[0\]\.kind`") as raised:
        wire.decode_ops(wire.encode_ops([Op(kind, bytes(16))]))
    assert not isinstance(raised.value, NewerRecordError)


NEWER = {
    "half": (wire.decode_half, wire.encode_half(SOME_HALF)),
    "head": (wire.decode_head, wire.encode_half(SOME_HALF)),
    "op": (wire.decode_ops, wire.encode_ops(SOME_OPS)),
    "parked": (wire.decode_parked, wire.encode_parked(SOME_PARKED)),
    "message": (wire.decode_message, wire.encode_message(SOME_HALF.messages[0])),
}


@pytest.mark.parametrize("kind", NEWER)
@pytest.mark.parametrize("last", [None, {"another": "shape"}])
def test_a_record_of_a_higher_version_is_newer_whatever_it_holds(kind, last):
    """A record of a higher version is newer, whatever its last field holds; the first fields keep their places."""
    decode, body = NEWER[kind]

    def change(fields):
        fields[1] = wire.VERSION_READ_MAX + 1
        if last is not None:
            fields[-1] = last

    with pytest.raises(NewerRecordError, match="a newer txcore reads it") as raised:
        decode(changed(body, change))
    error = raised.value
    assert wire.VERSION_READ_MAX + 1 == error.version
    if kind in {"half", "head"}:
        known = (error.transaction_id, error.group, error.partition, error.generation)
        assert (bytes(16), "orders", 3, 2) == known
    elif kind == "parked":
        assert (bytes(16), 4) == (error.transaction_id, error.generation)


@pytest.mark.parametrize("kind", NEWER)
@pytest.mark.parametrize("version", [0, -1, wire.VERSION_MAX + 1, 2**63])
def test_an_impossible_version_is_damage(kind, version):
    """A record with an impossible version is damaged, not newer: a flipped bit must not stop a partition."""
    decode, body = NEWER[kind]
    with pytest.raises(WireFormatError) as raised:
        decode(changed(body, lambda fields: fields.__setitem__(1, version)))
    assert not isinstance(raised.value, NewerRecordError)


@pytest.mark.parametrize(("index", "value"), [(2, b"short"), (2, "text"), (3, 7), (4, "first"), (5, None)], ids=str)
def test_a_higher_version_with_a_damaged_beginning_is_damage(index, value):
    """A record of a higher version is damaged if its transaction and group cannot be read."""

    def change(fields):
        fields[1], fields[index] = wire.VERSION_READ_MAX + 1, value

    with pytest.raises(WireFormatError) as raised:
        wire.decode_half(changed(wire.encode_half(SOME_HALF), change))
    assert not isinstance(raised.value, NewerRecordError)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_an_id_of_another_length_is_refused(length):
    """An id of another length is refused in every kind of record."""
    records = [
        (wire.decode_half, wire.encode_half(msgspec.structs.replace(SOME_HALF, transaction_id=bytes(length)))),
        (wire.decode_ops, wire.encode_ops([Op(OpKind.COMMIT, bytes(length))])),
        (wire.decode_parked, wire.encode_parked(msgspec.structs.replace(SOME_PARKED, transaction_id=bytes(length)))),
    ]
    for decode, body in records:
        with pytest.raises(WireFormatError, match=r"length [<>]= 16 - in `(ops\[0\]\.)?transaction_id`"):
            decode(body)


TIME, WAIT, COUNT, CHOICE = (0, WALL_MS_MAX), (0, WAIT_S_MAX * 1000), (0, COUNT_MAX), (0, 2)
RANGES = {
    "half": {
        "partition": COUNT,
        "generation": COUNT,
        "born_ms": TIME,
        "immunity_ms": WAIT,
        "interval_ms": WAIT,
        "check_max": (0, CHECK_MAX_MAX),
        "first_appended_ms": TIME,
        "age_ms": TIME,
        "count": COUNT,
        "folded_to": (-1, POSITION_MAX),
        "proved_at": (-1, POSITION_MAX),
        "release": (0, 1),
        "final_at": (-1, POSITION_MAX),
        "first_position": (-1, POSITION_MAX),
        "held_at": (-1, COUNT[1]),
        "decided": CHOICE,
        "forced": CHOICE,
    },
    "op": {"generation": COUNT, "at_ms": TIME, "count": COUNT, "decision": CHOICE, "forced": CHOICE},
    "parked": {"generation": COUNT, "count": COUNT, "at_ms": TIME},
}


def with_field(kind, name, value):
    """Return the decoder of a kind, and a record of that kind with one field changed."""
    if kind == "op":
        merged = [SOME_OPS[0], msgspec.structs.replace(SOME_OPS[1], **{name: value})]
        return wire.decode_ops, wire.encode_ops(merged)
    if kind == "half":
        return wire.decode_half, wire.encode_half(msgspec.structs.replace(SOME_HALF, **{name: value}))
    return wire.decode_parked, wire.encode_parked(msgspec.structs.replace(SOME_PARKED, **{name: value}))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in RANGES.items() for name in names])
def test_a_number_out_of_range_is_refused_by_the_name_of_its_field(kind, name):
    """A number is accepted at both ends of its range, and refused beyond them by the name of its field."""
    low, high = RANGES[kind][name]
    for value in (low, high):
        decode, body = with_field(kind, name, value)
        decode(body)
    for value in {low - 1, -(2**63), 2**64 - 1, *([high + 1] if high < POSITION_MAX else [2**63])}:
        decode, body = with_field(kind, name, value)
        with pytest.raises(WireFormatError, match=rf"in `(ops\[1\]\.)?{name}`"):
            decode(body)


def test_every_number_of_a_record_has_a_range():
    """Each number of a record has a range in the table; `version` and `kind` have rules of their own."""
    for kind, record in (("half", Half), ("op", Op), ("parked", Parked)):
        numbers = {
            name for name, hint in get_type_hints(record).items() if hint is int and name not in {"version", "kind"}
        }
        assert numbers == set(RANGES[kind]), kind


@pytest.mark.parametrize("missing", [[1], [-1], [0, 0], [5, -1, 2**40], [2**31]])
def test_targets_that_the_half_does_not_have_are_refused(missing):
    """A half is refused if its missing targets do not exist, because its owner would retry them for ever."""
    with pytest.raises(WireFormatError, match="missing"):
        wire.decode_half(wire.encode_half(msgspec.structs.replace(SOME_HALF, missing=missing)))


def test_an_absurd_field_inside_a_message_is_named():
    """The error about a field inside a message names the message's place in the list."""
    bad = [SOME_HALF.messages[0], TargetMessage(7, None, b"", {})]
    with pytest.raises(WireFormatError, match=r"in `messages\[1\]\.topic`"):
        wire.decode_half(wire.encode_half(msgspec.structs.replace(SOME_HALF, messages=bad)))


@given(
    immunity_s=st.floats(0.001, WAIT_S_MAX),
    interval_s=st.floats(0.001, WAIT_S_MAX),
    check_max=st.integers(1, CHECK_MAX_MAX),
    wall_ms=times,
)
def test_a_producer_writes_only_what_its_own_reader_takes(immunity_s, interval_s, check_max, wall_ms):
    """The reader accepts a producer's half with any policy and any clock."""
    policy = CheckPolicy(immunity_s=immunity_s, interval_s=interval_s, check_max=check_max)
    half = msgspec.structs.replace(
        SOME_HALF,
        born_ms=wall_ms,
        immunity_ms=round(policy.immunity_s * 1000),
        interval_ms=round(policy.interval_s * 1000),
        check_max=policy.check_max,
    )
    assert half == wire.decode_half(wire.encode_half(half))


@pytest.mark.parametrize("value", [1, None, ["x"], 1.5, {"a": "b"}])
def test_a_header_that_is_neither_text_nor_bytes_is_refused(value):
    """A header that is neither text nor bytes is refused, because it could not be published."""
    half = msgspec.structs.replace(SOME_HALF, messages=[TargetMessage("t", None, b"", {"a": value})])
    with pytest.raises(WireFormatError, match="neither str nor bytes"):
        wire.decode_half(wire.encode_half(half))


def test_one_kind_of_record_is_not_taken_for_another():
    """A tag distinguishes each kind of record from the others."""
    body = wire.encode_half(SOME_HALF)
    for decoder in (wire.decode_ops, wire.decode_parked):
        with pytest.raises(WireFormatError):
            decoder(body)


def test_target_headers_are_the_users_then_ours():
    """A target has the user's headers and ours; its key is a header only where records have no key."""
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
