"""Two checkers as processes share a group's partitions; one is killed, or frozen past its lease and thawed.

The timeouts are a user's defaults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from txcore_conformance.harness import Harness

pytest.importorskip("sqlalchemy", reason="the live run's programs use the fence")

from txcore_conformance.live import PARTITION_COUNT, Crew, Process

KILLED_TAKEOVER_MAX_S = 15.0
FROZEN_TAKEOVER_MAX_S = 40.0
READY_TIME_MAX_S = 45.0
REST_TIME_MAX_S = 60.0
ALL = set(range(PARTITION_COUNT))


@pytest.fixture
def crew(private: Harness, tmp_path: Path) -> Iterator[Crew]:
    """Crew of two checkers that share the partitions, and a producer that leaves some transactions to them."""
    with Crew(private, tmp_path / "run", url=_url_of(private)) as made:
        checkers = [made.start("checker"), made.start("checker")]
        made.until(lambda: made.count("ready") == len(checkers), "a start of both", READY_TIME_MAX_S)
        made.until(lambda: _is_shared(checkers), "a share of the partitions for each", READY_TIME_MAX_S)
        made.start("listener")
        made.until(lambda: made.accepted() > 0, "the first transaction", READY_TIME_MAX_S)
        yield made


def _url_of(harness: Any) -> str:
    """Return the URL under test with a user's defaults, without the short leases of other tests."""
    options = [each for each in harness.url_options.lstrip("?").split("&") if each.startswith("release=")]
    return str(harness.broker.url) + ("?" + "&".join(options) if options else "")


def _is_shared(checkers: list[Process]) -> bool:
    newest: dict[int, tuple[float, str]] = {}
    for checker in checkers:
        for partition, at_s in Crew.claimed(checker).items():
            newest[partition] = max(newest.get(partition, (0.0, "")), (at_s, checker.name))
    return newest.keys() == ALL and len({name for _, name in newest.values()}) == len(checkers)


def _taken_over(crew: Crew, survivor: Process, since_s: float, theirs: set[int], time_max_s: float) -> float:
    """Wait until *survivor* has claimed the other's partitions and return the last claim's time after *since_s*."""

    def times() -> list[float]:
        return [at_s for partition, at_s in crew.claimed(survivor).items() if partition in theirs and at_s > since_s]

    crew.until(lambda: len(times()) == len(theirs), f"a claim of {sorted(theirs)}", time_max_s + 5.0)
    return max(times()) - since_s


def _owned(crew: Crew, checker: Process, other: Process) -> set[int]:
    others = crew.claimed(other)
    return {partition for partition, at_s in crew.claimed(checker).items() if at_s > others.get(partition, 0.0)}


def _finish(crew: Crew) -> None:
    assert [] == crew.dismiss(crew.at_work(checkers=False))
    crew.wait_for_rest(REST_TIME_MAX_S)
    assert [] == crew.dismiss(crew.at_work(checkers=True))
    verdict = crew.judge()
    print(f"{verdict.transactions}, duplicates {verdict.duplicates}")
    assert [] == verdict.problems


def test_a_killed_checkers_partitions_are_taken_over_within_15_s(crew: Crew) -> None:
    """The other checker claims a killed checker's partitions within 15 s and decides its open halves."""
    victim, survivor = crew.at_work(checkers=True)
    theirs = _owned(crew, victim, survivor)
    killed_s = time.time()
    crew.kill(victim)
    took_s = _taken_over(crew, survivor, killed_s, theirs, KILLED_TAKEOVER_MAX_S)
    print(f"takeover of {len(theirs)} partitions {took_s:.1f} s after a kill")
    assert took_s <= KILLED_TAKEOVER_MAX_S
    _finish(crew)


def test_a_frozen_checkers_partitions_are_taken_over_within_40_s(crew: Crew) -> None:
    """The other checker claims a frozen one's partitions within 40 s; the thawed checker only causes duplicates."""
    victim, survivor = crew.at_work(checkers=True)
    theirs = _owned(crew, victim, survivor)
    frozen_s = crew.freeze(victim)
    took_s = _taken_over(crew, survivor, frozen_s, theirs, FROZEN_TAKEOVER_MAX_S)
    print(f"takeover of {len(theirs)} partitions {took_s:.1f} s after a freeze")
    assert took_s <= FROZEN_TAKEOVER_MAX_S
    crew.thaw(victim, frozen_s)
    before = crew.accepted()
    crew.until(lambda: crew.accepted() > before, "work beside the one that thawed", READY_TIME_MAX_S)
    _finish(crew)
