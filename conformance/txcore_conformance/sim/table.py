"""The twin of the message table and a relay's view of it: held slots, late commits, deaths of relays with rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txcore import wire
from txcore.errors import BackendUnavailableError
from txcore.message_table import Refused, TableRow, Taken, Turned
from txcore_conformance.sim.later import LaterRows, LaterState
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.world import World

if TYPE_CHECKING:  # it needs SQLAlchemy, which only some seeds use
    from txcore_conformance.sim.real import RealDatabase

SLOTS_MAX = 16
HOLD_S = 8.0


@dataclass(slots=True, eq=False)
class SimRow:
    """A message in the table.

    Attributes:
        begun: Its place in the order of insertion, which may be before or after that of its commit.
        committed: The place of its transaction's commit, on the same count.
    """

    row: TableRow
    begun: int
    committed: int
    tries: int = 0
    is_parked: bool = False


@dataclass(eq=False)
class SimTable:
    """The table itself; shared by all processes of one seed.

    Attributes:
        history: Every row that was ever committed, by transaction and index.
        takes: How often a relay took each row; each time but the first may publish it again.
        later: The delayed rows.
    """

    world: World
    clock: int = 0
    rows: dict[tuple[bytes, int], SimRow] = field(default_factory=dict)
    history: dict[tuple[bytes, int], SimRow] = field(default_factory=dict)
    takes: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    holders: dict[int, object] = field(default_factory=dict)
    real: RealDatabase | None = None
    later: LaterRows = field(default_factory=LaterRows)
    _bell: Future[None] | None = None

    def tick(self) -> int:
        """Return the next place in the order of the table's inserts and commits."""
        self.clock += 1
        return self.clock

    def bell(self) -> Future[None]:
        """Return a Future that the next commit of rows settles, for relays that would find no row before."""
        self._bell = self._bell or Future()
        return self._bell

    def commit(self, rows: Sequence[tuple[TableRow, int]]) -> None:
        """Make a transaction's rows visible."""
        committed = self.tick()
        for row, begun in rows:
            if row.due_ms:
                self.later.add(row)
            else:
                self._add(SimRow(row, begun, committed))
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.set_result(None)

    def _add(self, each: SimRow) -> None:
        key = (each.row.transaction_id, each.row.index)
        self.rows[key] = self.history[key] = each

    def turn_due(self, now_ms: int, row_max: int) -> int:
        """Turn delayed rows that are due into ordinary ones, at one moment; returns their number."""
        rows = self.later.due(now_ms)[:row_max]
        place = self.tick()
        for each in rows:
            each.state = LaterState.TURNED
            self._add(SimRow(each.row, place, place))
            self.world.note("delayed row turned")
        return len(rows)

    def lose(self, transaction_id: bytes) -> None:
        """Forget a transaction's rows: a crash has undone its commit."""
        for index in self.holds(transaction_id):
            self.rows.pop((transaction_id, index), None)
            self.later.rows.pop((transaction_id, index), None)

    def holds(self, transaction_id: bytes) -> frozenset[int]:
        """Return the indices of a transaction's messages that are still in the table, or wait to be due."""
        found = frozenset(index for identity, index in self.rows if identity == transaction_id)
        return found | self.later.waiting_of(transaction_id)

    def is_drained(self) -> bool:
        """Return whether no row is left to be sent, now or later."""
        return all(each.is_parked for each in self.rows.values()) and not self.later.is_waiting()

    def disorder(self, places: dict[tuple[bytes, int], int]) -> Iterator[str]:
        """Yield each message that was sent before one of its lane and topic that was committed before it began.

        Args:
            places: The place of the first copy of each message in its topic.
        """
        lanes: dict[tuple[int, str], list[tuple[SimRow, tuple[bytes, int]]]] = {}
        for key, each in self.history.items():
            topic = wire.decode_message(each.row.body).topic
            lanes.setdefault((each.row.lane, topic), []).append((each, key))
        for members in lanes.values():
            for first, first_key in members:
                for second, second_key in members:
                    is_ordered = first.committed < second.begun and not first.is_parked
                    if is_ordered and places.get(first_key, -1) > places.get(second_key, 1 << 62):
                        yield f"{wire.target_id(*second_key)} was sent before {wire.target_id(*first_key)}"


