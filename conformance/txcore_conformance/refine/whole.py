"""The truth of whole logs: all half records first, then all op records in log order. Shares no code with the fold.

The rules, all of them: the first final op wins, from any writer. A COMMITTED is one, too, but closes nothing; so a
ROLLBACK after it closes nothing either. CHECKED, DECIDED, DISCARD and replies count under the claim in force at their
place only. The newest generation is judged. A DISCARD closes generations up to its own; one for exhausted checks is
void after a DECIDED or a COMMITTED. DECIDED holds for the transaction, the first one; CHECKED and FORCE hold for their
generation. A reply answers the request that it names, and no other. Bytes that are not a record have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from txcore import wire
from txcore.errors import WireFormatError
from txcore.records import FINAL_KINDS, OWNED_KINDS, Half, LogRecord, Op, OpKind, ParkCode

ENDS: Final = (OpKind.COMMIT, OpKind.ROLLBACK)
COMMITTED: Final = 3
"""What `Truth.open_state` says of a transaction that is decided by a COMMITTED."""
MARKS: Final = (OpKind.CLAIM, OpKind.TICK)


class Placed(NamedTuple):
    """An op with its position and the claim in force there."""

    place: int
    token: bytes
    op: Op


@dataclass(slots=True)
class Truth:
    """The truth of the logs about one transaction.

    Attributes:
        closed_by: COMMIT, ROLLBACK or DISCARD; 0 for an undecided one.
        closed_at: Position of the op that closed it; -1 for an undecided one.
        count: Answered checks of its newest generation.
        decided: COMMIT or ROLLBACK once journaled, else 0.
        committed_at: Position of its COMMITTED, if that was the first final op; else -1.
        request: The operator's request that was not answered yet.
        requested: Position of that request.
    """

    generation: int
    closed_by: int = 0
    closed_at: int = -1
    count: int = 0
    decided: int = 0
    committed_at: int = -1
    request: Op | None = None
    requested: Placed | None = None

    @property
    def is_decided(self) -> bool:
        """Whether a DECIDED or a COMMITTED in force says how it ends."""
        return bool(self.decided) or self.committed_at >= 0

    @property
    def open_state(self) -> tuple[int, int, int, Op | None]:
        """The state that a checker must have; for a decided transaction it omits the operator's request."""
        decided = COMMITTED if self.committed_at >= 0 else self.decided
        return self.generation, self.count, decided, None if decided else self.request


def truth_of(halves: Iterable[Half], ops: Iterable[Placed]) -> Truth:
    """Fold one transaction: all of its *halves*, then its *ops* in log order."""
    newest = count = -1
    for half in halves:
        if half.generation > newest:
            newest, count = half.generation, half.count
        elif half.generation == newest and half.count > count:
            count = half.count
    truth = Truth(newest, count=max(count, 0))
    for placed in ops:
        op = placed.op
        if op.token == placed.token or not (op.kind in OWNED_KINDS or _is_reply(op)):
            _fold(truth, placed, op)
    return truth


def _fold(truth: Truth, placed: Placed, op: Op) -> None:
    kind = op.kind
    if kind == OpKind.COMMITTED:
        if truth.closed_by not in ENDS and truth.committed_at < 0:
            truth.committed_at = placed.place
    elif kind in FINAL_KINDS:
        is_void = kind == OpKind.ROLLBACK and truth.committed_at >= 0
        if truth.closed_by not in ENDS and not is_void:
            truth.closed_by = OpKind.ROLLBACK if kind == OpKind.ROLLBACK else OpKind.COMMIT
            truth.closed_at = placed.place
    elif kind == OpKind.CHECKED:
        if op.generation == truth.generation:
            truth.count = max(truth.count, op.count)
    elif kind == OpKind.DECIDED:
        truth.decided = truth.decided or op.decision
    elif kind == OpKind.DISCARD:
        is_void = truth.is_decided and op.reason == ParkCode.CHECKS_EXHAUSTED
        if op.generation >= truth.generation and not truth.closed_by and not is_void:
            truth.closed_by, truth.closed_at = kind, placed.place
    elif kind == OpKind.FORCE and op.generation == truth.generation:
        if not op.token:
            truth.request, truth.requested = op, placed
        elif truth.requested is not None and op.count == named(truth.requested.place):
            truth.request = truth.requested = None


def named(place: int) -> int:
    """Return the number by which a reply names the request at *place* in the op log."""
    return place % (2**31 - 1) + 1


def _is_reply(op: Op) -> bool:
    return op.kind == OpKind.FORCE and op.token != b""


def whole(halves: Iterable[Half], ops: Iterable[tuple[int, Sequence[Op]]]) -> dict[bytes, Truth]:
    """Fold one partition's logs, and return the truth about each transaction that has a half."""
    journals, _ = journals_of(ops)
    copies: dict[bytes, list[Half]] = {}
    for half in halves:
        copies.setdefault(half.transaction_id, []).append(half)
    return {identity: truth_of(each, journals.get(identity, ())) for identity, each in copies.items()}


def journals_of(ops: Iterable[tuple[int, Sequence[Op]]]) -> tuple[dict[bytes, list[Placed]], list[tuple[int, bytes]]]:
    """Return each transaction's ops with their places, and the claims as (place, token)."""
    journals: dict[bytes, list[Placed]] = {}
    claims: list[tuple[int, bytes]] = []
    token = b""
    for place, record in ops:
        for op in record:
            if op.kind == OpKind.CLAIM:
                token = op.token
                claims.append((place, token))
            elif op.kind != OpKind.TICK:
                journals.setdefault(op.transaction_id, []).append(Placed(place, token, op))
    return journals, claims


def halves_in(records: Iterable[LogRecord]) -> list[tuple[int, Half]]:
    """Decode a half log; stray bytes are left out."""
    found = []
    for record in records:
        try:
            found.append((int(record.position), wire.decode_half(record.body)))
        except WireFormatError:
            continue
    return found


def ops_in(records: Iterable[LogRecord]) -> list[tuple[int, list[Op]]]:
    """Decode an op log; stray bytes are left out."""
    found = []
    for record in records:
        try:
            found.append((int(record.position), wire.decode_ops(record.body)))
        except WireFormatError:
            continue
    return found


def order_of(halves: Iterable[tuple[int, Half]], truths: Mapping[bytes, Truth]) -> dict[bytes, tuple[bytes, int]]:
    """Return order key and first place of each half with an order key that is undecided or parked."""
    places: dict[bytes, tuple[bytes, int]] = {}
    for place, half in halves:
        if half.order_key and truths[half.transaction_id].closed_by not in ENDS:
            places.setdefault(half.transaction_id, (half.order_key, place))
    return places


def open_states(truths: Mapping[bytes, Truth]) -> dict[bytes, tuple[int, int, int, Op | None]]:
    """Return the state that a checker must have of each undecided transaction."""
    return {identity: truth.open_state for identity, truth in truths.items() if not truth.closed_by}
