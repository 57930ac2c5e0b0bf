"""The check: write tombstones on a connection of the fence's own, and read the winners.

One transaction for many ids. When a lock of one of them is not free, the ids are checked one by one, so that
one open producer holds up no answer but its own. Every failure is NO_ANSWER with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txcore.errors import TxcoreError
from txcore.fence import FenceAnswer, FenceReading
from txcore.sqlfence import identity, messages
from txcore.sqlfence.border import Border
from txcore.sqlfence.dialects import ROWS_MAX, Dialect, Rows
from txcore.sqlfence.failures import Cause, Failure, failure_of
from txcore.sqlfence.schema import COMMITTED, FORCED, TOMBSTONE, VIA_TABLE, Meta

Readings = dict[bytes, FenceReading]

ANSWERS: Final = {
    COMMITTED: FenceAnswer.COMMIT,
    TOMBSTONE: FenceAnswer.ROLLBACK,
    VIA_TABLE: FenceAnswer.VIA_TABLE,
    FORCED: FenceAnswer.FORCED,
}
_SENT: Final = FenceReading(FenceAnswer.SENT)
_PRUNED: Final = FenceReading(FenceAnswer.PRUNED, "no row, and the id lies below the prune horizon")
_SINGLE_WAIT_PART: Final = 4  # one by one, each id waits this part of the lock timeout


@dataclass(frozen=True, slots=True)
class Check:
    """One call of `SqlFence.check` on one connection.

    Attributes:
        attempts_max: Most tries of one transaction that the database aborts (deadlock, serialization).
        deadline_s: Time after which no further id is tried by itself, as `elapsed_s` counts.
        databases: The identities that the ids' halves carry; ids of another database are not checked.
    """

    dialect: Dialect
    group: str
    lock_timeout_s: float
    deadline_s: float
    attempts_max: int
    elapsed_s: Callable[[], float]
    secret: str | None
    databases: Mapping[bytes, bytes]

    def run(self, border: Border, ids: Sequence[bytes]) -> Readings:
        """Return a reading for each of *ids*, which ascend and are distinct."""
        readings: Readings = {}
        for start in range(0, len(ids), ROWS_MAX):
            chunk = ids[start : start + ROWS_MAX]
            found = self._attempt(border, chunk, self.lock_timeout_s)
            if isinstance(found, Failure) and self._is_worth_splitting(found, chunk):
                found = self._one_by_one(border, chunk)
            readings |= no_answers(chunk, str(found)) if isinstance(found, Failure) else found
            if isinstance(found, Failure) and found.cause is Cause.LOST:
                return readings | no_answers(ids[start + ROWS_MAX :], str(found))
        return readings

    def _is_worth_splitting(self, failure: Failure, ids: Sequence[bytes]) -> bool:
        return failure.cause in {Cause.LOCKED, Cause.COLLISION} and len(ids) > 1 and not self.dialect.locks_whole_file

    def _one_by_one(self, border: Border, ids: Sequence[bytes]) -> Readings:
        readings: Readings = {}
        for index, transaction_id in enumerate(ids):
            if self.elapsed_s() > self.deadline_s:
                return readings | no_answers(ids[index:], "not reached in time: earlier ids were locked")
            found = self._attempt(border, [transaction_id], self.lock_timeout_s / _SINGLE_WAIT_PART)
            if isinstance(found, Failure) and found.cause is Cause.LOST:
                return readings | no_answers(ids[index:], str(found))
            readings |= no_answers([transaction_id], str(found)) if isinstance(found, Failure) else found
        return readings

    def _attempt(self, border: Border, ids: Sequence[bytes], lock_timeout_s: float) -> Readings | Failure:
        """Try one transaction; retry while the database aborts it, a bounded number of times."""
        failure = Failure(Cause.COLLISION, "", "")
        for _ in range(self.attempts_max):
            try:
                with self.dialect.work(border, lock_timeout_s if self.dialect.check_waits else 0):
                    readings = self._transact(border, ids)
                    border.commit()
            except TxcoreError as error:
                return Failure(Cause.OTHER, "", str(error))
            except Exception as error:  # noqa: BLE001 - no failure of the database's may pass as an answer
                failure = failure_of(error, self.secret)
            else:
                return readings
            if failure.cause is not Cause.COLLISION:
                break
        return failure

    def _transact(self, border: Border, ids: Sequence[bytes]) -> Readings:
        meta = self.dialect.meta(border, locked=True)
        readings = self._foreign(border, ids, meta)
        ids = [item for item in ids if item not in readings]
        below = [item for item in ids if item < meta.pruned_below]
        above = [item for item in ids if item >= meta.pruned_below]
        rows: Rows = {}
        if below:
            rows |= self.dialect.touch(border, below)
        if above:
            rows |= self.dialect.leave_tombstones(border, above, self.group)
        readings |= {item: reading_of(rows, item, self.group) for item in ids}
        via_table = [item for item, reading in readings.items() if reading.answer is FenceAnswer.VIA_TABLE]
        if via_table:
            waiting = messages.waiting(self.dialect, border, via_table)
            readings |= {item: _SENT for item in via_table if item not in waiting}
        for item in below:
            if item not in rows:
                readings[item] = _PRUNED
        return readings

    def _foreign(self, border: Border, ids: Sequence[bytes], meta: Meta) -> Readings:
        """Return no answer for the ids that another database decides, before anything is written."""
        asked = [item for item in ids if self.databases.get(item)]
        if not asked:
            return {}
        database = identity.look_anew(self.dialect, border, meta)
        return {
            item: FenceReading(
                FenceAnswer.NO_ANSWER, identity.wrong_database_text(database, self.databases[item]), is_foreign=True
            )
            for item in asked
            if not database.decides(self.databases[item])
        }


def reading_of(rows: Rows, transaction_id: bytes, group: str | None) -> FenceReading:
    """Return the reading of a row; a missing row after a tombstone was written is no answer (a stale snapshot)."""
    row = rows.get(transaction_id)
    if row is None:
        return FenceReading(FenceAnswer.NO_ANSWER, "the row that was just written is not visible")
    if group is not None and row.group != group:
        return FenceReading(FenceAnswer.NO_ANSWER, f"the id belongs to group {row.group!r}, not {group!r}")
    return reading_of_state(row.state)


def reading_of_state(state: int) -> FenceReading:
    """Return the reading of a row's state."""
    answer = ANSWERS.get(state)
    if answer is None:
        return FenceReading(FenceAnswer.NO_ANSWER, f"state {state} is unknown to this txcore")
    return FenceReading(answer)


def no_answers(ids: Sequence[bytes], reason: str) -> Readings:
    """Return NO_ANSWER with one reason for all of *ids*."""
    return dict.fromkeys(ids, FenceReading(FenceAnswer.NO_ANSWER, reason))
