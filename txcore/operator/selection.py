"""The transactions that a command concerns: ids that may be shortened, and filters.

An id begins with the time of its birth, so the beginnings of neighbours are alike; its end is random. The short form
that is shown is therefore the end of the id, and both ends are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from txcore.errors import UsageError
from txcore.history.journey import Journey, topics_of
from txcore.history.parked_entries import half_in
from txcore.ids import id_text
from txcore.operator import formatting
from txcore.records import Half, ParkCode

SHORT_LENGTH: Final = 8
SHORTEST: Final = 4
CANDIDATES_MAX: Final = 10
_PART: Final = re.compile(r"[0-9a-f]+")
_INDEX: Final = re.compile(r":\d+$")
HEX_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """An id as the operator wrote it: hexadecimal, whole or one end of it."""

    text: str
    digits: str

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole id."""
        return len(self.digits) == HEX_LENGTH

    def matches(self, transaction_id: bytes) -> bool:
        """Return whether the id begins or ends with these digits."""
        digits = transaction_id.hex()
        return digits.startswith(self.digits) or digits.endswith(self.digits)


def wanted(text: str) -> Wanted:
    """Return the id that *text* gives: an id, its beginning or end, or a `txcore-id` header.

    Raises:
        UsageError: *text* is none of these.
    """
    digits = _INDEX.sub("", text.strip().lower()).replace("-", "").removeprefix("…")
    if not _PART.fullmatch(digits) or len(digits) > HEX_LENGTH:
        raise UsageError(
            f"{text!r} is not a transaction id: give the UUID, or its first or last {SHORTEST} or more digits"
        )
    if len(digits) < SHORTEST:
        raise UsageError(f"{text!r} is too short: give at least {SHORTEST} digits of the id, from its beginning or end")
    return Wanted(text, digits)


def the_one(of: Wanted, known: Iterable[bytes]) -> bytes | None:
    """Return the one matching id, None when none matches.

    Raises:
        UsageError: several match; the error lists the candidates.
    """
    found = sorted({identity for identity in known if of.matches(identity)})
    if len(found) > 1:
        listed = ", ".join(id_text(identity) for identity in found[:CANDIDATES_MAX])
        more = f" and {len(found) - CANDIDATES_MAX:,} more" if len(found) > CANDIDATES_MAX else ""
        raise UsageError(f"{of.text!r} is ambiguous, it may be {listed}{more}")
    return found[0] if found else None


def short_ids(transaction_ids: Collection[bytes]) -> dict[bytes, str]:
    """Return the shortest ends, of at least eight digits, that are different for these ids."""
    length = SHORT_LENGTH
    while True:
        shorts = {identity: identity.hex()[-length:] for identity in transaction_ids}
        if len(set(shorts.values())) == len(shorts) or length >= HEX_LENGTH:
            return shorts
        length += 4


def short_id(transaction_id: bytes) -> str:
    """Return the usual short form of one id."""
    return transaction_id.hex()[-SHORT_LENGTH:]


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions for a transaction; each given one must hold."""

    older_than_s: float | None = None
    topic: str = ""
    reason: str = ""
    is_all: bool = False
    key: str = ""

    def __bool__(self) -> bool:
        return self.is_all or self.older_than_s is not None or bool(self.topic or self.reason or self.key)

    def accepts(self, journey: Journey, now_ms: int) -> bool:
        """Return whether *journey* matches; its age is that of the half, or of the parked record if it is parked."""
        entry = journey.parked_as
        if self.reason and (entry is None or entry.code != self.reason):
            return False
        if self.topic and self.topic not in topics_in(journey):
            return False
        if self.key and not any(is_key(self.key, each) for each in keys_in(journey)):
            return False
        return self.older_than_s is None or age_s(journey, now_ms) > self.older_than_s


ALL: Final = Filter(is_all=True)
"""The filter without a condition."""


def reason_code(text: str) -> str:
    """Return the park code that *text* names, in upper or lower case.

    Raises:
        UsageError: there is no such code.
    """
    code = text.strip().upper().replace("-", "_")
    if code and code not in {str(each) for each in ParkCode}:
        codes = ", ".join(ParkCode)
        raise UsageError(f"--reason selects by the reason for parking ({codes}), not {text!r}; say why with --why")
    return code


def topics_in(journey: Journey) -> tuple[str, ...]:
    """Return the topics of a transaction, from its half or from its parked record."""
    half = _half_in(journey)
    return topics_of(half) if half is not None else ()


def keys_in(journey: Journey) -> tuple[bytes, ...]:
    """Return the keys of a transaction's messages, from its half or from its parked record."""
    half = _half_in(journey)
    return () if half is None else tuple(each.key for each in half.messages if each.key is not None)


def is_key(text: str, key: bytes) -> bool:
    """Return whether *text* names this key of a message: as UTF-8, or in the form in which it is shown."""
    return text.encode() == key or text == formatting.readable(key)


def _half_in(journey: Journey) -> Half | None:
    return journey.half or (half_in(journey.parked[-1]) if journey.parked else None)


def since_ms(journey: Journey) -> int:
    """Return the time of parking for a parked transaction, else the birth of its half; in milliseconds."""
    entry = journey.parked_as
    return journey.born_ms if entry is None else entry.at_ms


def age_s(journey: Journey, now_ms: int) -> float:
    """Return the seconds since `since_ms`; never negative, as clocks differ."""
    return max(now_ms - since_ms(journey), 0) / 1000


def oldest_first(journeys: Iterable[Journey]) -> Sequence[Journey]:
    """Return the journeys in the order in which operators read them."""
    return sorted(journeys, key=lambda journey: (since_ms(journey), journey.transaction_id))
