"""The records of the protocol: the entries of the logs, the items that pass the port, and their outcomes.

Half, Op and Parked are wire records (see `wire`); the others live in memory only. What each transaction makes is a
msgspec.Struct: a tenth of a dataclass's time, and unknown to the garbage collector (`gc=False`) where it can be.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NewType

import msgspec
from msgspec import Meta

from txcore.enums import direct
from txcore.errors import TxcoreError
from txcore.ids import ID_BYTES

Position = NewType("Position", int)
"""Position of a record in one log of one partition: ordered, not dense; merged ops share one."""


@direct
class LogKind(enum.Enum):
    """The three logs that each partition of a group has."""

    HALF = "half"
    OP = "op"
    PARKED = "parked"


@direct
class OpKind(enum.IntEnum):
    """The meaning of an op record; the numbers are the wire format."""

    COMMIT = 1  #: final: targets are published. The first final op in log order wins, of any writer.
    ROLLBACK = 2  #: final: no target, ever.
    DISCARD = 3  #: closes copies of the half up to its generation; a resume opens the next one.
    CHECKED = 4  #: one check was answered UNKNOWN; `count` is the number of answers so far.
    DECIDED = 5  #: an unfenced or forced answer, journaled before any action; never asked again.
    NUDGE = 6  #: a producer gave way and asks for an early check.
    FORCE = 7  #: an operator's request; with a token, the owner's reply to a request.
    CLAIM = 8  #: a checker owns the partition from here on; the id is the claim's nonce.
    TICK = 9  #: only a place in the log, to be read back; the id is the tick's nonce.
    COMMITTED = 10  #: an owner's release: decided COMMIT and not published yet. Of final ops the first one wins.
    RELEASED = 11  #: final: the partition's owner has published the targets, or the message table's relay has.


@direct
class ReleaseBy(enum.IntEnum):
    """The process that publishes the targets of a half; the numbers are the wire format."""

    PRODUCER = 0
    OWNER = 1  #: the owner of the half's partition, once it has read COMMITTED back


RECORD_OVERHEAD_MAX = 4_096
"""Most bytes by which a carried copy or a parked record may exceed the half in it."""
REASON_SIZE_MAX = 500
"""Most characters of a written reason; longer ones are cut."""
WALL_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, after which Python has no dates."""
WAIT_S_MAX = 30 * 86_400
"""Longest immunity and interval, in seconds, of a check policy."""
CHECK_MAX_MAX = 1_000_000
"""Most checks of a check policy."""
COUNT_MAX = (1 << 31) - 1
"""Highest generation, count, partition and index in a record."""
POSITION_MAX = (1 << 63) - 1
ORDER_KEY_SIZE_MAX = 1_000  #: bytes

