"""Checkpoints come back from their records, and other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txcore.backends.checkpoint_record import decode_checkpoint, encode_checkpoint
from txcore.errors import WireFormatError
from txcore.records import Checkpoint, Position

POSITIONS = st.none() | st.integers(0, 2**63 - 1).map(Position)
RECORD = b"\x96\xa4txcp\x01\x03\xc0\xc4\x01t\xc4\x04note"
LATER = RECORD.replace(b"\x01\x03", b"\x09\x03")


@given(POSITIONS, POSITIONS, st.binary(), st.binary())
def test_a_checkpoint_comes_back(half, op, token, note):
    """A checkpoint is decoded with all four fields."""
    checkpoint = Checkpoint(half, op, token, note)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_a_checkpoint_has_the_same_bytes_for_ever():
    """A checkpoint that an older txcore stored is still read."""
    checkpoint = Checkpoint(Position(3), None, b"t", b"note")
    assert encode_checkpoint(checkpoint) == RECORD
    assert decode_checkpoint(RECORD) == checkpoint


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\x93", b"text", RECORD[:-1], RECORD.replace(b"\x01\x03", b"\x09\x03")]
)
def test_other_bytes_are_refused(body):
    """Damaged bytes and a checkpoint of another version are a WireFormatError."""
    with pytest.raises(WireFormatError):
        decode_checkpoint(body)
