"""The twin of the fence and of the user's database: one table of fence rows, open transactions, crashes.

It answers as the SQL fence does: a check never waits (an open producer is NO_ANSWER), a tombstone beats a late
producer, the horizon refuses inserts and forbids tombstones. A commit without `durable` is a ghost until the next
sync: a database crash undoes it although readers saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txcore.errors import FencedError, FenceMisuseError, InMessageTableError
from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import known_id
from txcore.message_table import CancelState, TableRow
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.table import SimTable
from txcore_conformance.sim.world import World

if TYPE_CHECKING:  # it needs SQLAlchemy, which only some seeds use
    from txcore_conformance.sim.real import RealDatabase

STATES = {1: FenceAnswer.COMMIT, 2: FenceAnswer.ROLLBACK, 3: FenceAnswer.VIA_TABLE, 4: FenceAnswer.FORCED}


class SimDatabaseError(Exception):
    """The database failed; after a failure at COMMIT it is unknown whether the transaction committed."""


@dataclass(slots=True, eq=False)
class SimConnection:
    """A connection with at most one open transaction."""

    process: Process
    transaction_id: bytes = b""
    is_open: bool = False
    is_durable: bool = False
    has_business: bool = False
    digest: bytes = b""
    queued: list[tuple[TableRow, int]] | None = None
    cancels: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class SimDatabase:
    """Shared by all processes of one seed."""

    world: World
    enforces_durable: bool = True
    rows: dict[bytes, int] = field(default_factory=dict)
    digests: dict[bytes, bytes] = field(default_factory=dict)  #: of the messages of each row that was ever committed
    committed: set[bytes] = field(default_factory=set)
    unsynced: set[bytes] = field(default_factory=set)
    pruned_below: bytes = b""
    via_table: set[bytes] = field(default_factory=set)
    cancelled: set[bytes] = field(default_factory=set)  #: transactions whose delayed messages a commit has cancelled
    open: list[SimConnection] = field(default_factory=list)
    identity: bytes = bytes(15) + b"\1"
    real: RealDatabase | None = None  #: in a share of the seeds it answers too
    table: SimTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = SimTable(self.world, real=self.real)

    def connect(self, process: Process) -> SimConnection:
        """Open a connection; a dead process's transaction is rolled back some time later."""
        connection = SimConnection(process)
        process.on_death.append(lambda: self.world.at(self.world.rng.random() * 2, lambda: self.roll_back(connection)))
        return connection

    def begin(self, connection: SimConnection) -> None:
        """Begin a transaction."""
        connection.is_open = True
        self.open.append(connection)

    def commit(self, connection: SimConnection) -> None:
        """Make the transaction's rows visible, all at once."""
        if not connection.is_open:
            raise SimDatabaseError("no open transaction")
        self.table.later.unlock(connection, is_committed=True)
        self.cancelled.update(connection.cancels)
        self._end(connection)
        identity = connection.transaction_id
        if identity:
            self.rows[identity] = 1
            self.digests[identity] = connection.digest
            if connection.queued is not None:
                self._enqueue(identity, connection.queued)
            if not (connection.is_durable and self.enforces_durable):
                self.unsynced.add(identity)
            if connection.has_business:
                self.committed.add(identity)
            if self.real is not None:
                rows = connection.queued
                self.real.commit(identity, None if rows is None else [row for row, _ in rows])

    def _enqueue(self, identity: bytes, queued: list[tuple[TableRow, int]]) -> None:
        self.rows[identity] = 3
        self.via_table.add(identity)
        self.table.commit(queued)

    def roll_back(self, connection: SimConnection) -> None:
        """Forget the transaction's rows."""
        if connection.is_open:
            self._end(connection)

    def _end(self, connection: SimConnection) -> None:
        self.table.later.unlock(connection, is_committed=False)
        connection.is_open = False
        self.open.remove(connection)

    def holder(self, transaction_id: bytes) -> SimConnection | None:
        """Return the open transaction that holds the key's lock."""
        for connection in self.open:
            if connection.transaction_id == transaction_id:
                return connection
        return None

    def crash(self) -> None:
        """Lose every open transaction and every commit that was not synced."""
        self.world.note("database crash")
        for connection in list(self.open):
            self.roll_back(connection)
        for identity in sorted(self.unsynced):
            self.world.note("database ghost")
            self.rows.pop(identity, None)
            self.committed.discard(identity)
            self.table.lose(identity)
        self.unsynced.clear()

    def prune(
        self, below: bytes, is_closed: Callable[[bytes], bool], is_pending: Callable[[bytes], bool] = lambda _: False
    ) -> None:
        """Prune in the order of R4: raise the horizon first, wait, then delete closed ids below it.

        A row of state 3 is closed once its messages are sent, unless it has a half that is still to be closed.
        """
        if self.real is not None:
            if self.open:  # open transactions hold the file's lock
                self.world.at(1.0, lambda: self.prune(below, is_closed, is_pending))
                return
            self.real.raise_horizon(below)
        self.pruned_below = max(self.pruned_below, below)

        def delete() -> None:
            if self.real is not None:
                self.real.prune(below, lambda identity: self._is_closed(identity, is_closed, is_pending))
            for identity in [row for row in self.rows if row < below and self._is_closed(row, is_closed, is_pending)]:
                self.world.note("pruned row")
                del self.rows[identity]
            if self.real is not None and self.rows != self.real.states():
                self.world.break_rule("R4 the real fence table holds other rows after a prune than its twin")

        self.world.at(20.0, delete)

    def _is_closed(
        self, identity: bytes, is_closed: Callable[[bytes], bool], is_pending: Callable[[bytes], bool]
    ) -> bool:
        if self.table.holds(identity):
            return False
        return is_closed(identity) or (self.rows[identity] == 3 and not is_pending(identity))


