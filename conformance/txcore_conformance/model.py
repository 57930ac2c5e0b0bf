"""An explicit-state model of the txcore protocol, explored to the last state.

One transaction with two targets, two checkers, up to three faults: every order of steps, every fault at every
place, and for each rule left out (a mutant) the shortest counterexample. The production code reads the logs and
decides about the half (`model_fold`). Faults: kill of producer, checker or relay; an append refused, lost, or
unanswered and landing at any later time, even after its sender's death; a database commit with an error, applied
or not, at once or late; a partition given to another checker while its owner continues; a producer paused after
its clock reading; a target that refuses; a checkpoint write that is lost or late. Time is two flags: the
producer's horizon passed, the immunity expired.

Configurations:

- `fenced`: fence row, half, database commit, targets, op; the check through the fence.
- `fenced-half-first`: the half comes before the fence row, so that the tombstone can beat the producer.
- `listener`: no fence; answers by local state or UNKNOWN, DECIDED before acting, counts, DISCARD.
- `resume`: the same with one check, resume as generation + 1, a refusing target (parked undeliverable), and a
  checkpoint rewritten at takeover; two faults, three with `--large`.
- `table`: an uncertain half continues in the message table (fence state 3) and its relay; with pruning.
- `prune`: `fenced-half-first` with the fence table pruned below its horizon; PRUNED answers.
- `owner`, `owner-resume`, `owner-table`: `listener`, `resume` and `table` with a producer that writes COMMITTED, and
  the partition's owner as the only publisher (R17). Here the producer may be paused without a fence, too.

Not covered, left to the simulator and to `make refine`: the two logs read apart, merged ops, several transactions
(S12, L2, head of line), bodies (S7), carried copies, replay length (L4, except that an old checkpoint never
replaces a newer one), retention, forced decisions, database failover, a listener that breaks its contract, a pause
longer than the margin without a fence where the producer publishes, releases that are atomic.
"""

from __future__ import annotations

import gc
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from txcore_conformance.model_mutants import INEXPRESSIBLE, MUTANTS
from txcore_conformance.model_state import Configuration, State
from txcore_conformance.model_steps import successors

CONFIGURATIONS: Final = {
    configuration.name: configuration
    for configuration in (
        Configuration("fenced", fenced=True, half_first=False, faults=3),
        Configuration("fenced-half-first", fenced=True, half_first=True, faults=3),
        Configuration("listener", fenced=False, half_first=True, faults=3, check_max=2),
        Configuration("resume", fenced=False, half_first=True, faults=2, resume=True),
        Configuration("table", fenced=True, half_first=False, faults=3, table=True, prune=True),
        Configuration("prune", fenced=True, half_first=True, faults=3, prune=True),
        Configuration("owner", fenced=False, half_first=True, faults=2, check_max=2, by_owner=True),
        Configuration("owner-resume", fenced=False, half_first=True, faults=2, resume=True, by_owner=True),
        Configuration("owner-table", fenced=True, half_first=False, faults=3, table=True, prune=True, by_owner=True),
    )
}

