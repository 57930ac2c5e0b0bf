"""Records with any content become rows of the audit: no content makes a range unreadable."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from txcore_spark.plan import HALF as HALF_LOG
from txcore_spark.plan import Range, Source
from txcore_spark.readers.ranges import read_range
from txcore_spark.rows import Place, Rows

from txcore import wire
from txcore.records import (
    CHECK_MAX_MAX,
    COUNT_MAX,
    WAIT_S_MAX,
    WALL_MS_MAX,
    Half,
    LogKind,
    Op,
    OpKind,
    ParkCode,
    Parked,
    TargetMessage,
)
from txcore.registry import connect
from txcore.signing import GroupKeys

HALF = Half(1, bytes(16), "g", 0, 0, 1, 1, 1, 1, fenced=False, by="p", messages=[TargetMessage("t", None, b"", {})])
ABSURD = (10**18, 2**63, 2**64 - 1, -1, -(2**63))
TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)


def rows():
    """Return empty rows of one place whose topic carries messages of group g."""
    return Rows(Place(0, 0, 0, 0), {"g": 0})


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize(
    "name",
    ["generation", "born_ms", "immunity_ms", "interval_ms", "check_max", "first_appended_ms", "count", "decided"],
)
def test_a_half_with_an_absurd_number_is_no_row(name, value):
    """Such a half is counted as strange; the other records of its range are judged."""
    found = rows()
    found.add_half(1, wire.encode_half(msgspec.structs.replace(HALF, **{name: value})), None)
    found.add_half(2, wire.encode_half(HALF), None)
    assert (1, 1) == (found.strange, found.take().num_rows)


@pytest.mark.parametrize(("may_lack_row", "flags"), [(False, 1), (True, 0)])
def test_only_a_half_that_the_fence_decides_alone_needs_its_row(may_lack_row, flags):
    """A listener may have committed without one, so its COMMIT without a row is no wrong decision."""
    found = rows()
    half = msgspec.structs.replace(HALF, fenced=True, may_lack_row=may_lack_row)
    found.add_half(1, wire.encode_half(half), None)
    assert [flags] == found.take().column("flags").to_pylist()


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize("name", ["generation", "at_ms", "count", "decision", "forced"])
def test_an_op_with_an_absurd_number_is_no_row(name, value):
    """Such an op is counted as strange; the other records of its range are judged."""
    found = rows()
    found.add_ops(1, wire.encode_ops([msgspec.structs.replace(Op(OpKind.COMMIT, bytes(16)), **{name: value})]), None)
    found.add_ops(2, wire.encode_ops([Op(OpKind.COMMIT, bytes(16))]), None)
    assert (1, 1) == (found.strange, found.take().num_rows)


@given(TIMES)
def test_the_largest_numbers_of_a_record_fit_into_a_row(appended_ms):
    """Their sums and any time of the broker fit too; the half of that generation is a copy, with a row more."""
    half = msgspec.structs.replace(
        HALF,
        transaction_id=b"\xff" * 16,
        generation=COUNT_MAX,
        born_ms=WALL_MS_MAX,
        immunity_ms=WAIT_S_MAX * 1000,
        interval_ms=WAIT_S_MAX * 1000,
        check_max=CHECK_MAX_MAX,
    )
    op = Op(OpKind.DISCARD, b"\xff" * 16, COUNT_MAX, "c", WALL_MS_MAX, b"t", COUNT_MAX, 2, 2, "POISON")
    parked = Parked(1, b"\xff" * 16, COUNT_MAX, ParkCode.POISON, "r", COUNT_MAX, "c", WALL_MS_MAX, b"t", b"")
    found = rows()
    found.add_half(1, wire.encode_half(half), appended_ms)
    found.add_ops(1, wire.encode_ops([op]), appended_ms)
    found.add_parked(1, wire.encode_parked(parked), appended_ms)
    assert (0, 4) == (found.strange, found.take().num_rows)


TEXTS = st.text(st.characters(), max_size=30)
VALUES = TEXTS | st.binary(max_size=30)
IDS_HEAD = b"00000000-0000-0000-0000-000000000000:"
IDS = st.sampled_from([IDS_HEAD + end for end in (b"0", b"-1", b"9" * 5_000, b"\xd9\xa1", b"1_0")])


@given(
    key=st.none() | st.binary(max_size=9),
    name=IDS | VALUES,
    headers=st.dictionaries(TEXTS | st.just(wire.HEADER_KEY), VALUES),
    at=TIMES,
)
@example(None, IDS_HEAD + b"0", {wire.HEADER_KEY: "\ud800"}, 2**63 - 1)
def test_any_target_is_a_row_or_strange(key, name, headers, at):
    """A target with any content is a row or strange, even if its text is not UTF-8."""
    found = rows()
    found.add_target(1, "t", key, b"body", {**headers, wire.HEADER_ID: name, wire.HEADER_GROUP: "g"}, at)
    assert 1 == found.strange + found.take().num_rows


SECRET = bytes(range(32))
KEYS = GroupKeys(sign_with="a", keys={"a": SECRET})
FORGER = GroupKeys(sign_with="a", keys={"a": SECRET[::-1]})
PARKED = Parked(1, bytes(16), 0, "POISON", "r", 0, "c", 0, b"", b"x")


def add_all(found, keys):
    """Add a half, an op and a parked record, signed with *keys*."""
    found.add_half(1, keys.sign("g", 0, LogKind.HALF, wire.encode_half(HALF)), None)
    found.add_ops(1, wire.encode_ops([keys.sign_op("g", 0, Op(OpKind.COMMIT, bytes(16)))]), None)
    found.add_parked(1, keys.sign("g", 0, LogKind.PARKED, wire.encode_parked(PARKED)), None)
    return found.strange, found.take().num_rows


def test_signed_records_become_the_same_rows():
    """The audit reads a signing group with and without its keys; its rows are those of unsigned records."""
    plain = rows()
    plain.add_half(1, wire.encode_half(HALF), None)
    signed = rows()
    signed.add_half(1, KEYS.sign("g", 0, LogKind.HALF, wire.encode_half(HALF)), None)
    assert plain.take() == signed.take()
    assert (0, 3) == add_all(rows(), KEYS)
    assert (0, 3) == add_all(Rows(Place(0, 0, 0, 0), {"g": 0}, KEYS, "g"), KEYS)


def test_forged_records_are_strange_to_an_audit_with_keys():
    """Records of another key, and records without a signature, prove nothing to it."""
    assert (3, 0) == add_all(Rows(Place(0, 0, 0, 0), {"g": 0}, KEYS, "g"), FORGER)
    found = Rows(Place(0, 0, 0, 0), {"g": 0}, KEYS, "g")
    found.add_half(1, wire.encode_half(HALF), None)
    assert (1, 0) == (found.strange, found.take().num_rows)


def test_missing_file_of_keys_is_a_gap_of_its_range(tmp_path):
    """A task that cannot read the keys reports its range as unread, with the reason; it does not end the job."""
    source = Source(0, "main", HALF_LOG, "g", group="g")
    url = f"sqlite:///{tmp_path}/broker.db"
    with connect(url) as backend:
        backend.ensure_group("g", 1).result(10)
    wanted = Range(source, Place(0, 0, 0, 0), 1, 2, signing_keys=str(tmp_path / "absent.toml"))
    (batch,) = read_range(url, wanted)
    assert "the file of signing keys cannot be read" in str(batch.to_pylist())
