"""Histories of single transactions, correct and with each kind of fault, which a self-test writes to a broker.

A history is a list of records in the order in which they must be written, and the verdicts that the audit must give.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from txcore import wire
from txcore.audit.verdicts import Verdict
from txcore.digest import digest_of
from txcore.ids import partition_of
from txcore.records import Forced, Half, Op, OpKind, ParkCode, Parked, TargetMessage

BY: Final = "selftest"
INTERVAL_MS: Final = 30_000
CHECK_MAX: Final = 15
_TOMBSTONE: Final = 2


def identity_of(born_ms: int, number: int) -> bytes:
    """Return the id of the transaction of this number, born at this time."""
    return (born_ms << 80 | 7 << 76 | 0b10 << 62 | number).to_bytes(16, "big")


class Forgery(enum.Enum):
    """A record that nothing in the protocol writes; the value is the verdict that names it."""

    OTHER_GROUP = Verdict.CORRUPT, "a target with the header of another group of the configuration"
    FORCED_BY_NOTHING = Verdict.MISDECIDED, "a fence row that was changed to forced, without an operator's request"
    UNFENCED = Verdict.MISDECIDED, "a whole transaction without a fence, in a group that only the fence decides"
    REPLACED = Verdict.CORRUPT, "a body that was altered in half and target alike, against the row's digest"
    REORDERED = Verdict.CORRUPT, "messages that changed places in half and targets alike, against the row's digest"
    MISSENT = Verdict.CORRUPT, "a message that came by the message table, and is not the one of the row's digest"

    @property
    def verdict(self) -> Verdict:
        """The verdict that the audit must give."""
        return self.value[0]


Fault: TypeAlias = Verdict | Forgery


class Phase(enum.IntEnum):
    """Time at which a record is written: most records at once, a late decision only when the run ends."""

    NOW = 0
    LATE = 1


@dataclass(frozen=True, slots=True)
class Written:
    """One record of a history.

    Attributes:
        log: half, op, parked, target, or row for the fence table.
        body: The record; for a row, its state in one byte and its digest, if it has one.
        topic, key, headers: Parts of a target.
    """

    log: str
    body: bytes
    topic: str = ""
    key: bytes | None = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict)
    phase: Phase = Phase.NOW


@dataclass(slots=True)
class History:
    """Records of one transaction, and the verdicts that the audit must give."""

    transaction_id: bytes
    partition: int
    records: list[Written] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)


class Maker:
    """Makes the histories of one group.

    Args:
        topics: Targets; a history with several messages uses them in turn.
        key_as_header: The broker's records have no key.
        other_group: Another group of the configuration, for forged targets.
        late_ms: Age, in milliseconds, of a late transaction's id on a broker that reports no times.
    """

    def __init__(
        self,
        group: str,
        partition_count: int,
        topics: list[str],
        *,
        key_as_header: bool,
        late_ms: int = 0,
        other_group: str = "",
    ) -> None:
        self._group = group
        self._partition_count = partition_count
        self._topics = topics
        self._key_as_header = key_as_header
        self._late_ms = late_ms
        self.other_group = other_group

    def make(self, identity: bytes, born_ms: int, kind: Fault | None = None, size: int = 1) -> History:
        """Return the history of one transaction; *kind* is None for a transaction without faults."""
        history = History(identity, partition_of(identity, self._partition_count))
        draft = _Draft(self, history, born_ms, size)
        if kind is None:
            draft.half().row(1).targets().op(OpKind.COMMIT)
        else:
            (RECIPES[kind] if isinstance(kind, Verdict) else FORGERIES[kind])(draft)
            history.expected = {kind.name if isinstance(kind, Verdict) else kind.verdict.name}
        return history

    def half(self, identity: bytes, born_ms: int, size: int, *, fenced: bool, patience_ms: int) -> Half:
        """Return the half of a transaction."""
        messages = [
            TargetMessage(self._topics[n % len(self._topics)], b"k%d" % (born_ms % 97), b"body %d" % n, {"n": str(n)})
            for n in range(size)
        ]
        interval_ms, check_max = (patience_ms, 1) if patience_ms else (INTERVAL_MS, CHECK_MAX)
        return Half(
            wire.VERSION, identity, self._group, partition_of(identity, self._partition_count), 0, born_ms, 0,
            interval_ms, check_max, fenced, BY, messages,
        )  # fmt: skip

    def target(self, half: Half, index: int, body: bytes | None = None) -> Written:
        """Return one target as a producer would publish it."""
        message = half.messages[index]
        headers = wire.target_headers(
            self._group, half.transaction_id, index, message, BY, key_as_header=self._key_as_header
        )
        key = None if self._key_as_header else message.key
        return Written("target", message.body if body is None else body, message.topic, key, headers)

    @property
    def late_ms(self) -> int:
        """Age, in milliseconds, of a late transaction's id."""
        return self._late_ms