SOMETIMES: Final = {
    "producer_gave_way": "producer: TOO_LATE, gives way",
    "paused_producer_published_late": "producer (past its horizon): target 1",
    "ambiguous_half_was_stored": "late half of the producer lands",
    "tombstone_beat_the_producer": "producer: fence row refused, the tombstone is there",
    "commit_in_doubt_applied": "database: the commit in doubt applies",
    "rollback_found_the_commit": "producer: tombstone answers CONFLICT",
    "late_op_after_the_final_op": "late COMMIT of the producer lands (after the first final op)",
    "former_owner_stood_down": "former owner: caught up, foreign CLAIM, gives up the partition",
    "former_owner_published": "former owner: target 1",
    "owner_deposed_by_a_late_claim": "owner: caught up, foreign CLAIM, gives up the partition",
    "older_token_ignored": "former owner: checkpoint advanced (older token)",
    "older_discard_ignored": "late DISCARD of the checker lands (older token)",
    "late_decision_landed": "late DECIDED of the checker lands",
    "discarded": "owner: DISCARD",
    "undeliverable_was_parked": "owner: target 2 refused, to be parked",
    "resumed_half_committed": "owner: op COMMIT of generation 1",
    "closed_after_the_table": "owner: check answers: sent from the table",
    "pruned_answer": "owner: check answers PRUNED",
    "producer_below_the_horizon": "producer: fence row refused, below the horizon",
    "paused_producer_committed_late": "producer (past its horizon): op COMMITTED",
    "parked_half_was_committed": "late COMMITTED of the producer lands (of a parked half)",
    "resumed_half_released": "owner: RELEASED of generation 1",
    "former_owner_released": "former owner: RELEASED",
    "released_after_the_table": "owner: RELEASED (without a COMMITTED)",
}
"""Names of the rare events that a full run must reach, with the step that shows each."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, and the shortest trace to it."""

    invariant: str
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exploration:
    """Result of a run; without a violation every reachable state was visited."""

    states: int
    edges: int
    violation: Violation | None
    reached: frozenset[str]
    seconds: float


@dataclass(slots=True)
class _Graph:
    """The states in order of discovery, each with the step that led to it and the steps that must follow."""

    states: list[State] = field(default_factory=list)
    parents: array[int] = field(default_factory=lambda: array("l"))
    steps: array[int] = field(default_factory=lambda: array("l"))
    names: dict[str, int] = field(default_factory=dict)
    successors: array[int] = field(default_factory=lambda: array("l"))
    ends: array[int] = field(default_factory=lambda: array("l"))
    edges: int = 0

    def trace(self, at: int) -> tuple[str, ...]:
        """Return the names of the steps from the start to state *at*."""
        texts = list(self.names)
        path: list[str] = []
        while self.parents[at] >= 0:
            path.append(texts[self.steps[at]])
            at = self.parents[at]
        return tuple(reversed(path))


def explore(configuration: Configuration, mutant: str | None = None) -> Exploration:
    """Visit every reachable state breadth first, up to the first violation.

    Args:
        configuration: the bounded world to explore.
        mutant: the rule to leave out, one of `MUTANTS`; None explores the whole protocol.

    Raises:
        ValueError: *mutant* is not in `MUTANTS`.
    """
    if mutant is not None and mutant not in MUTANTS:
        raise ValueError(f"mutant {mutant!r} is unknown to the model; it knows {', '.join(MUTANTS)}")
    begun = time.process_time()
    graph = _Graph()
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of small tuples without a cycle: collecting only costs time
    try:
        found = _visit(replace(configuration, mutant=mutant), graph)
    finally:
        if collecting:
            gc.enable()
    violation = None if found is None else Violation(found[0], graph.trace(found[1]))
    reached = frozenset(name for name, step in SOMETIMES.items() if step in graph.names)
    return Exploration(len(graph.states), graph.edges, violation, reached, time.process_time() - begun)


def _visit(c: Configuration, graph: _Graph) -> tuple[str, int] | None:
    """Fill *graph*; return the broken invariant and its state, the nearest one first."""
    start = State(faults=c.faults)
    index = {start: 0}
    states, parents, steps, names = graph.states, graph.parents, graph.steps, graph.names
    must, ends = graph.successors, graph.ends
    states.append(start)
    parents.append(-1)
    steps.append(-1)
    edges = at = 0
    while at < len(states):
        s = states[at]
        invariant = broken(c, s)
        begin = len(must)
        for name, kind, after in () if invariant else successors(c, s):
            edges += 1
            number = index.setdefault(after, len(states))
            if number == len(states):
                states.append(after)
                parents.append(at)
                steps.append(names.setdefault(name, len(names)))
            elif name not in names:
                names[name] = len(names)
            if kind == "must":
                must.append(number)
        ends.append(len(must))
        graph.edges = edges
        invariant = invariant or (broken_at_rest(s) if len(must) == begin else "")
        if invariant:
            return invariant, at
        at += 1
    stuck = _stuck(graph)
    return None if stuck is None else ("L1", stuck)


