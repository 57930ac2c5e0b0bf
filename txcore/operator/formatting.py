"""Times, sizes and bytes as people read and write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from txcore.errors import UsageError

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?[smhdw])+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_MAX: Final = 200


def duration_s(text: str, option: str) -> float:
    """Return the seconds of a duration such as `90s`, `15m`, `1h30m`, `2d`.

    Raises:
        UsageError: *text* has no unit, or is not a duration; the error names *option*.
    """
    compact = text.replace(" ", "").lower()
    if not _DURATION.fullmatch(compact):
        raise UsageError(f"{option} takes a duration such as 90s, 15m, 1h30m or 2d, not {text!r}")
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(compact))


def age(seconds: float) -> str:
    """Return an age in its two largest units: `5s`, `3m10s`, `2h5m`, `4d1h`."""
    whole = max(int(seconds), 0)
    for large, small, unit_s, part_s in (("d", "h", 86_400, 3_600), ("h", "m", 3_600, 60), ("m", "s", 60, 1)):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s}{large}{f'{rest}{small}' if rest else ''}"
    return f"{whole}s"


def iso(wall_ms: int) -> str:
    """Return a moment in UTC, to the millisecond; beyond Python's calendar the plain number."""
    try:
        moment = _EPOCH + timedelta(milliseconds=wall_ms)
    except OverflowError:
        return f"{wall_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of_iso(text: str) -> int:
    """Return an ISO time in milliseconds since 1970; without a zone it is UTC.

    Raises:
        UsageError: *text* is no such time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a time such as 2026-01-31T12:00:00+00:00") from error
    return ms_of(moment)


def ms_of(moment: datetime) -> int:
    """Return a moment in milliseconds since 1970; without a zone it is UTC."""
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def size(count: int) -> str:
    """Return a number of bytes."""
    if count < 10_000:
        return f"{count} B"
    return f"{count / 1024:.0f} KiB" if count < 10 << 20 else f"{count / (1 << 20):.0f} MiB"


def harmless(text: str) -> str:
    """Return *text* with the characters escaped that a terminal obeys or hides, such as ESC; line ends stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


def one_line(text: str) -> str:
    """Return *text* on one line, as `harmless` does else."""
    return harmless(text).replace("\n", "\\n")


def readable(value: str | bytes, length_max: int = TEXT_MAX) -> str:
    """Return a key, header or body as one line of limited length, control characters and other bytes escaped."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            head = value[: length_max // 2]
            return f"0x{head.hex()}{f'… ({size(len(value))})' if len(head) < len(value) else ''}"
    else:
        text = value
    shown = one_line(text[:length_max])
    return f"{shown}… ({len(text):,} characters)" if len(text) > length_max else shown