class _Draft:
    """Adds the records of one history."""

    def __init__(self, maker: Maker, history: History, born_ms: int, size: int) -> None:
        self._maker = maker
        self._history = history
        self._identity = history.transaction_id
        self._born_ms = born_ms
        self._half = maker.half(self._identity, born_ms, size, fenced=True, patience_ms=0)

    @property
    def other_group(self) -> str:
        return self._maker.other_group

    def half(self, *, fenced: bool = True, patience_ms: int = 0, is_late: bool = False) -> _Draft:
        born_ms, messages = self._born_ms - (self._maker.late_ms if is_late else 0), self._half.messages
        self._half = self._maker.half(self._identity, born_ms, 0, fenced=fenced, patience_ms=patience_ms)
        self._half.messages = messages
        return self._add(Written("half", wire.encode_half(self._half)))

    def row(self, state: int) -> _Draft:
        return self._add(Written("row", bytes([state]) + (b"" if state == _TOMBSTONE else self._digest())))

    def _digest(self) -> bytes:
        return digest_of(self._half.messages)

    def replaced(self) -> _Draft:
        """Let the first message be another one from here on."""
        self._half.messages[0].body = b"another"
        return self

    def reordered(self) -> _Draft:
        """Let the messages change places from here on."""
        self._half.messages.reverse()
        return self

    def several(self) -> _Draft:
        """Let there be two messages at least."""
        size = max(len(self._half.messages), 2)
        self._half = self._maker.half(self._identity, self._born_ms, size, fenced=True, patience_ms=0)
        return self

    def targets(
        self, *, twice: bool = False, body: bytes | None = None, phase: Phase = Phase.NOW, group: str = ""
    ) -> _Draft:
        for index in range(len(self._half.messages)):
            made = self._maker.target(self._half, index, body)
            headers = dict(made.headers) | ({wire.HEADER_GROUP: group} if group else {})
            for _ in range(2 if twice else 1):
                self._add(Written(made.log, made.body, made.topic, made.key, headers, phase))
        return self

    def op(
        self, kind: OpKind, *, phase: Phase = Phase.NOW, forced: Forced = Forced.NO, reason: str = "", decision: int = 0
    ) -> _Draft:
        op = Op(kind, self._identity, 0, BY, self._born_ms, decision=decision, forced=forced, reason=reason)
        return self._add(Written("op", wire.encode_ops([op]), phase=phase))

    def parked(self, code: ParkCode, missing: list[int]) -> _Draft:
        record = Parked(
            wire.VERSION, self._identity, 0, code, "for the self-test", CHECK_MAX, BY, self._born_ms, b"",
            wire.encode_half(self._half), missing,
        )  # fmt: skip
        return self._add(Written("parked", wire.encode_parked(record)))

    def _add(self, written: Written) -> _Draft:
        self._history.records.append(written)
        return self


def _undeliverable(draft: _Draft) -> None:
    draft.half().row(1).op(OpKind.DECIDED, decision=OpKind.COMMIT)
    draft.parked(ParkCode.UNDELIVERABLE, [0]).op(OpKind.DISCARD, reason=ParkCode.UNDELIVERABLE)


def _discarded(draft: _Draft) -> None:
    draft.half(fenced=False).parked(ParkCode.CHECKS_EXHAUSTED, [])
    draft.op(OpKind.DISCARD, reason=ParkCode.CHECKS_EXHAUSTED)


def _forced(draft: _Draft) -> None:
    draft.half().row(4).op(OpKind.FORCE, decision=OpKind.COMMIT, forced=Forced.OVERRIDE, reason="for the self-test")
    draft.targets().op(OpKind.COMMIT, forced=Forced.OVERRIDE)


RECIPES: Final[Mapping[Verdict, Callable[[_Draft], object]]] = {
    Verdict.CONFLICT: lambda d: d.half().row(1).targets().op(OpKind.COMMIT).op(OpKind.ROLLBACK),
    Verdict.CONFLICT_REFUSED: lambda d: d.half().row(2).op(OpKind.ROLLBACK).op(OpKind.COMMIT),
    Verdict.LOST: lambda d: d.half().row(1).op(OpKind.COMMIT),
    Verdict.LEAK: lambda d: d.half().row(2).targets().op(OpKind.ROLLBACK),
    Verdict.PHANTOM: lambda d: d.targets().op(OpKind.COMMIT),
    Verdict.MISDECIDED: lambda d: d.half().row(1).op(OpKind.ROLLBACK),
    Verdict.CORRUPT: lambda d: d.half().row(1).targets(body=b"another").op(OpKind.COMMIT),
    Verdict.DUP_TARGET: lambda d: d.half().row(1).targets(twice=True).op(OpKind.COMMIT),
    Verdict.DUP_OP: lambda d: d.half().row(1).targets().op(OpKind.COMMIT).op(OpKind.COMMIT),
    Verdict.STUCK: lambda d: d.half(fenced=False, patience_ms=1),
    Verdict.DISCARDED: _discarded,
    Verdict.UNDELIVERABLE: _undeliverable,
    Verdict.FORCED: _forced,
    Verdict.LATE_CHECK: lambda d: (
        d.half(is_late=True).row(1).targets(phase=Phase.LATE).op(OpKind.COMMIT, phase=Phase.LATE)
    ),
}
"""One history per verdict on a transaction."""
FORGERIES: Final[Mapping[Forgery, Callable[[_Draft], object]]] = {
    Forgery.OTHER_GROUP: lambda d: d.half().row(1).targets(group=d.other_group).op(OpKind.COMMIT),
    Forgery.FORCED_BY_NOTHING: lambda d: d.half().row(4).targets().op(OpKind.COMMIT),
    Forgery.UNFENCED: lambda d: d.half(fenced=False).targets().op(OpKind.COMMIT),
    Forgery.REPLACED: lambda d: d.row(1).replaced().half().targets().op(OpKind.COMMIT),
    Forgery.REORDERED: lambda d: d.several().row(1).reordered().half().targets().op(OpKind.COMMIT),
    Forgery.MISSENT: lambda d: d.row(3).replaced().targets(),
}
"""One history per forgery."""
