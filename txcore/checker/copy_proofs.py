"""Copies and their proofs: a copy counts only if the op log has the TICK whose id is made of it (R8).

Otherwise a program that may append to the half log alone could exchange the messages of a pending half, or drop them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from txcore import wire
from txcore.errors import TxcoreError
from txcore.history.copies import FETCH_COUNT_MAX, copies_in, is_proven, places_of
from txcore.records import Half, LogRecord, Op, OpKind, Outcome, Position, Status
from txcore.runtime.commands import Flow

if TYPE_CHECKING:  # its reader has the proofs
    from txcore.checker.tenure import Tenure

UNPROVEN_REASON: Final = (
    "the op log has no proof of this copy, and no other record of the half is known: the proof was lost, or the copy "
    "is forged; compare it with the database before you resume it"
)


OWN_MAX: Final = 10_000
"""Number of proofs of our own that are remembered until their copies are read; the proofs of others are fetched."""

Fetch = Callable[[Sequence[Position]], Future[Mapping[Position, LogRecord]]]


class CopyProofs:
    """The proofs that one owner reads, and those that it writes.

    Args:
        fetch: Reads single records of the op log, see `Reader.fetch`.
    """

    def __init__(self, tenure: Tenure, fetch: Fetch) -> None:
        self._tenure = tenure
        self._fetch_ops = fetch
        self._count_max = FETCH_COUNT_MAX
        self._found: dict[Position, LogRecord] = {}
        self._known: set[int] = set()  #: the places whose records were fetched, or are not there
        self._asked: tuple[list[Position], Future[Mapping[Position, LogRecord]]] | None = None
        self._own: dict[int, bytes] = {}  #: proofs of our own that were read, by place, until their copies are read
        self._awaited: dict[bytes, int] = {}  #: ticks of our own: where they were read, -1 before that

    # -- reading -------------------------------------------------------------------------------------------------------

    def is_proven(self, copy: Half, coming: Iterable[LogRecord]) -> bool | None:
        """Return whether the op log proves *copy*; None until its op was fetched: ask again.

        Args:
            coming: The records after it, whose proofs are fetched together with its own.
        """
        if copy.proved_at < 0:
            return False
        if copy.proved_at in self._own and self._own[copy.proved_at] == wire.proof_of(copy):
            del self._own[copy.proved_at]
            return True
        if copy.proved_at not in self._known:
            self._fetch(copy, coming)
        return is_proven(copy, self._found) if copy.proved_at in self._known else None

    def forget(self) -> None:
        """Forget what was fetched: all copies among the records in hand were judged."""
        self._found.clear()
        self._known.clear()

    def _fetch(self, copy: Half, coming: Iterable[LogRecord]) -> None:
        try:
            if self._asked is None:
                others = islice(copies_in(coming), self._count_max)
                places = places_of([copy, *others])
                self._asked = places, self._fetch_ops(places)
            places, answer = self._asked
            if not answer.done():
                return
            self._asked = None
            self._found.update(answer.result())
        except TxcoreError as error:
            self._asked = None
            self._count_max //= 2  # so many may have taken too long
            self._tenure.failed(error)
            return
        self._count_max = min(2 * self._count_max + 1, FETCH_COUNT_MAX)
        self._known.update(places)

    # -- writing -------------------------------------------------------------------------------------------------------

    def prove(self, copy: Half) -> Flow[Half | None]:
        """Write the proof of *copy*; returns the copy with its place, or None where that did not come back in time.

        Raises:
            TxcoreError: it could not be written.
        """
        tenure, proof = self._tenure, wire.proof_of(copy)
        context = tenure.context
        deadline_s = context.clock.elapsed_s() + context.limits.mark_timeout_s
        op = Op(OpKind.TICK, proof, 0, context.by, context.clock.wall_ms(), tenure.token)
        self._awaited[proof] = -1
        try:
            outcome: Outcome = yield context.backend.mark(context.group, tenure.partition, op, context.claim)
            if outcome.status is Status.FENCED:
                tenure.stand_down("fenced")
            while tenure.may_write and self._awaited[proof] < 0 and context.clock.elapsed_s() < deadline_s:
                yield context.limits.poll_s
            place = self._awaited[proof]
        finally:
            self._awaited.pop(proof, None)
        return msgspec.structs.replace(copy, proved_at=place) if place >= 0 else None

    def took_tick(self, op: Op, position: Position) -> None:
        """Note a TICK that was read; a proof of our own is not read a second time when its copy is read."""
        if op.transaction_id in self._awaited:
            self._awaited[op.transaction_id] = position
            self._own[position] = op.transaction_id
            if len(self._own) > OWN_MAX:  # their copies were not stored
                del self._own[next(iter(self._own))]


def plain_of(copy: Half) -> Half:
    """Return a copy without a proof as a half of its generation that says nothing of its own past."""
    changes = {"first_appended_ms": 0, "age_ms": 0, "count": 0, "folded_to": -1, "decided": 0, "forced": 0}
    changes |= {"proved_at": -1, "final_at": -1, "first_position": -1, "held_at": -1}
    return msgspec.structs.replace(copy, token=b"", missing=[], **changes)
