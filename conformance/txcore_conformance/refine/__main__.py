"""`python -m txcore_conformance.refine`: random histories in both layers, and mended holes opened again.

--histories N  play N histories on the fold alone, and a hundredth of that on real owners; print differences and rates
--keep-going   do not end at the first chunk that holds a difference
--layer L      with --seed: play one history of layer 1 or 2 and show it
--mutants      open each mended hole again and find the first history that shows it, within --seconds of CPU time
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from txcore_conformance.refine import folding, owning
from txcore_conformance.refine.mutants import MUTANTS

PLAYS: Final[dict[int, Callable[[int], str]]] = {1: folding.play, 2: owning.play}
NAMES: Final = {1: "the fold alone", 2: "real owners"}
Job = tuple[int, int, int]
CHUNK: Final = 2_000
SHARE: Final = 100
"""Number of histories on the fold alone for each history on real owners."""
SHOWN_MAX: Final = 10
SECONDS_MAX: Final = 120.0
TURN: Final = {1: 400, 2: 20}
"""Number of histories of each layer in one turn of the search for a mutant; both take about the same time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The result of some histories."""

    count: int
    cpu_s: float
    bad: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Find:
    """The history that shows an open hole."""

    layer: int
    seed: int
    cpu_s: float
    text: str


def play(job: Job) -> Chunk:
    """Play the histories of a job: its layer, its first seed and their number."""
    layer, first, count = job
    gc.disable()  # Collected once per chunk.
    began_s = time.process_time()
    try:
        found = [(seed, text) for seed in range(first, first + count) if (text := PLAYS[layer](seed))]
        return Chunk(count, time.process_time() - began_s, found)
    finally:
        gc.enable()
        gc.collect()


def hunt(name: str, seconds_max: float = SECONDS_MAX) -> Find | None:
    """Return the first history, of both layers in turn, that shows a mutant; None after *seconds_max* of CPU time."""
    began_s, firsts = time.process_time(), {1: 0, 2: 0}
    with MUTANTS[name].patch():
        while time.process_time() - began_s < seconds_max:
            for layer, count in TURN.items():
                for seed in range(firsts[layer], firsts[layer] + count):
                    text = PLAYS[layer](seed)
                    if text:
                        return Find(layer, seed, time.process_time() - began_s, text)
                firsts[layer] += count
    return None


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m txcore_conformance.refine", description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--layer", type=int, choices=PLAYS, default=1)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    bad = 0
    if options.seed is not None:
        bad += _show(options.layer, options.seed)
    if options.histories:
        bad += _many(options.first, options.histories, options.jobs, keep_going=options.keep_going)
    if options.mutants:
        bad += _mutants(options.seconds, options.jobs)
    return 1 if bad else 0


def _show(layer: int, seed: int) -> int:
    text = PLAYS[layer](seed)
    if layer == 1:
        print(folding.describe(seed))
    print(f"layer {layer}, seed {seed}: {text or 'as the whole logs say'}")
    return bool(text)


@dataclass(slots=True)
class Totals:
    """The result of one layer."""

    count: int = 0
    bad: int = 0
    cpu_s: float = 0.0


def _many(first: int, histories: int, jobs: int, *, keep_going: bool) -> int:
    totals = {layer: Totals() for layer in PLAYS}
    for job, chunk in _played(list(_work(first, histories)), jobs):
        layer, total = job[0], totals[job[0]]
        total.count += chunk.count
        total.cpu_s += chunk.cpu_s
        for seed, text in chunk.bad:
            total.bad += 1
            if total.bad <= SHOWN_MAX:
                print(f"  DIFFERENCE layer {layer} seed {seed}: {text[:300]}", flush=True)
        if chunk.bad and not keep_going:
            break
    for layer, total in totals.items():
        rate = total.count / total.cpu_s if total.cpu_s else 0.0
        counts = f"{total.count:,} histories, differences: {total.bad}, {rate:,.0f} per CPU second"
        print(f"layer {layer}, {NAMES[layer]}: {counts} ({total.cpu_s:.0f} CPU s)", flush=True)
    return sum(total.bad for total in totals.values())


def _work(first: int, histories: int) -> Iterator[Job]:
    """Yield chunks of both layers in turn, so that a difference which only one layer shows is found early."""
    for start in range(0, histories, CHUNK):
        count = min(CHUNK, histories - start)
        yield 1, first + start, count
        yield 2, first + start // SHARE, max(count // SHARE, 1)


def _played(work: list[Job], jobs: int) -> Iterator[tuple[Job, Chunk]]:
    if jobs == 1:
        yield from ((job, play(job)) for job in work)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from zip(work, pool.imap(play, work), strict=True)


def _hunted(job: tuple[str, float]) -> tuple[str, Find | None]:
    return job[0], hunt(*job)


def _mutants(seconds: float, jobs: int) -> int:
    missed = 0
    with multiprocessing.Pool(jobs) as pool:
        for name, find in pool.imap(_hunted, [(name, seconds) for name in MUTANTS]):
            if find is None:
                missed += 1
                print(f"  {name:<30} NOT FOUND in {seconds:.0f} CPU seconds", flush=True)
            else:
                place = f"layer {find.layer} seed {find.seed:>5}, {find.cpu_s:6.1f} CPU s"
                print(f"  {name:<30} {place}  {find.text[:70]}", flush=True)
    print(f"mutants: {len(MUTANTS)}, not found: {missed}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
