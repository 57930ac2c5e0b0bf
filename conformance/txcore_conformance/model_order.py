"""An explicit-state model of the order per key (R18), explored to the last state.

Two halves of one order key, A stored before B; owners that are replaced, killed or frozen before any of their writes; a
parking of A, its resume, copies that are carried forward, and checkpoints, in every order of steps. The production code
reads the logs, decides, and makes the copies: `PartitionState`, `decide`, `may_release`, `copy_of`, `next_generation`,
`checkpoint_of`. The model has the steps, and the rules to judge them:

* The first copy of B is never published before the first copy of A, unless A was rolled back.
* No owner that was made after A was parked publishes or decides A before it was resumed.
* In the end both are published or rolled back, unless A is parked.

An owner reads a whole log at once, and acts when its tick came back: then it has read every op. What it has planned is
written later, whatever happened meanwhile. Only after a release of its own it publishes the next half without a tick.

Not covered, left to the simulator and to `make refine`: the proofs of copies, parts of reads, retention, releases in
parts, halves of several keys, stores that keep resolutions unique.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final, NamedTuple
from unittest import mock

import msgspec

from txcore.history.journey import Journey
from txcore.history.resuming import next_generation
from txcore.records import Half, OpKind
from txcore_conformance import model_order_steps
from txcore_conformance.model_order_steps import FEW, A, B, Bounds, State, begin, op_in, parked_under, successors
from txcore_conformance.refine import adapter
from txcore_conformance.sim import order_mutants
from txcore_conformance.sim.mutant import Patch


def broken(s: State) -> str:
    """Return the rule that *s* breaks, or ""."""
    if s.breach:
        return s.breach
    firsts = list(dict.fromkeys(s.targets))
    final = next((op_in(body).kind for body in s.ops if op_in(body).transaction_id == A and _is_deciding(body)), 0)
    if final == OpKind.ROLLBACK:
        return "S2" if A in firsts else ""
    return "S12" if B in firsts and (A not in firsts or firsts.index(A) > firsts.index(B)) else ""


def _is_deciding(body: bytes) -> bool:
    return op_in(body).kind in {OpKind.COMMITTED, OpKind.ROLLBACK, OpKind.RELEASED}


def at_rest(s: State) -> str:
    """Return what is left to be done in a state without a step that must happen, or ""."""
    finals = [op_in(body) for body in s.ops if op_in(body).kind in {OpKind.RELEASED, OpKind.ROLLBACK}]
    over = {op.transaction_id for op in finals}
    return "" if {A, B} <= over or (parked_under(s) and A not in over) else "L1"


class Exploration(NamedTuple):
    """The result of a run."""

    states: int
    violation: str
    trace: tuple[str, ...]
    seconds: float


def explore(bounds: Bounds = FEW, states_max: int = 3_000_000) -> Exploration:
    """Visit every reachable state, breadth first, up to the first violation."""
    begun = time.process_time()
    start = begin()
    parents: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        s = waiting.popleft()
        wrong, must = broken(s), False
        for name, is_must, after in () if wrong else successors(s, bounds):
            must = must or is_must
            if after not in parents:
                parents[after] = (s, name)
                waiting.append(after)
        wrong = wrong or ("" if must else at_rest(s))
        if wrong or len(parents) > states_max:
            wrong = wrong or "too many states"
            return Exploration(len(parents), wrong, _trace(parents, s), time.process_time() - begun)
    return Exploration(len(parents), "", (), time.process_time() - begun)


def _trace(parents: dict[State, tuple[State, str] | None], s: State) -> tuple[str, ...]:
    names: list[str] = []
    while (step := parents[s]) is not None:
        s, name = step
        names.append(name)
    return tuple(reversed(names))


def _resumed_elsewhere(journey: Journey, by: str, reason: str) -> Half:
    return msgspec.structs.replace(next_generation(journey, by, reason), first_position=-1)


@contextmanager
def _held_half_judged() -> Iterator[None]:
    with (
        mock.patch.object(adapter, "hold_parked"),
        mock.patch.object(model_order_steps, "decide", order_mutants.judge_held),
    ):
        yield


_HERE: Final[dict[str, Patch]] = {
    "held_half_judged": _held_half_judged,
    "resumed_half_overtaken": lambda: mock.patch.object(model_order_steps, "next_generation", _resumed_elsewhere),
}
MUTANTS: Final[dict[str, Patch]] = {name: each.patch for name, each in order_mutants.MUTANTS.items()} | _HERE
"""The rules of the order, each switched off."""


def main(arguments: Sequence[str]) -> int:
    """Explore the model, and with each of its mutants; returns 0 if all results are as expected."""
    failed = False
    for name in arguments or ["", *MUTANTS]:
        with MUTANTS[name]() if name else nullcontext():
            run = explore()
        failed = failed or bool(run.violation) == (not name)
        print(
            f"{name or 'the protocol':<28}{run.states:>10,} states{run.seconds:>8.1f} s  {run.violation or 'ok'}",
            flush=True,
        )
        for number, step in enumerate(run.trace, 1):
            print(f"  {number:>3}. {step}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
