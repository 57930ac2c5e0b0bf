"""The deterministic simulator: the real core on the memory broker, under one seeded scheduler.

One seed is one history: its broker profile, its faults, its producers, checkers and operator. `run(seed)` plays it,
lets faults end, waits for rest and judges everything. See `world` (time and processes), `database` (the fence's
twin), `actors` (who does what), `play` (one seed), `mutants` (rules switched off one by one) and `__main__`.
"""

from txcore_conformance.sim.play import SeedResult, run

__all__ = ["SeedResult", "run"]
