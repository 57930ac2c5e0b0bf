"""Each transaction as a group's logs show it: pure reading, for operators, oracles and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from txcore import wire
from txcore.errors import NewerRecordError, TransactionStateError, WireFormatError
from txcore.ids import born_ms, id_text
from txcore.records import (
    FINAL_KINDS,
    REASON_SIZE_MAX,
    Forced,
    Half,
    HalfRecord,
    LogRecord,
    Op,
    OpKind,
    ParkCode,
    Parked,
    Position,
    Resolution,
    is_discard_in_force,
    is_in_force,
    is_reply_to,
)

POISON_TEXT: Final = "it is poison: no half, but bytes that nothing can read; `txcore show` has them"
NEWER_TEXT: Final = "it was written by a newer txcore"
LOST_TEXT: Final = (
    "its half is gone from the log, and with it its messages; ask the database whether it committed, publish by hand "
    "what it should have sent, then roll it back, which takes it off the list"
)
GONE_TEXT: Final = "its half is gone from the log, there is nothing to decide"


@dataclass(slots=True)
class Journey:
    """One transaction as its logs show it: every copy of the half, every op in log order, every parked record.

    `parked` holds every parked record but CLOSED; `entry` is the one that no later CLOSED has closed.
    """

    transaction_id: bytes
    partition: int
    group: str = ""
    halves: list[Half] = field(default_factory=list)
    half_times_ms: list[int | None] = field(default_factory=list)
    ops: list[tuple[Position, Op]] = field(default_factory=list)
    op_times_ms: list[int | None] = field(default_factory=list)
    replies: list[tuple[Position, Op]] = field(default_factory=list)  #: to requests, in force
    parked: list[Parked] = field(default_factory=list)
    entry: Parked | None = None
    closed_generation: int = -1  #: everything parked up to here was dismissed, or resumed and ended
    newer_version: int = 0  #: the highest wire version of its halves, if that is above ours
    newer_generation: int = -1  #: the highest generation among those
    final: int = 0
    count: int = 0
    journaled: int = 0  #: the decision of the first DECIDED in force
    copied_decision: int = 0  #: the decision in a copy whose journal held a DECIDED
    discarded_generation: int = -1
    exhausted: set[int] = field(default_factory=set)  #: generations discarded, in force, for exhausted checks
    undeliverable_generation: int = -1  #: the highest one discarded, in force, because a target refuses
    forced: int = 0  #: final ops and decisions in force that an operator made; a request that was refused is none
    overrides: int = 0  #: final ops and decisions in force that an operator made against the fence
    discarded_ms: int = 0  #: time of the newest DISCARD in force
    token_before: bytes = b""
    checked: dict[int, int] = field(default_factory=dict)  #: answered checks, in force, per generation

    def add_half(self, half: Half, appended_ms: int | None) -> None:
        """Add a copy of the half; a carried or resumed one brings the contents of its journal."""
        self.halves.append(half)
        self.half_times_ms.append(appended_ms)
        self.copied_decision = self.copied_decision or half.decided
        if half.count or self.checked:
            self.checked[half.generation] = max(self.checked.get(half.generation, 0), half.count)
            self.count = self.checked.get(self.generation, 0)

    def add_parked(self, entry: Parked) -> None:
        """Add a parked record, in log order: a CLOSED applies to those before it."""
        if entry.code != ParkCode.CLOSED:
            self.parked.append(entry)
            self.entry = entry
            return
        self.closed_generation = max(self.closed_generation, entry.generation)
        if self.entry is not None and self.entry.generation <= entry.generation:
            self.entry = None

    @property
    def half(self) -> Half | None:
        """The newest copy that this txcore can read."""
        if len(self.halves) == 1:
            return self.halves[0]
        return max(self.halves, key=lambda half: half.generation, default=None)

    @property
    def generation(self) -> int:
        """The newest copy's generation; -1 when no half was found."""
        return max(self.half.generation if self.half is not None else -1, self.newer_generation)

    @property
    def born_ms(self) -> int:
        """The producer's wall clock, from the half or else from the id; 0 where no half is known."""
        if self.half is not None:
            return self.half.born_ms
        return born_ms(self.transaction_id) if self.newer_version else 0

    @property
    def decided(self) -> int:
        """COMMIT or ROLLBACK once that is journaled, in the op log or in a copy; else 0."""
        return self.journaled or self.copied_decision

    def was_decided_at(self, position: int) -> bool:
        """Return whether a DECIDED in force comes before *position*, as far as ops and copies show."""
        return bool(self.journaled) or any(half.decided and half.folded_to <= position for half in self.halves)

    @property
    def is_parked(self) -> bool:
        """Whether it is discarded, not resumed and not finished; also when retention has left its entry alone."""
        is_open = self.entry is not None or self.discarded_generation > self.closed_generation
        return not self.final and is_open and self.discarded_generation >= self.generation

    @property
    def is_newer(self) -> bool:
        """Whether its newest copy was written by a newer txcore, so that this one cannot judge it."""
        return self.newer_generation > (self.half.generation if self.half is not None else -1)

    @property
    def is_poison(self) -> bool:
        """Whether all that is known of it are parked bytes that were no half for whichever checker parked them."""
        if not self.parked or self.halves:
            return False
        entry = self.parked[-1]
        return entry.code == ParkCode.POISON or (bool(entry.half) and half_in(entry) is None and not _is_newer(entry))

    @property
    def is_dismissible(self) -> bool:
        """Whether nothing is known that could be published: bytes that are no half, or none; a ROLLBACK ends that."""
        if not self.parked or self.generation >= 0 or inner_half(self) is not None:
            return False
        entry = self.parked[-1]
        return (self.is_poison or entry.code == ParkCode.LOST) and not _is_newer(entry)

    @property
    def has_beginning(self) -> bool:
        """Whether the producer's own half is there, so that no op before it can be missing."""
        return any(half.generation == 0 and half.folded_to < 0 for half in self.halves)

    @property
    def request(self) -> Op | None:
        """The operator's newest request for a decision that is neither carried out nor refused."""
        if self.final or self.decided or self.is_parked:
            return None
        asked = [(position, op) for position, op in self.ops if _is_request(op)]
        return asked[-1][1] if asked and self._reply_at(asked[-1][0]) is None else None

    def reply_to(self, by: str) -> Op | None:
        """Return the owner's refusal of the newest request by an operator of this name, if there is one."""
        asked = max((position for position, op in self.ops if _is_request(op) and op.by == by), default=None)
        return None if asked is None else self._reply_at(asked)

    def _reply_at(self, asked: int) -> Op | None:
        """Return the reply to the request at position *asked*."""
        return next((op for position, op in self.replies if position > asked and is_reply_to(op, asked)), None)

    @property
    def is_pending(self) -> bool:
        """Whether it is undecided and in the checker's hands."""
        return not self.final and self.generation >= 0 and not self.is_parked


