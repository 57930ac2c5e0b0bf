"""Halves that the half log no longer holds although they are undecided: each is parked as LOST, never forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.checker.checkpoint import NoteEntry
from txcore.checker.decide import Pending, unreadable
from txcore.checker.tenure import Tenure
from txcore.errors import DataLossError
from txcore.records import LogKind, ParkCode, Position
from txcore.runtime.commands import Flow

STRAY: Final = (
    "COMMITTED, and gone from the half log before its owner had released it; the database has the row of what is to be "
    "sent"
)
UNREAD: Final = "undecided at the last checkpoint, and gone from the half log since; the database knows its outcome"
READ: Final = "undecided, and gone from the half log since it was read; the database knows its outcome"


class LostHalves:
    """The halves of one tenure that are gone, or may be.

    Attributes:
        missing: The halves that the checkpoint names and that were not read yet, once the half log lost its beginning.
    """

    def __init__(self, tenure: Tenure, noted: Sequence[NoteEntry]) -> None:
        self.missing: dict[bytes, NoteEntry] = {}
        self._tenure = tenure
        self._lost: list[Pending] = []  #: to be parked as LOST
        self._log_begins = 0  #: where the half log began when that was seen last
        self._is_probing = False
        self._noted = noted

    def lose_beginning(self, first: int | None) -> None:
        """Note that the half log now begins at *first*: halves that the checkpoint names may be gone."""
        self._log_begins = max(self._log_begins, first or 0)
        self.missing.update((entry.transaction_id, entry) for entry in self._noted if not entry.is_held)
        self._noted = ()

    def found(self, identity: bytes, generation: int) -> None:
        """Note that a half was read; a copy of the same or a later generation is enough."""
        entry = self.missing.get(identity)
        if entry is not None and entry.generation <= generation:
            del self.missing[identity]

    def park_missing(self) -> None:
        """Have the missing halves parked, as the half log was read to its end.

        An end in the op log closes such a half as any other.
        """
        state = self._tenure.state
        position = Position(state.half_read or 0)
        for entry in self.missing.values():
            pending = unreadable(entry.transaction_id, position, entry.generation, ParkCode.LOST, UNREAD, b"")
            pending.count = entry.count
            self._lost.append(pending)
            state.read_half(position, pending)
        self.missing.clear()

    def park_strays(self) -> None:
        """Have each half parked that has a COMMITTED in the op log and is gone from a half log that lost its beginning.

        Any other one had ended, or was parked, before a checkpoint passed it.
        """
        state = self._tenure.state
        strays, state.strays = state.strays, []
        at = Position(state.half_read or 0)
        for identity, generation, position in strays if self._log_begins else ():
            pending = unreadable(identity, at, generation, ParkCode.LOST, STRAY, b"")
            pending.commit(position, state.op_ms)
            self._lost.append(pending)
            state.read_half(at, pending)

    def look_for(self, pending: Pending) -> Flow[None]:
        """Have a half parked whose record is gone, if the half log begins after it."""
        if pending.position >= self._log_begins and not self._is_probing:
            yield from self._probe(pending.position)
        if pending.position >= self._log_begins:
            return
        if not self._tenure.state.lose_held(pending):  # a held one is parked already, with its bytes
            pending.note(poison=b"", park=(ParkCode.LOST, READ))
            self._lost.append(pending)

    def _probe(self, position: int) -> Flow[None]:
        """Read at a position, to learn where the half log begins; it may not answer in time."""
        clock, limits = self._tenure.context.clock, self._tenure.context.limits
        deadline_s = clock.elapsed_s() + limits.mark_timeout_s
        reader, self._is_probing = self._tenure.reader(LogKind.HALF, Position(position)), True
        try:
            while clock.elapsed_s() < deadline_s and not reader.read(1) and reader.passed <= position:
                yield limits.poll_s
        except DataLossError as loss:
            self._log_begins = position + 1 if loss.first is None else loss.first
        finally:
            self._is_probing = False
            reader.close()

    def holds_checkpoint(self) -> bool:
        """Return whether a checkpoint would hide one: it has no place in the log, so its entry must be stored first."""
        self._lost = [pending for pending in self._lost if not pending.is_closed]
        return bool(self.missing or self._lost)
