"""Find for each mutant of the simulator a seed that shows it: `python tests/sim/known_seeds.py`.

The test of the mutants plays that seed first. A change of the simulator makes some seeds harmless; the test then
searches from 0, which takes longer, and this script makes it quick again. It keeps a seed that still shows the mutant.
"""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

from txcore_conformance.sim.__main__ import first_failure
from txcore_conformance.sim.mutants import MUTANTS

PATH = Path(__file__).with_name("known_seeds.json")
KNOWN = json.loads(PATH.read_text(encoding="utf-8"))


def found(job):
    """Return the mutant with its profile, and the seed; None if there is none."""
    name = " ".join(job)
    result = first_failure(*job, known=[KNOWN.get(name, 0)])
    return name, result and result.seed


if __name__ == "__main__":
    jobs = [(name, profile) for name, mutant in MUTANTS.items() for profile in mutant.needed_in]
    with multiprocessing.Pool() as pool:
        seeds = {job: seed for job, seed in pool.imap_unordered(found, jobs) if seed is not None}
    PATH.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n", encoding="utf-8")
