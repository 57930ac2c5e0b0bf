"""The delay of a message: given as a time or in seconds, and resolved to a time of the producers' database."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

DELAY_MAX_S: Final = 400 * 86_400
"""Longest delay of a message, in seconds: 400 days."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Delay(msgspec.Struct, frozen=True):
    """When a message is due: at `at_ms`, milliseconds since 1970, or `after_ms` milliseconds after it is written.

    The clock of the database that has the messages decides both.
    """

    at_ms: int = 0
    after_ms: int = 0

    def due_ms(self, now_ms: int) -> int:
        """Return the time at which the message is due, where *now_ms* is the database's time now; never before that.

        An inbox counts from it, so a message with a time that has long passed must not be old when it is written.
        """
        return max(self.at_ms, now_ms + self.after_ms)


def delay_of(deliver_at: datetime | None, delay_s: float | None) -> Delay:
    """Return the delay of a message that has one; each time is rounded up to a whole millisecond, so never early."""
    if deliver_at is not None:
        since = deliver_at - _EPOCH
        whole_ms, rest = divmod(since.microseconds, 1000)
        return Delay(at_ms=max((since.days * 86_400 + since.seconds) * 1000 + whole_ms + bool(rest), 1))
    assert delay_s is not None
    return Delay(after_ms=math.ceil(delay_s * 1000) + 1)  # the database's clock is read up to a millisecond before


def fault_of(deliver_at: Any, delay_s: Any, now_ms: int | None = None) -> tuple[str, str] | None:
    """Return the field that is wrong and why; None where the delay is valid.

    Args:
        now_ms: The wall clock, to find a `deliver_at` that is too far away; None before the message is published.
    """
    if deliver_at is not None and delay_s is not None:
        return "deliver_at", "and delay_s were both given; give one of them"
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            return "deliver_at", f"must be a datetime with a time zone, not {type(deliver_at).__name__}"
        if deliver_at.utcoffset() is None:
            return (
                "deliver_at",
                "has no time zone; write datetime(…, tzinfo=UTC), or add a timedelta to the time in UTC",
            )
        if now_ms is not None and delay_of(deliver_at, None).at_ms > now_ms + DELAY_MAX_S * 1000:
            return "deliver_at", f"is {deliver_at.isoformat()}, more than 400 days from now"
        return None
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float):
        return "delay_s", f"must be a number of seconds, not {type(delay_s).__name__}"
    if not 0 < delay_s <= DELAY_MAX_S:
        return "delay_s", f"is {delay_s!r}; it must be more than 0 and at most {DELAY_MAX_S} seconds (400 days)"
    return None
