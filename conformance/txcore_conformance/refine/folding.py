"""Layer one: the fold alone, on random histories, read in any interleaving, with restarts from any checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from txcore.checker.partition_state import PartitionState
from txcore.records import FINAL_KINDS, Checkpoint, Half, Op, OpKind
from txcore_conformance.refine import adapter
from txcore_conformance.refine.history import History
from txcore_conformance.refine.whole import Truth, open_states, order_of, whole

ACTIONS_MAX: Final = 22
RESTARTS_MAX: Final = 2
EATEN: Final = 0.1
"""Share of the histories whose op log loses its beginning, and whose checkpoint is lost."""


@dataclass(slots=True)
class Written:
    """Two whole logs, and the order in which their records were appended."""

    halves: list[tuple[int, Half]] = field(default_factory=list)
    ops: list[tuple[int, Sequence[Op]]] = field(default_factory=list)
    halves_before: list[int] = field(default_factory=list)  #: for each op record, the number of halves before it
    history: History | None = None
    next_half: int = 0
    next_op: int = 0

    def append_half(self, half: Half) -> None:
        """Append a half record."""
        self.halves.append((self.next_half, half))
        self.next_half += 1
        if self.history is not None:
            self.history.took_half(self.next_half - 1, half)

    def append_ops(self, ops: Sequence[Op]) -> None:
        """Append an op record."""
        self.ops.append((self.next_op, ops))
        self.halves_before.append(len(self.halves))
        if self.history is not None:
            self.history.took_ops(self.next_op, ops)
        self.next_op += 1

    def append_stray(self, *, is_op: bool) -> None:
        """Append bytes that are not a record; the log reader skips them, so that only a gap is left."""
        if is_op:
            self.next_op += 1
        else:
            self.next_half += 1


def write(rng: Random) -> Written:
    """Return the logs of a random history."""
    logs = Written()
    history = logs.history = History(rng, logs, is_unique=rng.random() < 0.4)
    if rng.random() < 0.8:
        history.claim()
    for _ in range(2 + int(rng.random() * ACTIONS_MAX)):
        history.act()
    history.flush()
    return logs


class Reading:
    """One owner's reading of whole logs, from a checkpoint, in a random interleaving."""

    def __init__(
        self,
        rng: Random,
        logs: Written,
        checkpoint: Checkpoint | None,
        count_max: int = 8,
        *,
        lacks_ops: bool = False,
    ) -> None:
        self.start = checkpoint
        self.state = PartitionState(checkpoint)
        self.given: list[Checkpoint] = []
        self._rng = rng
        self._logs = logs
        self._count_max = count_max
        self._lacks_ops = lacks_ops  #: the first read of the op log will say that its beginning is gone
        self._has_gap = lacks_ops  #: so an owner looks back only once its own claim is back
        half, op = (checkpoint.half, checkpoint.op) if checkpoint is not None else (None, None)
        self._half = _index(logs.halves, half)
        self._op = _index(logs.ops, op)

    def read(self, *, to_end: bool) -> None:
        """Read to the end of both logs, or to some place before it."""
        rng, logs = self._rng, self._logs
        bias = (0.5, 0.0, 1.0, 0.15, 0.85)[int(rng.random() * 5)]
        left = len(logs.halves) - self._half + len(logs.ops) - self._op
        left = left if to_end else int(rng.random() * left)
        while left > 0:
            count = min(left, 1 + int(rng.random() * rng.random() * self._count_max))
            left -= count
            self._read_some(count, is_half=rng.random() < bias)
            self._pause()

    def _read_some(self, count: int, *, is_half: bool) -> None:
        logs = self._logs
        for _ in range(count):
            if self._op >= len(logs.ops) or (is_half and self._half < len(logs.halves)):
                adapter.read_half(self.state, *logs.halves[self._half])
                self._half += 1
            else:
                if self._lacks_ops:
                    adapter.lose_ops(self.state)
                    self._lacks_ops = False
                adapter.read_ops(self.state, *logs.ops[self._op])
                self._op += 1

    def _pause(self) -> None:
        """Do what an owner may do between two reads."""
        rng = self._rng
        if rng.random() < 0.3:
            self.given.append(adapter.checkpoint_now(self.state))
        if rng.random() < 0.1 and not self._has_gap:
            adapter.look_back(self.state, self._logs.ops)
        if self._op and rng.random() < 0.2 and self._half >= self._logs.halves_before[self._op - 1]:
            adapter.drop_orphans(self.state)

    def judge(self, truths: dict[bytes, Truth]) -> str:
        """Read the rest, look back as before a judgement, and return the difference from the whole logs, or ""."""
        self.read(to_end=True)
        adapter.look_back(self.state, self._logs.ops)
        wrong = _difference(self.state, open_states(truths))
        wrong = wrong or _misclosed(self.state, truths, is_whole=self.start is None)
        wrong = wrong or _misordered(self.state, order_of(self._logs.halves, truths))
        return f"from {_bounds(self.start)}: {wrong}" if wrong else ""


def _index(records: Sequence[tuple[int, object]], place: int | None) -> int:
    if place is None:
        return 0
    return next((index for index, record in enumerate(records) if record[0] >= place), len(records))


