"""The decision: the next step for one half. Pure; checker, simulator and tests call the same function."""

from __future__ import annotations

import enum
import functools
import math
from typing import Any, Final

import msgspec

from txcore.enums import direct
from txcore.op_rules import is_discard_in_force
from txcore.records import POSITION_MAX, Half, Op, OpKind, ParkCode

AT_ONCE_MS: Final = 0.0
"""Time, in milliseconds, at which the next step of a judgement is due: in its own sweep, however long a step took."""
NEVER_MS: Final = math.inf
"""Time, in milliseconds, at which a half is due that waits for another one."""


@direct
class Decision(enum.Enum):
    """The owner's next step for a half."""

    WAIT = "wait"  #: not yet due
    DONE = "done"  #: closed by a final op or a DISCARD
    CARRY = "carry"  #: append a copy, so that neither retention nor the checkpoint's distance bites
    PARK = "park"  #: cannot be checked; park it with the reason
    FINISH = "finish"  #: decided; publish and write the final op
    FORCE = "force"  #: an operator asks for a decision
    CHECK = "check"  #: ask the fence or the listener
    DISCARD = "discard"  #: asked often enough; park it
    HOLD = "hold"  #: parked; it only holds its order key up


class Extras(msgspec.Struct, frozen=True, gc=False):
    """The fields that only few halves have.

    Attributes:
        forced: An operator's part in the decision.
        force, force_at: An operator's open request; its position in the op log, and the claim in force there.
        missing: Indices of targets still to publish, once a release was refused in part.
        refusals: Releases that a target refused.
        failures: Checks in a row without an answer, and failed writes.
        outdone_count: Number of generations, from its own on, whose place a DISCARD holds on a store that keeps
            resolutions unique. If that is not in force (void, or under an outdated claim), the half continues under the
            next generation: by a copy, or without one where it can only be parked.
        copied_from: Of a carried or resumed copy, the op position at which its journal begins, and the claim in force
            there; the copy holds all that came before. NOWHERE for a copy without a proof, None where no copy names
            one.
        look_back: The same while the journal is still to be read from there; None when it is known.
        carry_again_ms: Earliest time at which it is carried again.
        copied_ms: Append time of the newest copy, where that is not the start of immunity.
        park: The reason why it cannot be checked at all.
        poison: The raw bytes of a record that is no half.
        final_at: The op position of its COMMITTED: it is decided, and its owner publishes it; -1 without one.
        committed_ms: Time at which the op log took that COMMITTED, or at which it was read; 0 where that is not known.
        checked_at_ms: Time of its newest CHECKED by its writer's clock; 0 for none, and after a NUDGE.
        is_taken: Whether the store, which keeps resolutions unique, has said that it has a COMMITTED.
        order_key, first_position: Its order key, empty for none, and the position of its first record.
        held_at: The generation at which it was parked, if it holds its order key up; else -1.
        is_unproven: Whether it was read from a copy that has no proof, and represents a half that nothing else is known
            of; see `copy_proofs`.
    """

    forced: int = 0
    force: Op | None = None
    force_at: tuple[int, bytes] | None = None
    missing: tuple[int, ...] | None = None
    refusals: int = 0
    failures: int = 0
    outdone_count: int = 0
    copied_from: tuple[int, bytes] | None = None
    look_back: tuple[int, bytes] | None = None
    carry_again_ms: float = 0.0
    copied_ms: float | None = None
    park: tuple[ParkCode, str] | None = None
    poison: bytes | None = None
    is_unproven: bool = False
    final_at: int = -1
    committed_ms: float = 0.0
    is_taken: bool = False
    checked_at_ms: int = 0
    order_key: bytes = b""
    first_position: int = -1
    held_at: int = -1


NO_EXTRAS: Final = Extras()


class Terms(msgspec.Struct, frozen=True, gc=False):
    """The terms by which a half is judged; most halves of a group have the same, so they share one object.

    Attributes:
        fenced: The fence decides it alone.
        database: The identity of the fence's database. For a half that is not `fenced`: a row there decides it, and
            without a row the listener does.
        is_by_owner: The owner of its partition publishes it.
    """

    immunity_ms: float
    interval_ms: float
    check_max: int
    fenced: bool
    database: bytes = b""
    is_by_owner: bool = False

    @property
    def asks_fence(self) -> bool:
        """Whether the fence is asked, alone or before the listener."""
        return self.fenced or bool(self.database)

    @property
    def names_database(self) -> bool:
        """Whether the half names the database that decides it."""
        return bool(self.database.strip(b"\0"))


terms_of: Final = functools.lru_cache(maxsize=1_024)(Terms)
"""Returns the terms that all halves with these share."""