def _stuck(graph: _Graph) -> int | None:
    """Return the first state from which no state at rest can be reached without further faults (L1)."""
    must, ends = graph.successors, graph.ends
    rests = bytearray(len(ends))
    changed = True
    while changed:
        changed = False
        for n in range(len(ends) - 1, -1, -1):
            if not rests[n]:
                after = must[ends[n - 1] if n else 0 : ends[n]]
                if not after or any(rests[m] for m in after):
                    rests[n] = 1
                    changed = True
    stuck = rests.find(0)
    return None if stuck < 0 else stuck


def broken(c: Configuration, s: State) -> str:
    """Return the id of an invariant that *s* breaks, or an empty string."""
    targets = s.copies1 + s.copies2
    used = c.faults - s.faults
    committed = s.database == "committed"
    orphan = s.half < 0 and s.relay == "none"
    if s.breach:  # S1, S10 or L4, seen where a record landed
        return s.breach
    if targets and (not committed or s.final == "ROLLBACK"):
        return "S2"
    if (s.final == "COMMIT" and not committed) or (s.final == "ROLLBACK" and committed):
        return "S4"
    if orphan and (targets or s.final):
        return "S5"
    if max(s.copies1, s.copies2) - 1 > used:
        return "S6"
    if orphan and committed and not s.flight:
        return "S8"
    if s.checks > min(c.check_max, s.answers):
        return "S9"
    if s.discard > s.parked:
        return "S10"
    if not s.final and s.discard < s.half <= s.checkpoint:
        return "S11"
    return ""


def broken_at_rest(s: State) -> str:
    """Return the id of an invariant that *s* breaks when only faults or an operator could still change it."""
    parked = s.half >= 0 and s.discard >= s.half
    delivered = s.copies1 > 0 and s.copies2 > 0
    if s.final == "COMMIT" and not delivered:
        return "S3"
    if s.database == "committed" and not delivered and not parked:
        return "S8"
    if s.database in ("open", "doubt") or (s.half >= 0 and not s.final and not parked):
        return "L1"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Print the table of all configurations and mutants; return 0 if all results are as expected.

    Args:
        arguments: `--large` gives every configuration three faults (about a minute more).
    """
    if set(arguments) - {"--large"}:
        print("usage: python -m txcore_conformance.model [--large]")
        return 2
    large = "--large" in arguments
    failed = False
    reached: set[str] = set()
    print(f"{'configuration':<22}{'faults':>7}{'states':>12}{'edges':>12}{'seconds':>9}  result")
    for name, bounded in CONFIGURATIONS.items():
        configuration = replace(bounded, faults=3) if large else bounded
        run = explore(configuration)
        reached |= run.reached
        result = "ok" if run.violation is None else run.violation.invariant
        numbers = f"{configuration.faults:>7}{run.states:>12,}{run.edges:>12,}{run.seconds:>9.1f}"
        print(f"{name:<22}{numbers}  {result}", flush=True)
        if run.violation is not None:
            failed = True
            _print_trace(run.violation.trace)
    for name in sorted(SOMETIMES.keys() - reached):
        failed = True
        print(f"never reached: {name}")
    for mutant, configuration_name in MUTANTS.items():
        run = explore(CONFIGURATIONS[configuration_name], mutant)
        if run.violation is None:
            failed = True
            print(f"\nmutant {mutant} ({configuration_name}): NOT FOUND in {run.states:,} states")
        else:
            result = f"{run.violation.invariant} in {len(run.violation.trace)} steps"
            print(f"\nmutant {mutant} ({configuration_name}): {result}", flush=True)
            _print_trace(run.violation.trace)
    for mutant, reason in INEXPRESSIBLE.items():
        print(f"\nmutant {mutant}: not expressible here:\n       {reason}")
    return 1 if failed else 0


def _print_trace(trace: tuple[str, ...]) -> None:
    for number, step in enumerate(trace, 1):
        print(f"  {number:>3}. {step}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
