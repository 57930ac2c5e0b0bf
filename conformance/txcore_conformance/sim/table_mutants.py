"""The message table's rules, switched off one by one; see `mutants`."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Generator, Sequence
from typing import Any, Final

from txcore.message_table import TableRow, Taken
from txcore.outbox.relay_steps import RelayContext
from txcore.records import Outcome, Status
from txcore_conformance.sim.database import SimDatabase
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
