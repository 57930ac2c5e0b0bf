"""Conversions between SQLite and txcore: errors of the driver, and headers of a target as one column."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, NotSentError, TxcoreError

encode_headers: Final = msgspec.msgpack.Encoder().encode
_decode_headers: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def decode_headers(blob: bytes) -> Mapping[str, str | bytes]:
    """Return the headers of a target as they were published."""
    headers: Mapping[str, str | bytes] = _decode_headers(blob)
    return headers


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, without the details of the extended one; -1 if the error has none."""
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else int(code) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock; the statement had no effect."""
    return primary_code(error) in _BUSY


def is_full(error: sqlite3.Error) -> bool:
    """Return whether the disk, or the bound on the file's size, is exhausted."""
    return primary_code(error) == sqlite3.SQLITE_FULL


def certain_error(error: sqlite3.Error) -> TxcoreError:
    """Return the error of a transaction that certainly stored nothing."""
    translated: TxcoreError
    if is_busy(error):
        translated = BusyError("other processes held the file's write lock for the whole busy_timeout_s; try again")
    elif is_full(error):
        translated = NotSentError("the file cannot grow: the disk or page_count_max is exhausted; make room first")
    else:
        translated = BackendUnavailableError(f"SQLite cannot write the file, nothing was stored: {error}")
    translated.__cause__ = error
    return translated


def uncertain_error(error: BaseException | None) -> TxcoreError:
    """Return the error of a transaction whose COMMIT ended in an unknown way."""
    translated = BackendTimeoutError(
        f"SQLite gave no certain answer to a COMMIT: {error or 'it did not return in time'}"
    )
    translated.__cause__ = error
    return translated


def reading_error(error: sqlite3.Error) -> TxcoreError:
    """Return the error of a failed SELECT."""
    translated = BackendUnavailableError(f"SQLite cannot read the file: {error}")
    translated.__cause__ = error
    return translated