class Journeys:
    """One partition's logs folded into a journey per transaction, record by record.

    Each log is given in its own order; the two may be interleaved in any way. Records that this version cannot
    read are skipped: poison in the half log is parked by the checker, and the parked log shows it. Of a newer txcore's
    half only the existence is known.

    Args:
        token: The claim in force where the op log begins.
        wanted: Returns whether to fold a transaction; None for all.
        group: The group of the logs; "" where it does not matter.
    """

    def __init__(
        self, partition: int, token: bytes = b"", wanted: Callable[[bytes], bool] | None = None, group: str = ""
    ) -> None:
        self.found: dict[bytes, Journey] = {}
        self._group = group
        self._partition = partition
        self._token = token
        self._wanted = wanted

    def read_half(self, record: LogRecord) -> Half | None:
        """Fold a record of the half log; returns the half, whether wanted or not."""
        try:
            half = wire.decode_half(record.body)
        except NewerRecordError as newer:
            self._note_newer(newer)
            return None
        except WireFormatError:
            return None
        found = self._journey(half.transaction_id)
        if found is not None:
            found.add_half(half, record.appended_ms)
        return half

    def read_ops(self, record: LogRecord) -> list[Op]:
        """Fold a record of the op log; returns all its ops."""
        try:
            ops = wire.decode_ops(record.body)
        except WireFormatError:
            return []
        for op in ops:
            if op.kind == OpKind.CLAIM:
                self._token = op.token
            elif op.kind != OpKind.TICK and (found := self._journey(op.transaction_id)) is not None:
                _fold(found, record, op, self._token)
        return ops

    def read_parked(self, record: LogRecord) -> Parked | None:
        """Fold a record of the parked log; returns it, whether wanted or not."""
        try:
            entry = wire.decode_parked(record.body)
        except WireFormatError:
            return None
        found = self._journey(entry.transaction_id)
        if found is not None:
            found.add_parked(entry)
        return entry

    def _note_newer(self, newer: NewerRecordError) -> None:
        found = self._journey(newer.transaction_id)
        if found is not None:
            found.newer_version = max(found.newer_version, newer.version)
            found.newer_generation = max(found.newer_generation, newer.generation)

    def _journey(self, transaction_id: bytes) -> Journey | None:
        if self._wanted is not None and not self._wanted(transaction_id):
            return None
        found = self.found.get(transaction_id)
        if found is None:
            found = self.found[transaction_id] = Journey(transaction_id, self._partition, self._group)
        return found


