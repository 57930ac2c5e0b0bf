"""`python -m txcore_conformance.sim`: many seeds on all cores, the mutants, and the proof that a seed replays itself.

--seeds N      play N seeds (from --first), print rates, rare paths and every violation
--mutants      switch each rule off and find the first seed that shows it, in every profile that needs it
--replay N     play N seeds twice and compare their trace hashes
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from txcore_conformance.sim.mutants import MUTANTS
from txcore_conformance.sim.play import PROFILES, SeedResult, profile_of, run
from txcore_conformance.sim.surprises import PATHS

CHUNK = 50
MUTANT_SEEDS_MAX = 20_000
SHOWN_MAX = 20
#: Rare paths that a large run must have hit; a run which never hit one has not tested what it claims.
SOMETIMES = (
    "crash",
    "freeze",
    "tombstone",
    "producer fenced",
    "fence locked",
    "fence no answer",
    "listener no answer",
    "database crash",
    "commit failed, applied",
    "commit failed, not applied",
    "CommitUnknownError",
    "HalfUnknownError",
    "HalfRefusedError",
    "FencedError",
    "end COMMIT TOO_LATE",
    "end ROLLBACK CONFLICT",
    "end ROLLBACK UNKNOWN",
    "checker.stood_down",
    "op.stale",
    "op.conflict",
    "contrary end",
    "session expired",
    "half.carried",
    "half.parked CHECKS_EXHAUSTED",
    "half.parked UNDELIVERABLE",
    "half.parked POISON",
    "half.parked PRUNED",
    "half.parked COVERAGE_GAP",
    "operator resumes",
    "operator forces COMMIT",
    "operator forces ROLLBACK",
    "pruned row",
    "stuck transaction",
    "broker outage",
    "end VIA_TABLE",
    "fence reads state 3",
    "half of a fallback closed",
    "row taken again",
    "row refused",
    "table no answer",
    "lost tail half",
    "lost tail op",
    "log.truncated",
    "fate late op",
    "fate late target",
    "fate twice target",
    "fate ack lost half",
    "fate ack lost checkpoint",
    "crash between target and op",
    "release refused in part",
    "partition.blocked",
    "second holder ALREADY_DONE",
    "second holder CONFLICT",
    "check.wrong_database",
    "published in order",
    "ordered halves resumed at last",
    *PATHS,
)
SOMETIMES_SEEDS_MIN = 20_000


@dataclass(slots=True)
class Totals:
    """The result of a run of many seeds."""

    seeds: int = 0
    steps: int = 0
    transactions: int = 0
    duplicates: int = 0
    per_profile: Counter[str] = field(default_factory=Counter)
    sometimes: Counter[str] = field(default_factory=Counter)
    bad: list[SeedResult] = field(default_factory=list)

    def add(self, result: SeedResult) -> None:
        """Count one seed."""
        self.seeds += 1
        self.steps += result.steps
        self.transactions += result.transactions
        self.duplicates += result.duplicates
        self.per_profile[result.profile] += 1
        for name in result.sometimes:
            self.sometimes[name] += 1
        if result.violations:
            self.bad.append(result)


def _chunk(first: int) -> list[SeedResult]:
    gc.disable()  # A seed makes many cycles; collecting them once per chunk saves a sixth of the time.
    try:
        return [run(seed) for seed in range(first, first + CHUNK)]
    finally:
        gc.enable()
        gc.collect()


def play_many(first: int, count: int, jobs: int) -> Iterator[SeedResult]:
    """Yield the results of *count* seeds, played on *jobs* processes, in order."""
    starts = range(first, first + count, CHUNK)
    left = count
    if jobs == 1:
        chunks: Iterator[list[SeedResult]] = map(_chunk, starts)
        for chunk in chunks:
            yield from chunk[:left]
            left -= len(chunk)
        return
    with multiprocessing.Pool(jobs) as pool:
        for chunk in pool.imap(_chunk, starts):
            yield from chunk[:left]
            left -= len(chunk)


def first_failure(
    name: str, profile: str, seeds_max: int = MUTANT_SEEDS_MAX, known: Sequence[int] = ()
) -> SeedResult | None:
    """Return the first seed of *profile* in which the mutant breaks an invariant.

    Args:
        known: Seeds that broke one before; they are played first, and the others only if none does so any more.
    """
    with MUTANTS[name].patch():
        for seed in chain(known, range(seeds_max)):
            if profile_of(seed).name == profile:
                result = run(seed, may_be_real=False)  # a twin that differs would show every mutant of the twin
                if result.violations:
                    return result
    return None


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m txcore_conformance.sim", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--replay", type=int, default=0)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    failures = 0
    if options.seeds:
        failures += _seeds(options.first, options.seeds, options.jobs)
    if options.replay:
        failures += _replay(options.first, options.replay, options.jobs)
    if options.mutants:
        failures += _mutants(options.jobs)
    return 1 if failures else 0


def _seeds(first: int, count: int, jobs: int) -> int:
    totals, began_s, shown_s = Totals(), time.monotonic(), time.monotonic()
    for result in play_many(first, count, jobs):
        totals.add(result)
        if result.violations and len(totals.bad) <= SHOWN_MAX:
            shown = "; ".join(result.violations[:3])
            print(f"  VIOLATION seed {result.seed} ({result.profile}): {shown}", flush=True)
        if time.monotonic() - shown_s > 5:
            shown_s = time.monotonic()
            rate = totals.seeds / (shown_s - began_s)
            print(f"  {totals.seeds:>9,} seeds  {rate:7.0f}/s  {len(totals.bad)} with violations", flush=True)
    spent_s = time.monotonic() - began_s
    print(f"seeds {first}..{first + count - 1}: {totals.seeds:,} played in {spent_s:.0f} s ({count / spent_s:.0f}/s)")
    print(f"  steps {totals.steps:,}, transactions {totals.transactions:,}, duplicates {totals.duplicates:,}")
    print("  per profile: " + ", ".join(f"{name} {number:,}" for name, number in sorted(totals.per_profile.items())))
    missed = [name for name in SOMETIMES if not totals.sometimes[name]]
    rarest = sorted((totals.sometimes[name], name) for name in SOMETIMES)[:6]
    print("  rarest paths: " + ", ".join(f"{name} {number:,}" for number, name in rarest))
    if missed and count >= SOMETIMES_SEEDS_MIN:
        print("  NEVER HIT: " + ", ".join(missed))
    print(f"  violations: {len(totals.bad)}")
    return len(totals.bad) + (len(missed) if count >= SOMETIMES_SEEDS_MIN else 0)


def _replay(first: int, count: int, jobs: int) -> int:
    once = [result.trace for result in play_many(first, count, jobs)]
    again = [result.trace for result in play_many(first, count, 1)]
    different = sum(a != b for a, b in zip(once, again, strict=True))
    print(f"replay: {count:,} seeds played twice, {different} with another trace hash")
    return different


def _hunt(job: tuple[str, str]) -> tuple[str, str, SeedResult | None]:
    return (*job, first_failure(*job))


def _mutants(jobs: int) -> int:
    missed = 0
    wanted = [(name, profile) for name, mutant in MUTANTS.items() for profile in mutant.needed_in]
    with multiprocessing.Pool(jobs) as pool:
        for name, profile, result in pool.imap(_hunt, wanted):
            if result is None:
                missed += 1
                print(f"  {name:<28} {profile:<14} NOT CAUGHT in {MUTANT_SEEDS_MAX} seeds")
            else:
                print(f"  {name:<28} {profile:<14} seed {result.seed:>4}  {result.violations[0][:60]}", flush=True)
    for name, mutant in MUTANTS.items():
        others = [profile.name for profile in PROFILES if profile.name not in mutant.needed_in]
        if others:
            print(f"  {name:<28} not needed in {', '.join(others)}: {mutant.elsewhere}")
    print(f"mutants: {len(MUTANTS)}, not caught: {missed}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
