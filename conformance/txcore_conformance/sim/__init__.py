"""The deterministic simulator: the real core on the memory broker, under one seeded scheduler.

One seed is one history: its broker profile, its faults, its producers, checkers and operator. `run(seed)` plays it,
lets faults end, waits for rest and judges everything.

`world` is time and faults, `process` one process on it; `cast` holds the parts of one seed, `archive` its records.
`producers`, `listening`, `checkers`, `relays` and `operators` act; `surprises` holds events that they do not expect,
`bounds` their limits. `database` and `table` are twins of fence and message table, `real` the real ones beside them.
`play` plays one seed, `judgement` judges it, `excuses` says what it cannot judge. In `playground` a visitor of the
documentation chooses the faults, and `narration` says what happens. `mutants`, `log_mutants` and `table_mutants` switch
rules off one by one.
"""

from txcore_conformance.sim.play import SeedResult, run

__all__ = ["SeedResult", "run"]
