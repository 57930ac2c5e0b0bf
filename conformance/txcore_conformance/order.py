"""Order per key, judged from outside: first records of halves in their log, and first copies of messages in topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from txcore.ids import id_text
from txcore.records import Half


class FirstRecord(NamedTuple):
    """Where a half with an order key was stored first."""

    partition: int
    order_key: bytes
    position: int


class Copy(NamedTuple):
    """A message in a topic: its transaction, its number there, and its place in *line*, a topic or a part of one."""

    transaction_id: bytes
    number: int
    line: tuple[str, int | None]
    place: int


def first_records(partition: int, halves: Iterable[tuple[int, Half]]) -> dict[bytes, FirstRecord]:
    """Return the first record of each half with an order key in the half log of a partition, given in log order."""
    found: dict[bytes, FirstRecord] = {}
    for position, half in halves:
        if half.order_key and half.transaction_id not in found:
            found[half.transaction_id] = FirstRecord(partition, half.order_key, position)
    return found


def disorder(records: dict[bytes, FirstRecord], copies: Iterable[Copy]) -> Iterator[tuple[bytes, str]]:
    """Yield (transaction, text) for each half whose message came before one of an earlier half of its order key.

    Only first copies count: a repeat may come late.
    """
    firsts: dict[tuple[bytes, int, tuple[str, int | None]], int] = {}
    for copy in copies:
        if copy.transaction_id in records:
            name = copy.transaction_id, copy.number, copy.line
            firsts[name] = min(firsts.get(name, copy.place), copy.place)
    spans: dict[tuple[bytes, tuple[str, int | None]], tuple[int, int]] = {}
    for (identity, _, line), place in firsts.items():
        low, high = spans.get((identity, line), (place, place))
        spans[identity, line] = min(low, place), max(high, place)
    newest: dict[tuple[bytes, tuple[str, int | None]], tuple[int, bytes]] = {}
    for identity, record in sorted(records.items(), key=lambda each: each[1]):
        for line in {line for other, line in spans if other == identity}:
            low, high = spans[identity, line]
            before, other = newest.get((record.order_key, line), (-1, b""))
            if low < before:
                yield (
                    identity,
                    f"published in {line[0]} before {id_text(other)}, which has its order key and was stored first",
                )
            newest[record.order_key, line] = max((high, identity), (before, other))
