"""The message table's rules, switched off one by one; see `mutants`."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Generator, Sequence
from typing import Any, Final

from txcore.message_table import CancelState, TableRow, Taken
from txcore.outbox.relay_steps import RelayContext
from txcore.records import Outcome, Status
from txcore_conformance.sim.database import SimDatabase, SimFence
from txcore_conformance.sim.later import LaterRow, LaterRows, LaterState
from txcore_conformance.sim.table import SimRelayTable, SimTable

_take = SimRelayTable.take
_visible = SimRelayTable.visible
_cursors: Final[weakref.WeakKeyDictionary[SimTable, dict[int, int]]] = weakref.WeakKeyDictionary()


def fall_back_without_state_3(self: SimDatabase, identity: bytes, queued: list[tuple[TableRow, int]]) -> None:
    """Leave the row at state 1, so that the check also publishes a half that is stored late."""
    self.via_table.add(identity)
    self.table.commit(queued)


def skip_gaps(self: SimRelayTable, slots: Collection[int], resting: Collection[int]) -> list[TableRow]:
    """Continue after the last confirmed number: a row with a lower number that commits later is never read."""
    passed = _cursors.setdefault(self.table, {})
    for row in _visible(self, range(64), ()):
        passed.setdefault(row.slot, 0)
    return [row for row in _visible(self, slots, resting) if row.number > passed[row.slot]]


_settle = SimRelayTable.settle


def settle_up_to_a_cursor(self: SimRelayTable, taken: Taken, sent: Sequence[TableRow], refused: Any) -> Any:
    """Move the cursor to the last number that was sent."""
    yield from _settle(self, taken, sent, refused)
    passed = _cursors.setdefault(self.table, {})
    for row in sent:
        passed[row.slot] = max(passed.get(row.slot, 0), row.number)


def delete_before_publishing(
    self: SimRelayTable, group: str, resting: Collection[int], row_max: int
) -> Generator[Any, Any, Taken | None]:
    """Delete rows when a relay takes them: a relay that dies before it publishes them loses them."""
    taken = yield from _take(self, group, resting, row_max)
    for row in taken.rows if taken is not None else ():
        self.table.rows.pop((row.transaction_id, row.index), None)
    return taken


def go_on_behind_a_refusal(context: RelayContext, work: Any, row: TableRow, outcome: Outcome) -> bool:
    """Send the next message of a key although the one before is not confirmed."""
    del context
    if outcome.status is Status.DURABLE:
        work.sent.append(row)
    return True


# -- delays ------------------------------------------------------------------------------------------------------------

_turn_due = SimTable.turn_due
_due = LaterRows.due
_lock = LaterRows.lock


def turn_before_it_is_due(self: SimTable, now_ms: int, row_max: int) -> int:
    """Turn rows two seconds too early, as by a clock that is ahead."""
    return _turn_due(self, now_ms + 2_000, row_max)


def see_waiting_rows(self: SimRelayTable, slots: Collection[int], resting: Collection[int]) -> list[TableRow]:
    """Read waiting rows as if they were ordinary ones."""
    waiting = [each.row for each in self.table.later.rows.values() if each.state is LaterState.WAITS]
    return [*_visible(self, slots, resting), *(row for row in waiting if row.slot in slots)]


def turn_what_a_cancel_holds(self: LaterRows, now_ms: int) -> Sequence[LaterRow]:
    """Turn rows that an open transaction has locked, so that its cancel and the delivery both happen."""
    found = [each for each in self.rows.values() if each.state is LaterState.WAITS and each.row.due_ms <= now_ms]
    return sorted(found, key=lambda each: each.row.due_ms)


def cancel_what_is_left(self: LaterRows, transaction_id: bytes, holder: object) -> CancelState:
    """Cancel the rows that still wait, although another one of the transaction was due."""
    for each in self.of(transaction_id):
        each.holder = holder
    return CancelState.CANCELLED if self.waiting_of(transaction_id) else _lock(self, transaction_id, holder)


_cancel = SimFence.cancel


def cancel_at_once(self: SimFence, connection: Any, identity: bytes, group: str) -> Generator[Any, Any, CancelState]:
    """Cancel by itself, and not with the caller's transaction."""
    state = yield from _cancel(self, connection, identity, group)
    self._database.table.later.unlock(connection, is_committed=True)
    return state
