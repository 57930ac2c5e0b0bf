"""Random valid logs of one partition: the records of producers, operators, owners and their outdated predecessors.

Each record is valid at the moment at which it lands: ops of a generation follow its half, a copy holds the state that
its writer had read, and owned ops carry a claim that was made. Writers may be late, outdated, contradict each other, or
repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from msgspec import structs

from txcore import wire
from txcore.op_rules import PlacedOp
from txcore.records import FINAL_KINDS, Forced, Half, Op, OpKind, ParkCode, Position, TargetMessage
from txcore_conformance.refine.whole import Placed, Truth, named, truth_of

GROUP: Final = "g"
MESSAGES: Final = [TargetMessage("t", None, b"", {})]
MERGED: Final = 0.35
"""Share of ops that wait to be merged with the next ones."""
OWNED_SHARE: Final = 0.4
"""Share of the transactions that their partitions' owners release."""
ORDERED_SHARE: Final = 0.6
"""Share of these that have an order key."""
ORDER_KEYS: Final = (b"k0", b"k1")
UNIQUE_KINDS: Final = FINAL_KINDS | {OpKind.DISCARD, OpKind.COMMITTED}


class Logs(Protocol):
    """The logs to which a history is written."""

    def append_half(self, half: Half) -> None:
        """Append a half record."""

    def append_ops(self, ops: Sequence[Op]) -> None:
        """Append an op record."""

    def append_stray(self, *, is_op: bool) -> None:
        """Append bytes that are not a record."""


@dataclass(slots=True)
class Known:
    """One transaction as its writers may know it."""

    identity: bytes
    halves: list[Half] = field(default_factory=list)
    journal: list[Placed] = field(default_factory=list)
    first_place: int = -1  #: in the half log
    held: set[int] = field(default_factory=set)  #: generations with a final op or DISCARD
    is_final: bool = False
    is_committed: bool = False

    def takes(self, op: Op) -> bool:
        """Return whether a store that keeps resolutions unique takes a final op, a COMMITTED or a DISCARD."""
        if self.is_committed and not self.is_final and op.generation not in self.held:
            return isinstance(op, PlacedOp)
        return not self.is_final and op.generation not in self.held

    def hold(self, op: Op) -> None:
        """Note a stored final op, COMMITTED or DISCARD."""
        self.is_final = self.is_final or op.kind in FINAL_KINDS
        self.is_committed = self.is_committed or op.kind == OpKind.COMMITTED
        if op.kind != OpKind.COMMITTED:
            self.held.add(op.generation)

    def seen_at(self, place: int, generation: int) -> Truth:
        """Return the knowledge of an owner that has read ops up to *place*, and halves up to *generation*."""
        halves = (half for half in self.halves if half.generation <= generation)
        return truth_of(halves, (placed for placed in self.journal if placed.place <= place))


