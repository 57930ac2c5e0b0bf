"""In what a run differs from the runs before it: a verdict or a volume that none of them had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

RUNS: Final = 7
"""Number of runs before with which a run is compared."""
FACTOR: Final = 2
"""How many times more, or less, than in each of them a volume must be."""


def differences(manifest: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each number in which a run is outside of what the runs before it had.

    A count of findings differs when it is above or below each of theirs. The number of committed transactions and
    of records differs when it is more than twice their most, or less than half of their least. Runs of another mode are
    not compared.
    """
    last = [each for each in before if each["mode"] == manifest["mode"]][-RUNS:]
    if not last:
        return []
    found = []
    for verdict in sorted({name for each in (manifest, *last) for name in each["counts"]}):
        count, others = manifest["counts"].get(verdict, 0), [each["counts"].get(verdict, 0) for each in last]
        if not min(others) <= count <= max(others):
            found.append(_sentence(verdict, count, others))
    for name, numbers in (("committed transactions", _commits), ("records read", _records)):
        count, others = numbers(manifest), [numbers(each) for each in last]
        if count > FACTOR * max(others) or FACTOR * count < min(others):
            found.append(_sentence(name, count, others))
    return found


def _commits(manifest: Mapping[str, Any]) -> int:
    return sum(each["commits"] for each in manifest["transactions"])


def _records(manifest: Mapping[str, Any]) -> int:
    return int(manifest["records"])


def _sentence(name: str, count: int, others: Iterable[int]) -> str:
    values = sorted(others)
    span = f"{values[0]:,}" if values[0] == values[-1] else f"{values[0]:,} to {values[-1]:,}"
    runs = "run before had" if len(values) == 1 else f"{len(values)} runs before had"
    return f"trend: {count:,} {name}; the {runs} {span}"