# The ranges of a record's fields; a reader treats a record outside of them as damaged.
IdBytes = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Time = Annotated[int, Meta(ge=0, le=WALL_MS_MAX)]
Wait = Annotated[int, Meta(ge=0, le=WAIT_S_MAX * 1000)]
Checks = Annotated[int, Meta(ge=0, le=CHECK_MAX_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Kind = Annotated[int, Meta(ge=1, le=127)]
FoldedTo = Annotated[int, Meta(ge=-1, le=POSITION_MAX)]
FinalKind = Annotated[int, Meta(ge=0, le=2)]
ForcedMark = Annotated[int, Meta(ge=0, le=2)]
ReleaseMark = Annotated[int, Meta(ge=0, le=1)]

FINAL_KINDS = frozenset({OpKind.COMMIT, OpKind.ROLLBACK, OpKind.RELEASED})
"""Kinds that end a half; but a ROLLBACK after a COMMITTED ends nothing."""
DECIDING_KINDS = FINAL_KINDS | {OpKind.COMMITTED}
"""Kinds of which the first one in log order decides a half, whatever claim its writer had (R7, R17)."""
UNIQUE_KINDS = DECIDING_KINDS | {OpKind.DISCARD}
"""Kinds that hold the place of a transaction where the store keeps resolutions unique; see `excludes`."""
MARK_KINDS = frozenset({OpKind.CLAIM, OpKind.TICK})
OWNED_KINDS = frozenset({OpKind.CHECKED, OpKind.DECIDED, OpKind.DISCARD})
"""Kinds that count only under the token in force at their place in the log, as replies do; final ops always count."""


@direct
class Forced(enum.IntEnum):
    """An operator's part in an op record."""

    NO = 0
    YES = 1  #: through the fence, or where no fence decides
    OVERRIDE = 2  #: against the fence, or with the database unreachable


class TargetMessage(msgspec.Struct, array_like=True, gc=False):
    """A message inside a half, as it will be published: topic, key, body, headers (str or bytes), unchanged."""

    topic: str
    key: bytes | None
    body: bytes
    headers: dict[str, Any]


class Half(msgspec.Struct, array_like=True, tag="txh", gc=False):
    """The half record: one transaction with all its messages.

    Durations are milliseconds; 0 in `interval_ms` and `check_max` means the checker's own policy. The fields from
    `first_appended_ms` on are filled in a carried or resumed copy only, which folds the journal up to op position
    `folded_to`; `token` is the claim in force there, `missing` the targets to publish (empty for all). `database` is
    the identity of the database whose fence decides; zeros where it knows none, empty without a fence.
    `may_lack_row` says of a `fenced` half that its listener may have committed without the fence row: without one the
    listener decides. `release` is a `ReleaseBy`. Of a copy, `final_at` is the place of the COMMITTED folded into it,
    `proved_at` of its proof, `first_position` of its half if that has an `order_key`; `held_at` is the generation of
    one that is parked and holds the key up.
    """

    version: int
    transaction_id: IdBytes
    group: str
    partition: Count
    generation: Count
    born_ms: Time
    immunity_ms: Wait
    interval_ms: Wait
    check_max: Checks
    fenced: bool
    by: str
    messages: list[TargetMessage]
    first_appended_ms: Time = 0
    age_ms: Time = 0
    count: Count = 0
    folded_to: FoldedTo = -1
    decided: FinalKind = 0
    token: bytes = b""
    reason: str = ""
    missing: list[Count] = msgspec.field(default_factory=list)
    database: bytes = b""
    release: ReleaseMark = 0
    order_key: Annotated[bytes, Meta(max_length=ORDER_KEY_SIZE_MAX)] = b""
    first_position: FoldedTo = -1
    final_at: FoldedTo = -1
    held_at: Annotated[int, Meta(ge=-1, le=COUNT_MAX)] = -1
    may_lack_row: bool = False
    proved_at: FoldedTo = -1
    forced: ForcedMark = 0

    @property
    def asks_fence(self) -> bool:
        """Whether the fence is asked, alone or before the listener."""
        return self.fenced or bool(self.database)

    @property
    def is_carried(self) -> bool:
        """Whether it is a copy that an owner appended: it keeps the beginning of the immunity, which a resume ends."""
        return bool(self.first_appended_ms or self.age_ms)

    @property
    def is_by_owner(self) -> bool:
        """Whether the partition's owner publishes its targets."""
        return self.release == ReleaseBy.OWNER

    @property
    def fence_decides(self) -> bool:
        """Whether the fence decides alone, so that a missing row means ROLLBACK."""
        return self.fenced and not self.may_lack_row


class Op(msgspec.Struct, array_like=True, gc=False):
    """One entry of an op record; `transaction_id` is the nonce in a CLAIM or TICK.

    Attributes:
        count: In CHECKED the answered checks so far; in a reply, the name of its request (`reply_count`).
        decision: COMMIT or ROLLBACK in DECIDED and FORCE, 0 elsewhere.
        token: The writing checker's claim; empty for producers and operators.
        by: The attempt that wrote it (producer or checker instance), or the operator's name.
        at_ms: The writer's wall clock; for display and latencies, never for decisions.
    """

    kind: Kind
    transaction_id: IdBytes
    generation: Count = 0
    by: str = ""
    at_ms: Time = 0
    token: bytes = b""
    count: Count = 0
    decision: FinalKind = 0
    forced: ForcedMark = 0
    reason: str = ""


def is_in_force(op: Op, token: bytes) -> bool:
    """Return whether *op* counts at a place of the op log where *token* is the newest CLAIM (R13).

    Journal ops and replies to requests count only under their writer's claim; all others always do.
    """
    return op.token == token or not (op.kind in OWNED_KINDS or (op.kind == OpKind.FORCE and bool(op.token)))


@direct
class ParkCode(enum.StrEnum):
    """Why a half was parked; CLOSED means that none is parked."""

    CHECKS_EXHAUSTED = "CHECKS_EXHAUSTED"
    UNDELIVERABLE = "UNDELIVERABLE"
    PRUNED = "PRUNED"
    COVERAGE_GAP = "COVERAGE_GAP"
    POISON = "POISON"
    NEWER = "NEWER"
    LOST = "LOST"
    CLOSED = "CLOSED"
    UNSIGNED = "UNSIGNED"


class Parked(msgspec.Struct, array_like=True, tag="txp"):
    """A discarded half with everything an operator needs: its bytes, the reason, and the missing targets.

    `code` is a `ParkCode`; `missing` holds the indices of the targets that were not confirmed (UNDELIVERABLE only).
    LOST and CLOSED have no bytes in `half`; CLOSED means that entries up to its generation were dismissed, or were
    resumed and have ended.
    """

    version: int
    transaction_id: IdBytes
    generation: Count
    code: str
    reason: str
    count: Count
    by: str
    at_ms: Time
    token: bytes
    half: bytes
    missing: list[Count] = msgspec.field(default_factory=list)


@direct
class Status(enum.Enum):
    """The outcome of one item of a batch."""

    DURABLE = "durable"  #: done: stored as the backend promises; targets certain, op certain or queued
    REFUSED = "refused"  #: certainly not stored
    UNKNOWN = "unknown"  #: may be stored
    SUPERSEDED = "superseded"  #: another final op or DISCARD holds this (transaction, generation)
    FENCED = "fenced"  #: this claim is no longer the newest


class HalfRecord(msgspec.Struct, gc=False):
    """A half on its way to a backend: `body` is the encoded envelope, `messages` its messages.

    `messages` is empty in a carried or resumed copy: then no target is checked, so that the copy is stored even when
    a target no longer exists.
    """

    group: str
    partition: int
    transaction_id: bytes
    generation: int
    body: bytes
    messages: Sequence[TargetMessage]


class Resolution(msgspec.Struct, gc=False):
    """An op record, and the targets and the parked record that are released with it.

    Attributes:
        half: The half that it ends; holds group, partition, id and messages.
        op: The op to write, or None to publish targets only (relay of a message table).
        targets: Indices into `half.messages` to publish and confirm before the op; empty for none.
        parked: The encoded parked record to confirm before the op: of a DISCARD; or, of a final op, the CLOSED that
            closes the entry of a half that was resumed. Else b"".
        by: The attempt, named in each target's `txcore-by` header.
        flush: Settle only when the op itself is durable; else the op may be queued and merged.
    """

    half: HalfRecord
    op: Op | None
    targets: Sequence[int] = ()
    parked: bytes = b""
    by: str = ""
    flush: bool = False


class Outcome(msgspec.Struct):
    """The outcome of one item.

    Attributes:
        status: See `Status`.
        error: The error, with fields, for REFUSED and UNKNOWN.
        decision: The kind that holds the place, for SUPERSEDED.
        missing: Indices of targets that were not confirmed (release only).
    """

    status: Status
    error: TxcoreError | None = None
    decision: int = 0
    missing: tuple[int, ...] = ()


DURABLE = Outcome(Status.DURABLE)


class LogRecord(msgspec.Struct, gc=False):
    """A record as read, undecoded: a poison half is parked with its bytes."""

    position: Position
    body: bytes
    appended_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Two lower bounds and the state that was known at them.

    Attributes:
        half: A half position already read, at or before the oldest undecided half; None to read from the start.
        op: An op position already read, not beyond the first op of any half at or after `half`.
        token: The claim in force at `op`.
        note: The core's own bytes (undecided ids); opaque to backends, at most `note_size_max` bytes.
    """

    half: Position | None
    op: Position | None
    token: bytes = b""
    note: bytes = b""


@direct
class ClaimEventKind(enum.Enum):
    """The kind of a change of membership in a group."""

    ASSIGNED = "assigned"
    REVOKING = "revoking"  #: drain and checkpoint within `drain_s`, then give up
    LOST = "lost"  #: drop everything, write nothing


@dataclass(frozen=True, slots=True)
class ClaimEvent:
    """A change of ownership of one partition; a hint, as the CLAIM mark is the truth."""

    kind: ClaimEventKind
    partition: int
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The promises of one opened backend; read only by the rules that name a field, by conformance and by docs.

    Attributes:
        atomic_release: Targets, parked record and op of one resolution become visible together or not at all, and of
            one half's releases under claims at most one does (see `port.Backend.release`).
        resolution_is_unique: The store refuses a second final op or DISCARD for one (transaction, generation).
        fences_checkers: A release or mark under an outdated claim is refused by the store (FENCED).
        deduplicates_targets_s: Seconds for which the store drops a second target with the same id; 0 for never.
        server_time: `appended_ms` is present, from the clock of the node that leads the log.
        fsync_before_ack: "yes", "no", or "configured" when the broker's setting decides.
        rejects_when_full: A full half log refuses instead of dropping the oldest.
        polled: Progress is made only inside `poll`.
        body_size_max: Most bytes of one encoded half (`HalfRecord.body`); every log takes RECORD_OVERHEAD_MAX bytes
            more, for the carried copy and the parked record, which holds the half.
        batch_count_max: Most items that one batch may hold.
        note_size_max: Most bytes of a checkpoint's note.
        release_time_max_s: Longest time, in seconds, from handing over a release to its settling (delivery timeout and
            op merging together); the producer's margin may not be smaller. An UNKNOWN release may take effect later,
            for as long as the broker stalls.
        half_retention_s: Seconds after which the store may drop a half, or None for never.
        clock_skew_max_s: Largest difference, in seconds, of two log leaders' clocks; 0 where all have one clock.
        resolution_kept_s: Seconds for which a store that keeps resolutions unique certainly remembers one; None for
            ever. The store accepts a second final op that comes later than this.
        op_retention_s: Seconds for which the store certainly keeps an op; None where it drops none by age.
    """

    atomic_release: bool
    resolution_is_unique: bool
    fences_checkers: bool
    server_time: bool
    rejects_when_full: bool
    fsync_before_ack: str = "no"
    deduplicates_targets_s: float = 0.0
    polled: bool = False
    body_size_max: int = 1_000_000
    batch_count_max: int = 1_000
    note_size_max: int = 3_000
    release_time_max_s: float = 2.0
    half_retention_s: float | None = None
    op_retention_s: float | None = None
    resolution_kept_s: float | None = None
    clock_skew_max_s: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)