class History:
    """Writes one history to *logs*, an action at a time. `took_half` and `took_ops` report the landed records.

    Args:
        is_unique: The store refuses a second final op or DISCARD for one generation, and an op after a final one.
        owners: Whether the history plays owners; otherwise real owners write their records.
    """

    def __init__(self, rng: Random, logs: Logs, *, is_unique: bool, owners: bool = True) -> None:
        self.known: dict[bytes, Known] = {}
        self.tokens: list[tuple[int, bytes]] = []  #: claims in log order, as (place, token)
        self.places: list[int] = []  #: positions of the op records
        self._rng = rng
        self._logs = logs
        self._is_unique = is_unique
        self._waiting: list[Op] = []
        self._count = 0
        self._actions = [*_OTHERS, *_OWNERS] if owners else list(_OTHERS)

    # -- landed records ----------------------------------------------------------------------------------------------

    def took_half(self, place: int, half: Half) -> None:
        """Note a half record that has landed."""
        known = self.known.setdefault(half.transaction_id, Known(half.transaction_id, first_place=place))
        known.halves.append(half)

    def took_ops(self, place: int, ops: Sequence[Op]) -> None:
        """Note an op record that has landed."""
        self.places.append(place)
        token = self.tokens[-1][1] if self.tokens else b""
        for op in ops:
            if op.kind == OpKind.CLAIM:
                token = op.token
                self.tokens.append((place, token))
            elif op.kind != OpKind.TICK:
                known = self.known.get(op.transaction_id)
                if known is not None:
                    known.journal.append(Placed(place, token, op))
                    if op.kind in UNIQUE_KINDS:
                        known.hold(op)

    # -- writers -------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Let one writer take a random action, if that action is possible now."""
        rng = self._rng
        action = self._actions[int(rng.random() * len(self._actions))]
        if not self.known or action is History.prepare:
            self.prepare()
            return
        ids = list(self.known.values())
        action(self, ids[int(rng.random() * len(ids))])

    def flush(self) -> None:
        """Append the ops that wait, as one record."""
        ops, self._waiting = self._waiting, []
        if self._is_unique:
            ops = self._taken_in(ops)
        if ops:
            self._logs.append_ops(ops)

    def _taken_in(self, ops: Sequence[Op]) -> list[Op]:
        taken: list[Op] = []
        for op in ops:
            known = self.known.get(op.transaction_id)
            if known is None or op.kind not in UNIQUE_KINDS:
                taken.append(op)
            elif known.takes(op):
                known.hold(op)
                taken.append(op)
        return taken

    def _write(self, op: Op) -> None:
        self._waiting.append(op)
        if self._rng.random() >= MERGED:
            self.flush()

    def prepare(self, known: Known | None = None) -> None:  # noqa: ARG002 - the others need one
        """Append the first half of a transaction; now and then the broker stores it twice."""
        self._count += 1
        identity = self._count.to_bytes(16, "big")
        half = Half(1, identity, GROUP, 0, 0, 0, 0, 0, 3, False, "p", MESSAGES)
        if self._rng.random() < OWNED_SHARE:
            order_key = self._rng.choice(ORDER_KEYS) if self._rng.random() < ORDERED_SHARE else b""
            half = structs.replace(half, version=2, release=1, order_key=order_key)
        self._logs.append_half(half)
        if self._rng.random() < 0.03:
            self._logs.append_half(half)

    def end(self, known: Known) -> None:
        """A producer ends its transaction, perhaps late and against an owner's decision."""
        commit = OpKind.COMMITTED if known.halves[0].is_by_owner else OpKind.COMMIT
        self._write(Op(commit if self._rng.random() < 0.6 else OpKind.ROLLBACK, known.identity, 0, "p"))

    def nudge(self, known: Known) -> None:
        """A producer asks for an early check."""
        self._write(Op(OpKind.NUDGE, known.identity, 0, "p"))

    def request(self, known: Known) -> None:
        """An operator asks for a decision."""
        newest = known.halves[-1].generation
        op = Op(OpKind.FORCE, known.identity, newest, "o", decision=OpKind.COMMIT, forced=Forced.YES)
        op.reason = str(len(self.places))
        self._write(op)

    def resume(self, known: Known) -> None:
        """An operator resumes a parked half; now and then two operators do, or one also asks for a decision."""
        newest = max(half.generation for half in known.halves)
        truth = truth_of(known.halves, known.journal)
        if truth.closed_by != OpKind.DISCARD:
            return
        last = known.journal[-1]
        copy = self._proven(self._copy(known, newest + 1, last.place, last.token, 0, truth))
        self._logs.append_half(copy)
        if self._rng.random() < 0.1:
            self._logs.append_half(copy)
        if self._rng.random() < 0.3:
            self.request(known)

    def stray(self, known: Known) -> None:  # noqa: ARG002 - concerns none
        """Bytes that are not a record land in one of the logs."""
        self.flush()
        self._logs.append_stray(is_op=self._rng.random() < 0.5)

    def misdirect(self, known: Known) -> None:  # noqa: ARG002 - concerns none
        """A writer appends an op about a transaction that never had a half."""
        self._count += 1
        kind = OpKind.ROLLBACK if self._rng.random() < 0.5 else OpKind.FORCE
        self._write(Op(kind, self._count.to_bytes(16, "big"), 0, "o", decision=OpKind.COMMIT))

    def repeat(self, known: Known) -> None:
        """The broker stores an op twice, the second time perhaps much later."""
        if known.journal:
            self._write(known.journal[int(self._rng.random() * len(known.journal))].op)

    def claim(self, known: Known | None = None) -> None:  # noqa: ARG002 - concerns none
        """Another owner claims the partition."""
        self.flush()
        token = (len(self.tokens) + 1).to_bytes(16, "little")
        self._logs.append_ops([Op(OpKind.CLAIM, token, 0, "c", token=token)])

    def check(self, known: Known) -> None:
        """An owner counts a check."""
        owner = self._owner()
        if owner is not None:
            generation = self._generation(known)
            seen = known.seen_at(owner[1], generation)
            self._write(Op(OpKind.CHECKED, known.identity, generation, "c", token=owner[0], count=seen.count + 1))

    def decide(self, known: Known) -> None:
        """An owner journals a decision."""
        owner = self._owner()
        if owner is not None:
            decision = OpKind.COMMIT if self._rng.random() < 0.5 else OpKind.ROLLBACK
            generation = self._generation(known)
            self._write(Op(OpKind.DECIDED, known.identity, generation, "c", token=owner[0], decision=decision))

    def discard(self, known: Known) -> None:
        """An owner parks a half."""
        owner = self._owner()
        if owner is not None:
            reason = ParkCode.CHECKS_EXHAUSTED if self._rng.random() < 0.7 else ParkCode.UNDELIVERABLE
            generation = self._generation(known)
            seen = known.seen_at(owner[1], generation)
            op = Op(OpKind.DISCARD, known.identity, generation, "c", token=owner[0], reason=reason)
            self._write(_placed(op, seen) if seen.committed_at >= 0 else op)

    def finish(self, known: Known) -> None:
        """An owner writes a final op, perhaps under an outdated claim."""
        owner = self._owner()
        if owner is not None:
            kind = OpKind.COMMIT if self._rng.random() < 0.6 else OpKind.ROLLBACK
            op = Op(kind, known.identity, self._generation(known), "c", token=owner[0])
            seen = known.seen_at(owner[1], op.generation)
            if seen.committed_at >= 0:
                op.kind = OpKind.RELEASED
                op = _placed(op, seen)
            elif known.halves[0].is_by_owner and kind is OpKind.COMMIT:
                op.kind = OpKind.COMMITTED
            self._write(op)

    def reply(self, known: Known) -> None:
        """An owner refuses the operator's request that it has read; the log may hold a newer request."""
        owner = self._owner()
        if owner is None:
            return
        generation = self._generation(known)
        asked = known.seen_at(owner[1], generation).requested
        if asked is not None:
            self._write(Op(OpKind.FORCE, known.identity, generation, "c", token=owner[0], count=named(asked.place)))

    def carry(self, known: Known) -> None:
        """An owner appends a copy of a half that is undecided as far as the owner has read."""
        owner = self._owner()
        if owner is None:
            return
        token, place = owner
        generation = self._generation(known)
        seen = known.seen_at(place, generation)
        if seen.closed_by or self._went_on(known, generation, owner):
            return
        folded_to = place
        if seen.requested is not None:
            # A copy holds no request, so its journal begins at the position of the request.
            folded_to, token = seen.requested.place, seen.requested.token
        if self._is_outdone(known, generation, place):
            generation += 1
        self._logs.append_half(self._proven(self._copy(known, generation, folded_to, token, seen.count, seen)))

    def hold(self, known: Known) -> None:
        """An owner appends a copy of an ordered half that is parked as far as the owner has read."""
        owner = self._owner()
        if owner is None or not known.halves[0].order_key:
            return
        token, place = owner
        seen = known.seen_at(place, self._generation(known))
        if seen.closed_by != OpKind.DISCARD:
            return
        closing = (each.op for each in known.journal if each.place == seen.closed_at and each.op.kind == OpKind.DISCARD)
        generation = max(op.generation for op in closing)
        if self._went_on(known, generation, owner):
            return
        copy = structs.replace(self._copy(known, generation, place, token, seen.count, seen), held_at=generation)
        self._logs.append_half(self._proven(copy))

    def _went_on(self, known: Known, generation: int, owner: tuple[bytes, int]) -> bool:
        """Return whether this owner carried a later generation before; an owner carries no earlier one afterwards."""
        token, place = owner
        copies = (half for half in known.halves if half.token == token and half.generation > generation)
        return any(half.folded_to <= place for half in copies)

    def _is_outdone(self, known: Known, generation: int, place: int) -> bool:
        """Return whether a void DISCARD uses up the generation, so that the owner continues under the next one."""
        is_newest = generation == max(half.generation for half in known.halves)
        discards = [p.op for p in known.journal if p.place <= place and p.op.kind == OpKind.DISCARD]
        return self._is_unique and is_newest and any(op.generation == generation for op in discards)

    def _copy(self, known: Known, generation: int, folded_to: int, token: bytes, count: int, seen: Truth) -> Half:
        fields = (known.identity, GROUP, 0, generation, 0, 0, 0, 3, False, "p", MESSAGES, 0, 0)
        first = known.halves[0]
        copy = Half(first.version, *fields, count, folded_to, seen.decided, token)
        first_position = known.first_place if first.order_key else -1
        return structs.replace(
            copy,
            release=first.release,
            final_at=seen.committed_at,
            order_key=first.order_key,
            first_position=first_position,
        )

    def _proven(self, copy: Half) -> Half:
        """Append the proof of a copy; returns the copy that names its place."""
        self._logs.append_ops([Op(OpKind.TICK, wire.proof_of(copy), 0, "c")])
        return structs.replace(copy, proved_at=self.places[-1])

    def _generation(self, known: Known) -> int:
        """Return a generation that a writer may mean: the newest, or an older one if the writer is late."""
        halves = known.halves
        return halves[-1 if self._rng.random() < 0.8 else int(self._rng.random() * len(halves))].generation

    def _owner(self) -> tuple[bytes, int] | None:
        """Return an owner, perhaps an outdated one, as (token, position up to which it has read the op log)."""
        if not self.tokens:
            return None
        rng, last = self._rng, len(self.tokens) - 1
        index = last if rng.random() < 0.8 else int(rng.random() * (last + 1))
        first, token = self.tokens[index]
        until = self.tokens[index + 1][0] if index < last else self.places[-1] + 1
        places = [place for place in self.places if first <= place < until]
        return token, places[-1 if rng.random() < 0.5 else int(rng.random() * len(places))]


def _placed(op: Op, seen: Truth) -> Op:
    """Return an owner's op about a half whose COMMITTED it has read."""
    return PlacedOp(**structs.asdict(op), position=Position(seen.committed_at))


Action = Callable[[History, Known], None]
_OTHERS: Final[tuple[Action, ...]] = (
    *(History.prepare,) * 4,
    *(History.end,) * 3,
    *(History.resume,) * 4,
    History.nudge,
    History.request,
    History.request,
    History.stray,
    History.misdirect,
    History.repeat,
)
_OWNERS: Final[tuple[Action, ...]] = (
    *(History.claim,) * 2,
    *(History.check,) * 3,
    *(History.decide,) * 2,
    *(History.discard,) * 4,
    History.finish,
    History.reply,
    *(History.carry,) * 4,
    *(History.hold,) * 2,
)
