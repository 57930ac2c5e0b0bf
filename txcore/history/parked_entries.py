"""The parked log's records: the half in one, the reason why there is none, and the CLOSED record that ends one."""

from __future__ import annotations

from typing import Final

from txcore import wire
from txcore.errors import NewerRecordError, WireFormatError
from txcore.records import Half, HalfRecord, ParkCode, Parked, Resolution

STRANGE_CODES: Final = frozenset({ParkCode.POISON, ParkCode.UNSIGNED})
"""Codes of bytes that were no half for the checker that parked them, so that their entry has an id of its own."""
POISON_TEXT: Final = "it is poison: no half, but bytes that nothing can read; `txcore show` has them"
UNSIGNED_TEXT: Final = (
    "it has no signature that this process knows, so it may be forged; if it is genuine, add its key to signing_keys, "
    'or set the group\'s unsigned to "accept", then resume it'
)
NEWER_TEXT: Final = "it was written by a newer txcore"
LOST_TEXT: Final = (
    "its half is gone from the log, and with it its messages; ask the database whether it committed, publish by hand "
    "what it should have sent, then roll it back, which takes it off the list"
)
LOST_COMMIT_TEXT: Final = (
    "its half is gone from the log, and with it its messages, but COMMIT is journaled; publish by hand those that are "
    "not out, then commit it, which takes it off the list"
)
GONE_TEXT: Final = "its half is gone from the log, there is nothing to decide"


def open_entry(before: Parked | None, record: Parked) -> Parked | None:
    """Return a transaction's open entry after *record*, in log order; a CLOSED closes those up to its generation.

    A record LOST has no messages, so it replaces no entry that has them: that one can be resumed.
    """
    if record.code == ParkCode.LOST and before is not None and before.half and before.generation >= record.generation:
        return before
    if record.code != ParkCode.CLOSED:
        return record
    return before if before is not None and before.generation > record.generation else None


def half_in(parked: Parked) -> Half | None:
    """Return the half inside a parked record; None for poison, for a newer half, and where there are no bytes.

    None also for one whose signature was wrong. A reader that has its key by now returns it with code POISON.
    """
    return None if parked.code == ParkCode.UNSIGNED else wire.half_or_none(parked.half)


def why_unreadable(parked: Parked) -> str:
    """Return why there is no half in a parked record that could be resumed, and what to do."""
    if parked.code == ParkCode.LOST:
        return LOST_TEXT
    if parked.code == ParkCode.UNSIGNED:
        return UNSIGNED_TEXT
    if is_newer(parked):
        return f"{NEWER_TEXT}; upgrade this one, then resume it"
    return POISON_TEXT if parked.half or parked.code == ParkCode.POISON else GONE_TEXT


def is_newer(parked: Parked) -> bool:
    """Return whether a parked record holds a half that a newer txcore wrote."""
    if parked.code == ParkCode.UNSIGNED:
        return False
    try:
        wire.decode_half(parked.half)
    except WireFormatError as error:
        return isinstance(error, NewerRecordError)
    return False


def closed_record(transaction_id: bytes, generation: int, by: str, at_ms: int, token: bytes = b"") -> bytes:
    """Return the parked record that closes every entry of a transaction up to *generation*.

    It is confirmed before the final op of a half whose generation is above 0, and with a dismissal. So the entry does
    not come back when retention has removed the ops.
    """
    return wire.encode_parked(
        Parked(wire.VERSION, transaction_id, generation, ParkCode.CLOSED, "", 0, by, at_ms, token, b"")
    )


def close_entry(
    group: str, partition: int, transaction_id: bytes, generation: int, by: str, at_ms: int, token: bytes = b""
) -> Resolution:
    """Return the CLOSED record, without an op, for the entry of a half that its producer ended while it was parked."""
    parked = closed_record(transaction_id, generation, by, at_ms, token)
    half = HalfRecord(group, partition, transaction_id, generation, b"", ())
    return Resolution(half, None, (), parked, by, flush=True)
