"""Halves that a checkpoint still names and the half log no longer holds; `test_log_reading` has one parked as LOST."""

from __future__ import annotations

import pytest

from txcore.checker.checkpoint_note import NoteEntry, decode_note
from txcore.checker.log_reader import Intake

A, B = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    ("read", "expected"),
    [([], [A, B]), ([(A, 0), (B, 2)], []), ([(A, 1)], [B]), ([(A, 0), (B, 1)], [B]), ([(B, 3)], [A])],
)
def test_what_was_not_read_is_lost(read, expected):
    """A copy of the same or a later generation is enough."""
    intake = object.__new__(Intake)
    intake._missing = {A: NoteEntry(A, 0, 0, 0), B: NoteEntry(B, 2, 0, 0)}
    for identity, generation in read:
        intake._found(identity, generation)
    assert expected == list(intake._missing)
    assert bool(expected) == intake.has_missing


@pytest.mark.parametrize("damaged", [b"", b"\xc1garbage", b"\x91\x94\xc4\x01a\x00\x00\x00", b"\x91\x01"])
def test_a_damaged_note_names_nothing(damaged):
    """It is a hint."""
    assert [] == decode_note(damaged)
