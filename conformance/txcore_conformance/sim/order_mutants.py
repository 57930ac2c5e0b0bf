"""The rules of the order per key, switched off one by one; see `mutants`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txcore.checker import carrying, check_steps, finish
from txcore.checker.decide import Decision, Pending, decide
from txcore.checker.key_order import KeyOrder
from txcore.checker.ordered_halves import OrderedHalves
from txcore.checker.read_halves import ReadHalf, ReadHalves
from txcore.checker.tenure import Tenure
from txcore.history.journey import Journey
from txcore.history.resuming import next_generation
from txcore.records import Half
from txcore_conformance.sim import operators
from txcore_conformance.sim.mutant import KAFKA, RARER, STEPPED, STRONG, Mutant, replace

_copy_of = carrying.copy_of
_may_release = finish.may_release


def undecided_is_passed(self: OrderedHalves, pending: Pending) -> None:
    """Give a half its place only once it is committed."""
    if pending.extras.order_key and pending.is_committed:
        self.order.add(pending.transaction_id, pending.extras.order_key, pending.extras.first_position)


def parked_is_over(self: OrderedHalves, _: ReadHalf, pending: Pending) -> None:
    """Release the later halves of an order key whose first one is parked."""
    self._pass(pending.transaction_id)


def forget_held(self: ReadHalves) -> None:
    """Let a checkpoint pass a held half."""
    while len(self.line) > 1 and self.line[0].closed_by:
        seen = self.line.popleft()
        self._left_out -= seen.left_out
        self._forget(seen)


def copy_without_place(tenure: Tenure, half: Half, pending: Pending) -> Half:
    """Carry an ordered half without the position of its first record."""
    return msgspec.structs.replace(_copy_of(tenure, half, pending), first_position=-1)


def copy_without_hold(tenure: Tenure, half: Half, pending: Pending) -> Half:
    """Carry a held half as if it were undecided."""
    return msgspec.structs.replace(_copy_of(tenure, half, pending), held_at=-1)


def judge_held(pending: Pending, now_ms: float, *, must_carry: bool) -> Decision:
    """Judge a held half after a restart."""
    if pending.is_held and not must_carry:
        pending = msgspec.structs.replace(pending, extras=msgspec.structs.replace(pending.extras, held_at=-1))
    return decide(pending, now_ms, must_carry=must_carry)


def resume_without_place(journey: Journey, by: str, reason: str) -> Half:
    """Resume a half at the end of its order key's line."""
    return msgspec.structs.replace(next_generation(journey, by, reason), first_position=-1)


def free_before_release(tenure: Tenure, pending: Pending) -> bool:
    """Release the next half of an order key before the release of this one has settled."""
    may_release = _may_release(tenure, pending)
    if may_release and pending.extras.order_key:
        tenure.state.released(pending)
    return may_release


MUTANTS: Mapping[str, Mutant] = {
    "order_ignored": Mutant("R18", replace(KeyOrder, "is_first", lambda *_: True)),
    "later_half_passes_undecided": Mutant("R18", replace(OrderedHalves, "_enqueue", undecided_is_passed)),
    "parked_half_frees_key": Mutant("R18", replace(OrderedHalves, "_leave", parked_is_over)),
    "held_half_forgotten": Mutant("R18", replace(ReadHalves, "pass_closed", forget_held)),
    "carried_half_overtaken": Mutant("R18", replace(carrying, "copy_of", copy_without_place), (KAFKA,), RARER),
    "hold_not_carried": Mutant("R18", replace(carrying, "copy_of", copy_without_hold)),
    "held_half_judged": Mutant("R18", replace(check_steps, "decide", judge_held), STEPPED, RARER),
    "resumed_half_overtaken": Mutant(
        "R18", replace(operators, "next_generation", resume_without_place), (STRONG,), RARER
    ),
    "key_freed_before_release": Mutant("R18", replace(finish, "may_release", free_before_release)),
}