def play(seed: int) -> str:
    """Play one history; return the difference of the fold from the whole logs, or ""."""
    rng = Random(seed)
    logs = write(rng)
    truths = whole((half for _, half in logs.halves), logs.ops)
    left_in = 20_000 if rng.random() < 0.6 else 1 + int(rng.random() * 3)
    with adapter.leaving_in(left_in):
        try:
            return _play(rng, logs, truths)
        except Exception as error:  # noqa: BLE001 - whatever the fold raises, it ends a tenure
            return f"the fold raised {error!r}"


def _play(rng: Random, logs: Written, truths: dict[bytes, Truth]) -> str:
    if logs.ops and rng.random() < EATEN:
        return _play_eaten(rng, logs, truths)
    given: list[Checkpoint | None] = [None]
    for _ in range(int(rng.random() * (RESTARTS_MAX + 1))):
        reading = Reading(rng, logs, _one_of(rng, given))
        reading.read(to_end=rng.random() < 0.5)
        given += reading.given
    return Reading(rng, logs, _one_of(rng, given)).judge(truths)


def _play_eaten(rng: Random, logs: Written, truths: dict[bytes, Truth]) -> str:
    """Read logs whose checkpoint is lost, after retention has removed the first ops and the claims among them.

    A newest copy that names a place in what is left holds all that was removed, so its transaction is judged as ever.
    """
    first = int(rng.random() * len(logs.ops))
    kept_from = logs.ops[first][0]
    left = Written(logs.halves, logs.ops[first:], logs.halves_before[first:])
    reading = Reading(rng, left, None, lacks_ops=first > 0)
    reading.read(to_end=True)
    adapter.look_back(reading.state, left.ops)
    known = {
        half.transaction_id
        for _, half in logs.halves
        if half.folded_to >= kept_from and half.generation == truths[half.transaction_id].generation
    } - {
        # No owner that knew of the decision has written this DISCARD; read before the copy, it counts.
        op.transaction_id
        for _, record in left.ops
        for op in record
        if op.kind == OpKind.DISCARD and op.transaction_id in truths and truths[op.transaction_id].is_decided
    }
    found = {identity: each for identity, each in adapter.open_states(reading.state).items() if identity in known}
    expected = {identity: each for identity, each in open_states(truths).items() if identity in known}
    wrong = adapter.difference(found, expected)
    return f"without the ops before {kept_from}: {wrong}" if wrong else ""


def _one_of(rng: Random, given: Sequence[Checkpoint | None]) -> Checkpoint | None:
    """Return the newest checkpoint, or any older one, because an outdated owner's may be stored last."""
    return given[-1 if rng.random() < 0.4 else int(rng.random() * len(given))]


def _difference(state: PartitionState, expected: dict[bytes, adapter.OpenState]) -> str:
    found = adapter.open_states(state)
    if found != expected:
        return adapter.difference(found, expected)
    if state.pending_count != len(found):
        return f"pending_count is {state.pending_count}, {len(found)} are pending"
    return ""


def _misclosed(state: PartitionState, truths: dict[bytes, Truth], *, is_whole: bool) -> str:
    for identity, kind in dict(state.closings()).items():  # The newest of an id counts.
        truth = truths.get(identity)
        if truth is None or kind == truth.closed_by:
            continue
        # From a checkpoint a copy may meet the second of two final ops first. It is closed, and stays so.
        if is_whole or not {kind, truth.closed_by} <= FINAL_KINDS:
            return f"{identity[-1]}: the fold says that {kind} closed it, the logs {truth.closed_by}"
    return ""


def _misordered(state: PartitionState, expected: dict[bytes, tuple[bytes, int]]) -> str:
    found = adapter.order_in(state)
    return "" if found == expected else f"order: the fold says {found}, the logs {expected}"


def _bounds(checkpoint: Checkpoint | None) -> str:
    return "the beginning" if checkpoint is None else f"half {checkpoint.half}, op {checkpoint.op}"


def describe(seed: int) -> str:
    """Return the logs of a seed as readable text."""
    logs = write(Random(seed))
    lines = [f"seed {seed}; in the order of their appending:"]
    half = 0
    for index, (place, ops) in enumerate(logs.ops):
        while half < logs.halves_before[index]:
            lines.append(_half_line(*logs.halves[half]))
            half += 1
        lines.append(f"  op {place}: " + ", ".join(_op_text(op) for op in ops))
    lines += [_half_line(*each) for each in logs.halves[half:]]
    return "\n".join(lines)


def _half_line(place: int, half: Half) -> str:
    copy = f" folded to {half.folded_to} under {half.token[-1:].hex()}, count {half.count}, decided {half.decided}"
    return f"  half {place}: {half.transaction_id[-1]} g{half.generation}{copy if half.folded_to >= 0 else ''}"


def _op_text(op: Op) -> str:
    more = f" {op.reason or op.count or op.decision or ''}".rstrip()
    return f"{OpKind(op.kind).name} {op.transaction_id[-1]} g{op.generation} [{op.token[-1:].hex()}]{more}"