class Pending(msgspec.Struct, gc=False, kw_only=True):
    """One undecided half as the owner of its partition knows it. Times are milliseconds on the owner's timeline.

    A checker may hold very many, so that each byte counts.

    Attributes:
        position: The position of its newest copy in the half log.
        immune_until_ms: Earliest time of the first check.
        count: Answered checks of this generation.
        decision: COMMIT or ROLLBACK once known: journaled (DECIDED), or read from the fence; else 0.
        was_replayed: Stored before the owner's claim was back, so it may be older than any op still in the log.
        half: The decoded record while the half is in hand; None while it waits, as it is read again when due.
    """

    transaction_id: bytes
    position: int
    generation: int
    terms: Terms
    immune_until_ms: float = 0.0
    due_ms: float = 0.0
    count: int = 0
    decision: int = 0
    is_journaled: bool = False
    is_busy: bool = False
    is_closed: bool = False
    was_replayed: bool = False
    half: Half | None = None
    extras: Extras = NO_EXTRAS

    @property
    def next_generation(self) -> int:
        """The generation under which it continues: its own, unless a DISCARD holds that one's place."""
        return self.generation + self.extras.outdone_count

    def is_closed_by(self, discard: Op, position: int = POSITION_MAX) -> bool:
        """Return whether a DISCARD under the claim in force, at *position*, is about this generation, and in force."""
        later = discard.generation - self.generation
        is_meant = later == 0 or (later > 0 and not needs_copy(discard))
        is_decided = self.is_journaled or 0 <= self.extras.final_at <= position
        return is_meant and is_discard_in_force(discard, is_decided=is_decided)

    @property
    def is_committed(self) -> bool:
        """Whether its COMMITTED was read back as the first final op, here or by the writer of a copy (R17)."""
        return self.extras.final_at >= 0

    @property
    def is_settled(self) -> bool:
        """Whether the op log has its decision, so that no answer changes it any more."""
        return self.is_journaled or self.is_committed

    def commit(self, position: int, at_ms: float = 0.0) -> None:
        """Note its COMMITTED, and when the op log took it; an operator's request has no effect any more."""
        self.decision = OpKind.COMMIT
        self.note(final_at=position, committed_ms=at_ms, force=None, force_at=None)

    @property
    def unreleased_since_ms(self) -> float | None:
        """Time since which it waits for its release, for a half without that time its start; None if it does not."""
        return (self.extras.committed_ms or self.start_ms) if self.is_committed else None

    @property
    def is_held(self) -> bool:
        """Whether it is parked, and holds its order key up."""
        return self.extras.held_at >= 0

    def held(self) -> Pending:
        """Return it as one that is parked, and holds its order key up; it is never judged again."""
        extras = msgspec.structs.replace(
            self.extras,
            held_at=self.generation,
            outdone_count=0,
            force=None,
            force_at=None,
            look_back=None,
            park=None,
            carry_again_ms=0.0,
        )
        return msgspec.structs.replace(self, extras=extras, due_ms=NEVER_MS, is_closed=False, is_busy=False, half=None)

    @property
    def is_unreadable(self) -> bool:
        """Whether its record cannot be decoded: it can only be parked."""
        return self.extras.poison is not None

    @property
    def is_lost(self) -> bool:
        """Whether its record is gone."""
        return self.extras.park is not None and self.extras.park[0] is ParkCode.LOST

    @property
    def start_ms(self) -> float:
        """The start of immunity: the broker's append time of the first copy, or the time when it was first seen."""
        return self.immune_until_ms - self.terms.immunity_ms

    @property
    def copied_ms(self) -> float:
        """The append time of its newest copy, as far as it is known; retention counts from it."""
        copied_ms = self.extras.copied_ms
        return self.start_ms if copied_ms is None else copied_ms

    def note(self, **changes: Any) -> None:
        """Change fields of `extras`."""
        extras = self.extras
        for name, value in changes.items():
            if getattr(extras, name) != value:  # most notes change no value
                self.extras = msgspec.structs.replace(extras, **changes)
                return

    def set_terms(self, terms: Terms) -> None:
        """Let it be judged by *terms*; immunity began when it did."""
        start_ms = self.start_ms
        self.terms = terms
        self.immune_until_ms = start_ms + terms.immunity_ms

    def begin_by(self, start_ms: float) -> None:
        """Let immunity have begun at *start_ms*, if that is earlier."""
        if start_ms < self.start_ms:
            self.note(copied_ms=self.copied_ms)
            self.immune_until_ms = start_ms + self.terms.immunity_ms


POISON_TERMS: Final = terms_of(0.0, 1000.0, 1, fenced=False)
"""The terms of a half without messages."""


def unreadable(identity: bytes, position: int, generation: int, code: ParkCode, reason: str, body: bytes) -> Pending:
    """Return a half without messages, for which only parking is left: poison, a newer record, or one that is gone."""
    pending = Pending(transaction_id=identity, position=position, generation=generation, terms=POISON_TERMS)
    pending.note(poison=body, park=(code, reason))
    return pending


def needs_copy(discard: Op) -> bool:
    """Return whether a DISCARD is about a copy of its own generation, which was asked for too often.

    Every other reason to park holds for the earlier generations as well, and such a DISCARD may come without a copy.
    """
    return discard.reason == ParkCode.CHECKS_EXHAUSTED


def decide(pending: Pending, now_ms: float, *, must_carry: bool) -> Decision:
    """Return the next step for *pending* at *now_ms*, by the ops that were read.

    Immunity ends at its last millisecond exactly (RocketMQ #544 skipped that one) and uses up no check.
    """
    if pending.is_closed:
        return Decision.DONE
    is_outdone = pending.extras.outdone_count > 0 and pending.extras.park is None
    if (must_carry or is_outdone) and now_ms >= pending.extras.carry_again_ms:
        return Decision.CARRY
    if is_outdone:
        return Decision.WAIT
    if now_ms < pending.due_ms:
        return Decision.WAIT
    if pending.extras.park is not None:
        return Decision.PARK
    if pending.is_held:
        return Decision.HOLD
    if pending.is_committed:  # its producer has ended it
        return Decision.FINISH
    if now_ms < pending.immune_until_ms:
        return Decision.WAIT
    if pending.decision:
        return Decision.FINISH
    if pending.extras.force is not None:
        return Decision.FORCE
    if not pending.terms.fenced and pending.count >= pending.terms.check_max:
        return Decision.DISCARD
    return Decision.CHECK
