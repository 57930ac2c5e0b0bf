"""The requests of operators in a group, with name, time and reason, read from the logs."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txcore.op_rules import outcome_of
from txcore.operator import to_json
from txcore.operator.operator import Operator
from txcore.records import FINAL_KINDS, OWNED_KINDS, Forced, Half, Op, OpKind

KEPT_MAX: Final = 500
REMEMBERED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of an operator's decision.

    Attributes:
        what: `asked for COMMIT`, `refused COMMIT`, `executed ROLLBACK`, `resumed`, and so on.
        forced: "", "forced" or "forced against the fence".
    """

    at_ms: int
    transaction_id: bytes
    what: str
    by: str
    forced: str
    reason: str


class _Newest:
    """Keeps the newest entries, a bounded number of them.

    The steps of one transaction stay in the order of their log, whatever their writers' clocks say.
    """

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[tuple[int, int, Entry]] = []
        self._last_ms: OrderedDict[bytes, int] = OrderedDict()

    @property
    def entries(self) -> list[Entry]:
        """The entries, newest first."""
        return [entry for _, _, entry in sorted(self._kept, reverse=True)]

    def add(self, entry: Entry) -> None:
        self.count += 1
        order_ms = max(entry.at_ms, self._last_ms.pop(entry.transaction_id, entry.at_ms))
        self._last_ms[entry.transaction_id] = order_ms
        if len(self._last_ms) > REMEMBERED_MAX:
            self._last_ms.popitem(last=False)
        keep = heapq.heappush if len(self._kept) < KEPT_MAX else heapq.heappushpop
        keep(self._kept, (order_ms, self.count, entry))

    def take_op(self, op: Op) -> None:
        step = _step_of(op)
        if step:
            self.add(Entry(op.at_ms, op.transaction_id, step, op.by, to_json.FORCED.get(op.forced, ""), op.reason))

    def take_half(self, half: Half, appended_ms: int | None) -> None:
        if half.generation and half.folded_to >= 0 and half.reason:
            by, _, reason = half.reason.partition(": ")
            self.add(Entry(appended_ms or half.born_ms, half.transaction_id, "resumed", by, "", reason))


def read_decisions(operator: Operator) -> tuple[Sequence[Entry], int]:
    """Return the newest decisions of operators, newest first, and the number of all; reads all of the logs.

    Raises:
        UsageError: the broker has no such group.
        BackendUnavailableError, BackendTimeoutError: the logs cannot be read.
    """
    newest = _Newest()
    operator.replay(newest.take_op, newest.take_half)
    return newest.entries, newest.count


def _step_of(op: Op) -> str:
    """Return the step of a forced decision that an op records; "" for other ops."""
    if op.kind == OpKind.FORCE:
        return f"{'refused' if op.token else 'asked for'} {to_json.kind_name(op.decision)}"
    if op.forced == Forced.NO or op.kind not in FINAL_KINDS | OWNED_KINDS:
        return ""
    decision = to_json.kind_name(op.decision if op.kind == OpKind.DECIDED else outcome_of(op.kind))
    return f"{'decided' if op.kind == OpKind.DECIDED else 'executed'} {decision}"