def journeys_of(
    partition: int,
    halves: Iterable[LogRecord],
    ops: Iterable[LogRecord],
    parked: Iterable[LogRecord],
    token: bytes = b"",
    *,
    only: bytes | None = None,
) -> dict[bytes, Journey]:
    """Fold one partition's logs, given in log order, into a journey per transaction.

    Args:
        token: The claim in force where *ops* begins.
        only: Restrict the result to this transaction.
    """
    journeys = Journeys(partition, token, None if only is None else only.__eq__)
    for record in halves:
        journeys.read_half(record)
    for record in ops:
        journeys.read_ops(record)
    for record in parked:
        journeys.read_parked(record)
    return journeys.found


def next_generation(journey: Journey, by: str, reason: str) -> HalfRecord:
    """Return the half to append for a resume: the same id, one generation on, a fresh check budget.

    A half that no checker could read when it was parked keeps its immunity: its producer may still be at work.

    Raises:
        TransactionStateError: there is no half to resume, or the new record would not be readable; says why.
    """
    entry = journey.parked[-1] if journey.parked else None
    half = journey.half or (half_in(entry) if entry is not None else None)
    if half is None or journey.is_newer or journey.is_poison:
        raise TransactionStateError(f"{id_text(journey.transaction_id)} cannot be resumed: {why_no_half(journey)}")
    was_unread = entry is not None and entry.code in {ParkCode.POISON, ParkCode.NEWER}
    generation = max(journey.discarded_generation, journey.closed_generation, half.generation) + 1
    copy = msgspec.structs.replace(
        half,
        generation=generation,
        immunity_ms=half.immunity_ms if was_unread else 0,
        first_appended_ms=0,
        age_ms=0,
        count=0,
        folded_to=journey.ops[-1][0] if journey.ops else -1,
        decided=journey.decided,
        token=journey.token_before,
        reason=f"{by}: {reason}"[:REASON_SIZE_MAX],
        missing=list(entry.missing) if entry is not None else half.missing,
    )
    body = wire.encode_half(copy)
    try:
        wire.decode_half(body)  # a record that its reader refuses would only be parked again
    except WireFormatError as error:
        raise TransactionStateError(f"{id_text(journey.transaction_id)} cannot be resumed: {error}") from error
    return HalfRecord(half.group, half.partition, half.transaction_id, generation, body, ())


def inner_half(journey: Journey) -> Half | None:
    """Return the half that a poison entry holds, which has an id of its own; None for every other transaction.

    An older txcore parks a newer one's half under an id made of its bytes. Once this txcore is new enough, it reads it.
    A half of another group or partition stays poison: it belongs into another log.
    """
    half = half_in(journey.parked[-1]) if journey.is_poison else None
    if half is None or half.partition != journey.partition or journey.group not in {"", half.group}:
        return None
    return half


def resumable_id(journey: Journey) -> bytes:
    """Return the id under which a parked transaction may resume: poison may hold a half, perhaps of a newer txcore."""
    if journey.is_poison:
        try:
            return wire.decode_head(journey.parked[-1].half).transaction_id
        except NewerRecordError as newer:
            return newer.transaction_id
        except WireFormatError:
            pass
    return journey.transaction_id


def next_of_inner(poison: Journey, own: Journey | None, by: str, reason: str) -> HalfRecord | None:
    """Return the half to append for a resume of the half inside *poison*; None where that is under way or finished.

    Args:
        own: The journey of the half under its own id; None where the logs hold nothing.

    Raises:
        TransactionStateError: *poison* holds no half.
    """
    half = inner_half(poison)
    if half is None:
        raise TransactionStateError(f"{id_text(poison.transaction_id)} cannot be resumed: {why_no_half(poison)}")
    journey = own or Journey(half.transaction_id, poison.partition, poison.group)
    if journey.final or journey.generation > half.generation:
        return None
    if not journey.halves:
        journey.add_half(half, None)
    if not journey.parked:
        journey.add_parked(poison.parked[-1])
    # Its entry's DISCARD has closed this generation; the ops before it are those that were read.
    journey.discarded_generation = max(journey.discarded_generation, half.generation)
    journey.ops = max(journey.ops, poison.ops, key=lambda ops: ops[-1][0] if ops else -1)
    return next_generation(journey, by, reason)


