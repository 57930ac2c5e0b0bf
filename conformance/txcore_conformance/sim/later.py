"""The twin of the delayed rows: they wait, are turned by a relay, or are cancelled by a transaction that commits."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from txcore.message_table import CancelState, TableRow


class LaterState(enum.Enum):
    """The state of a delayed row."""

    WAITS = "waits"
    TURNED = "turned"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class LaterRow:
    """A delayed row; `holder` is the open transaction that has locked it."""

    row: TableRow
    state: LaterState = LaterState.WAITS
    holder: object | None = None


@dataclass(slots=True)
class LaterRows:
    """All delayed rows of one seed, by transaction and index; turned and cancelled ones stay as records."""

    rows: dict[tuple[bytes, int], LaterRow] = field(default_factory=dict)

    def add(self, row: TableRow) -> None:
        """Add a row that waits."""
        self.rows[row.transaction_id, row.index] = LaterRow(row)

    def of(self, transaction_id: bytes) -> Sequence[LaterRow]:
        """Return the rows of a transaction."""
        return [each for (identity, _), each in self.rows.items() if identity == transaction_id]

    def waiting_of(self, transaction_id: bytes) -> frozenset[int]:
        """Return the indices of a transaction's rows that wait."""
        return frozenset(each.row.index for each in self.of(transaction_id) if each.state is LaterState.WAITS)

    def is_waiting(self) -> bool:
        """Return whether any row waits."""
        return any(each.state is LaterState.WAITS for each in self.rows.values())

    def due(self, now_ms: int) -> Sequence[LaterRow]:
        """Return the rows that may be turned now, the earliest first: due, and held by no open transaction."""
        found = [
            each
            for each in self.rows.values()
            if each.state is LaterState.WAITS and each.row.due_ms <= now_ms and each.holder is None
        ]
        return sorted(found, key=lambda each: each.row.due_ms)

    def next_due_ms(self) -> int | None:
        """Return the time at which the next row is due; None when no row waits."""
        return min((each.row.due_ms for each in self.rows.values() if each.state is LaterState.WAITS), default=None)

    def lock(self, transaction_id: bytes, holder: object) -> CancelState:
        """Lock the rows of a transaction that may be cancelled, for *holder*; returns what its commit will do.

        NOT_FOUND if it has no delayed rows.
        """
        rows = self.of(transaction_id)
        if not rows:
            return CancelState.NOT_FOUND
        if any(each.state is LaterState.TURNED for each in rows):
            return CancelState.TOO_LATE
        for each in rows:
            each.holder = holder
        return CancelState.CANCELLED

    def is_held(self, transaction_id: bytes, holder: object) -> bool:
        """Return whether an open transaction other than *holder* has locked a row of the transaction."""
        return any(each.holder not in (None, holder) for each in self.of(transaction_id))

    def unlock(self, holder: object, *, is_committed: bool) -> None:
        """End the locks of *holder*, and cancel what it has locked if it committed."""
        for each in self.rows.values():
            if each.holder is holder:
                each.holder = None
                if is_committed and each.state is LaterState.WAITS:
                    each.state = LaterState.CANCELLED