class SimFence:
    """The fence as one process sees it; implements `Fence` with generators for calls that take time."""

    is_async = False
    digests = True

    def __init__(self, database: SimDatabase, process: Process) -> None:
        self._database = database
        self._process = process

    def begin(
        self,
        engine: Any,
        transaction_id: bytes,
        group: str,  # noqa: ARG002
        digest: bytes = b"",
    ) -> Generator[Any, Any, SimConnection]:
        """See `Fence.begin`."""
        connection = self._database.connect(self._process)
        self._database.begin(connection)
        connection.has_business = engine is not None
        yield from self._insert(connection, transaction_id)
        connection.digest = digest
        return connection

    def insert(
        self,
        connection: SimConnection,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        database: bytes = b"",  # noqa: ARG002 - all connections are to this one
        digest: bytes = b"",
    ) -> Generator[Any, Any, None]:
        """See `Fence.insert`."""
        yield from self._insert(connection, transaction_id)
        connection.digest = digest
        if rows:
            yield from self.enqueue(connection, transaction_id, group, rows, digest)

    def _insert(self, connection: SimConnection, transaction_id: bytes) -> Generator[Any, Any, None]:
        database = self._database
        yield 0.001
        self._maybe_fail()
        if not connection.is_open:
            raise FenceMisuseError("no open transaction")
        is_refused = transaction_id in database.rows or transaction_id < database.pruned_below
        if database.real is not None and database.real.refuses(transaction_id) != is_refused:
            database.world.break_rule(f"R4 the real fence takes an insert otherwise than its twin: {is_refused}")
        if is_refused:
            database.world.note("producer fenced")
            database.roll_back(connection)
            raise FencedError("decided already", transaction_id=known_id(transaction_id))
        connection.transaction_id = transaction_id
        connection.is_durable = True

    def verify(self, connection: SimConnection, transaction_id: bytes, digest: bytes = b"") -> None:
        """See `Fence.verify`."""
        if not connection.is_open or connection.transaction_id != transaction_id:
            raise FenceMisuseError("the fence row is not of this open transaction")
        connection.digest = digest

    def is_open(self, connection: SimConnection) -> bool:
        """See `Fence.is_open`."""
        return connection.is_open

    def withdraw(self, connection: SimConnection, transaction_id: bytes) -> None:  # noqa: ARG002
        """See `Fence.withdraw`."""
        connection.transaction_id = b""

    def enqueue(
        self,
        connection: SimConnection,
        transaction_id: bytes,
        group: str,  # noqa: ARG002
        rows: Sequence[TableRow],
        digest: bytes = b"",
    ) -> Generator[Any, Any, None]:
        """See `Fence.enqueue`."""
        yield 0.001
        self._maybe_fail()
        if not connection.is_open or connection.transaction_id != transaction_id:
            raise FenceMisuseError("the fence row is not of this open transaction")
        table, connection.digest = self._database.table, digest
        connection.queued = [(row, table.tick()) for row in rows]

    def now_ms(self, connection: SimConnection) -> Generator[Any, Any, int]:  # noqa: ARG002 - all are to this one
        """See `Fence.now_ms`."""
        yield 0.001
        self._maybe_fail()
        return self._database.world.now_ms()

    def cancel(
        self,
        connection: SimConnection,
        transaction_id: bytes,
        group: str,  # noqa: ARG002
    ) -> Generator[Any, Any, CancelState]:
        """See `Fence.cancel`; it waits while another cancel holds the rows."""
        later = self._database.table.later
        yield 0.001
        while later.is_held(transaction_id, connection):
            yield 0.05
        self._maybe_fail()
        if not connection.is_open:
            raise FenceMisuseError("no open transaction")
        state = later.lock(transaction_id, connection)
        if state is CancelState.NOT_FOUND and self._database.rows.get(transaction_id) in {1, 3}:
            return CancelState.TOO_LATE
        if state is CancelState.CANCELLED:
            connection.cancels.append(transaction_id)
        return state

    def commit(self, connection: SimConnection) -> Generator[Any, Any, None]:
        """See `Fence.commit`; with faults on it may fail before or after it applied."""
        world = self._database.world
        yield 0.001 + world.rng.random() * 0.01
        fails = world.chance(world.swarm.database)
        if fails and world.rng.random() < 0.5:
            self._database.roll_back(connection)
            world.note("commit failed, not applied")
            raise SimDatabaseError("connection lost")
        self._database.commit(connection)
        if fails:
            world.note("commit failed, applied")
            raise SimDatabaseError("connection lost")

    def rollback(self, connection: SimConnection) -> None:
        """See `Fence.rollback`."""
        self._database.roll_back(connection)

    def check(
        self,
        transaction_ids: Sequence[bytes],
        group: str,  # noqa: ARG002
        databases: Mapping[bytes, bytes] | None = None,
    ) -> Generator[Any, Any, Mapping[bytes, FenceReading]]:
        """See `Fence.check`."""
        world, mine = self._database.world, self._database.identity
        yield 0.002 + world.rng.random() * (0.3 if world.chance(world.swarm.slow) else 0.01)
        foreign = {identity for identity, database in (databases or {}).items() if database != mine}
        return {
            identity: self._elsewhere() if identity in foreign else self._check_one(identity)
            for identity in transaction_ids
        }

    def _elsewhere(self) -> FenceReading:
        """Answer about a half whose row is in another database; nothing is written."""
        self._database.world.note("wrong database")
        return FenceReading(FenceAnswer.NO_ANSWER, "the half is of another database", is_foreign=True)

    def database_of(self, connection: SimConnection) -> bytes:  # noqa: ARG002 - all are to this one
        """Return the identity of the database that has the row on *connection*."""
        return self._database.identity

    def known_database(self) -> bytes:
        """Return the identity of this fence's database."""
        return self._database.identity

    def read_database(self) -> bytes:
        """Return the identity of this fence's database."""
        return self._database.identity

    def _check_one(self, identity: bytes) -> FenceReading:
        database, world = self._database, self._database.world
        if world.chance(world.swarm.database):
            world.note("fence no answer")
            return FenceReading(FenceAnswer.NO_ANSWER, "unreachable")
        if database.holder(identity) is not None:
            world.note("fence locked")
            return FenceReading(FenceAnswer.NO_ANSWER, "locked by an open transaction")
        reading = self._state_of(identity)
        if database.real is None:
            return reading
        world.note("real fence asked")
        real = database.real.check(identity)
        if real.answer is not reading.answer:
            world.break_rule(f"R4 the real fence says {real}, its twin {reading}")
        return real

    def _state_of(self, identity: bytes) -> FenceReading:
        database, world = self._database, self._database.world
        state = database.rows.get(identity)
        if state is None:
            return self._absent(identity)
        if state == 3:
            world.note("fence reads state 3")
            return FenceReading(FenceAnswer.VIA_TABLE if database.table.holds(identity) else FenceAnswer.SENT)
        # The check's upsert syncs the row that it read, so the checker never acts on a ghost.
        database.unsynced.discard(identity)
        return FenceReading(STATES[state])

    def _absent(self, identity: bytes) -> FenceReading:
        database = self._database
        if identity < database.pruned_below:
            return FenceReading(FenceAnswer.PRUNED)
        database.rows[identity] = 2
        database.world.note("tombstone")
        return FenceReading(FenceAnswer.ROLLBACK)

    def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """See `Fence.peek`; a dirty read, which also shows what an open transaction has written."""
        database = self._database
        states = {each.transaction_id: 1 for each in database.open} | database.rows
        return {i: FenceReading(STATES[states[i]] if i in states else FenceAnswer.ABSENT) for i in transaction_ids}

    def settled(self, transaction_ids: Sequence[bytes], connection: Any = None) -> Mapping[bytes, FenceReading]:  # noqa: ARG002
        """See `Fence.settled`; the call also syncs the rows that it has read."""
        rows = self._database.rows
        self._database.unsynced.difference_update(transaction_ids)
        return {i: FenceReading(STATES[rows[i]] if i in rows else FenceAnswer.ABSENT) for i in transaction_ids}

    def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> None:  # noqa: ARG002
        """See `Fence.force`."""
        if STATES.get(self._database.rows.get(transaction_id, 0)) is FenceAnswer.VIA_TABLE:
            raise InMessageTableError("the relay delivers its messages")
        self._database.rows[transaction_id] = 4
        if self._database.real is not None:
            self._database.real.fence.force(transaction_id, group)

    def _maybe_fail(self) -> None:
        world = self._database.world
        if world.chance(world.swarm.database / 2):
            raise SimDatabaseError("connection lost")