def closed_record(transaction_id: bytes, generation: int, by: str, at_ms: int, token: bytes = b"") -> bytes:
    """Return the parked record that closes every entry of a transaction up to *generation*.

    It is confirmed before the final op of a half whose generation is above 0, and with a dismissal. So the entry does
    not come back when retention has removed the ops.
    """
    return wire.encode_parked(
        Parked(wire.VERSION, transaction_id, generation, ParkCode.CLOSED, "", 0, by, at_ms, token, b"")
    )


def close_entry(
    group: str, partition: int, transaction_id: bytes, generation: int, by: str, at_ms: int, token: bytes = b""
) -> Resolution:
    """Return the CLOSED record, without an op, for the entry of a half that its producer ended while it was parked."""
    parked = closed_record(transaction_id, generation, by, at_ms, token)
    half = HalfRecord(group, partition, transaction_id, generation, b"", ())
    return Resolution(half, None, (), parked, by, flush=True)


def force_op(journey: Journey, kind: OpKind, generation: int, by: str, at_ms: int, forced: int, reason: str) -> Op:
    """Return an operator's request for a decision."""
    return Op(
        OpKind.FORCE,
        journey.transaction_id,
        generation,
        by,
        at_ms,
        decision=kind,
        forced=forced,
        reason=reason[:REASON_SIZE_MAX],
    )


def _fold(journey: Journey, record: LogRecord, op: Op, token: bytes) -> None:
    journey.ops.append((record.position, op))
    journey.op_times_ms.append(record.appended_ms)
    journey.token_before = token
    if not is_in_force(op, token):
        return
    if op.kind == OpKind.FORCE and op.token:
        journey.replies.append((record.position, op))
    if op.kind in FINAL_KINDS | {OpKind.DECIDED} and op.forced:
        journey.forced += 1
        journey.overrides += op.forced == Forced.OVERRIDE
    if op.kind in FINAL_KINDS:
        journey.final = journey.final or op.kind
    elif op.kind == OpKind.DISCARD and is_discard_in_force(op, is_decided=journey.was_decided_at(record.position)):
        journey.discarded_generation = max(journey.discarded_generation, op.generation)
        if op.reason == ParkCode.CHECKS_EXHAUSTED:
            journey.exhausted.add(op.generation)
        elif op.reason == ParkCode.UNDELIVERABLE:
            journey.undeliverable_generation = max(journey.undeliverable_generation, op.generation)
        journey.discarded_ms = max(journey.discarded_ms, op.at_ms if record.appended_ms is None else record.appended_ms)
    elif op.kind == OpKind.CHECKED:
        journey.checked[op.generation] = max(journey.checked.get(op.generation, 0), op.count)
        journey.count = journey.checked.get(journey.generation, 0)
    elif op.kind == OpKind.DECIDED:
        journey.journaled = journey.journaled or op.decision


def _is_request(op: Op) -> bool:
    return op.kind == OpKind.FORCE and not op.token


def half_in(parked: Parked) -> Half | None:
    """Return the half inside a parked record; None for poison, for a newer half, and where there are no bytes."""
    try:
        return wire.decode_half(parked.half)
    except WireFormatError:
        return None


def why_unreadable(parked: Parked) -> str:
    """Return why there is no half in a parked record that could be resumed, and what to do."""
    if parked.code == ParkCode.LOST:
        return LOST_TEXT
    if _is_newer(parked):
        return f"{NEWER_TEXT}; upgrade this one, then resume it"
    return POISON_TEXT if parked.half or parked.code == ParkCode.POISON else GONE_TEXT


def _is_newer(parked: Parked) -> bool:
    try:
        wire.decode_half(parked.half)
    except NewerRecordError:
        return True
    except WireFormatError:
        pass
    return False


def why_no_half(journey: Journey) -> str:
    """Return why nothing of this transaction can be resumed or decided by this txcore, and what to do."""
    if journey.is_newer:
        return f"{NEWER_TEXT}, in wire version {journey.newer_version}; upgrade the checkers and this txcore"
    return why_unreadable(journey.parked[-1]) if journey.parked else GONE_TEXT


def topics_of(half: Half) -> tuple[str, ...]:
    """Return the topics a half would publish to, sorted."""
    return tuple(sorted({message.topic for message in half.messages}))