class SimRelayTable:
    """The table as one relay's process sees it; implements `MessageTable` with generators for calls that take time."""

    def __init__(self, table: SimTable, process: Process) -> None:
        self.table = table
        self._process = process
        self._first = 0

    def take(self, group: str, resting: Collection[int], row_max: int) -> Generator[Any, Any, Taken | None]:  # noqa: ARG002
        """See `MessageTable.take`."""
        table = self.table
        yield 0.002
        self._maybe_fail()
        busy = {each.row.slot for each in table.rows.values() if not each.is_parked}
        free = sorted(busy - set(table.holders), key=lambda slot: (slot < self._first, slot))[:SLOTS_MAX]
        if not free:
            return None
        self._first = free[-1] + 1
        hold = object()
        table.holders.update(dict.fromkeys(free, hold))
        self._process.on_death.append(lambda: table.world.at(table.world.rng.random(), lambda: self._let_go(hold)))
        table.world.at(HOLD_S, lambda: self._let_go(hold))
        self._compare(free)
        rows = self.visible(free, resting)[:row_max]
        if not rows:  # all lanes of these slots rest
            self._let_go(hold)
            return None
        for row in rows:
            table.takes[row.transaction_id, row.index] += 1
            if table.takes[row.transaction_id, row.index] > 1:
                table.world.causes[row.transaction_id] += 1
                table.world.note("row taken again")
        return Taken(free, rows, hold)

    def turn_due(self, group: str, row_max: int) -> Generator[Any, Any, Turned]:  # noqa: ARG002
        """See `MessageTable.turn_due`; the answer may be lost, whether or not rows were turned."""
        table = self.table
        yield 0.002
        self._maybe_fail()
        now_ms = table.world.now_ms()
        count = table.turn_due(now_ms, row_max)
        self._maybe_fail()
        next_ms = table.later.next_due_ms()
        return Turned(count, None if next_ms is None else max(next_ms - now_ms, 0) / 1000)

    def visible(self, slots: Collection[int], resting: Collection[int]) -> list[TableRow]:
        """Return the rows of *slots* that a relay may see, oldest first."""
        found = [
            each
            for each in self.table.rows.values()
            if each.row.slot in slots and not each.is_parked and each.row.lane not in resting
        ]
        return [
            TableRow(each.row.transaction_id, each.row.index, each.row.lane, each.row.body, each.tries, each.begun)
            for each in sorted(found, key=lambda each: each.begun)
        ]

    def _compare(self, slots: Collection[int]) -> None:
        table = self.table
        if table.real is None:
            return
        mine = {
            (*key, each.row.lane, each.tries)
            for key, each in table.rows.items()
            if each.row.slot in slots and not each.is_parked
        }
        table.world.note("real table read")
        if mine != table.real.page(slots):
            table.world.break_rule("S8 the real message table holds other rows than its twin")

    def settle(self, taken: Taken, sent: Sequence[TableRow], refused: Sequence[Refused]) -> Generator[Any, Any, None]:
        """See `MessageTable.settle`."""
        table = self.table
        yield 0.002
        if not any(holder is taken.hold for holder in table.holders.values()):
            raise BackendUnavailableError("the database has ended the transaction of a frozen relay")
        try:
            self._maybe_fail()
            if table.real is not None:
                table.real.settle(
                    sent, [each for each in refused if (each.row.transaction_id, each.row.index) in table.rows]
                )
            for row in sent:
                table.rows.pop((row.transaction_id, row.index), None)
            for each in refused:
                known = table.rows.get((each.row.transaction_id, each.row.index))
                if known is not None:
                    known.tries += 1
                    known.is_parked = each.is_parked
                    table.world.note("row parked" if each.is_parked else "row refused")
        finally:
            self._let_go(taken.hold)

    def drop(self, taken: Taken) -> None:
        """See `MessageTable.drop`."""
        self._let_go(taken.hold)

    def _let_go(self, hold: object) -> None:
        holders = self.table.holders
        for slot in [slot for slot, holder in holders.items() if holder is hold]:
            del holders[slot]

    def _maybe_fail(self) -> None:
        world = self.table.world
        if world.chance(world.swarm.database):
            world.note("table no answer")
            raise BackendUnavailableError("connection lost")
