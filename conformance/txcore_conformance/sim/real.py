"""The real SqlFence, message table and inbox on SQLite, beside the twin: both must answer the same.

SQLite has one lock per file, which several producers cannot hold at once. So the twin still decides which process holds
a lock, which commits a crash undoes, and which answers are lost. The real statements of a transaction run together when
it commits; a check runs when no lock blocks it. The file is in memory where the system has such a folder.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from txcore.errors import FencedError
from txcore.fence import FenceReading
from txcore.inbox import Inbox
from txcore.message_table import Refused, TableRow
from txcore.outbox.slots import Slots
from txcore.sqlfence import SqlFence
from txcore.sqlfence.border import Border
from txcore.sqlfence.runners import at_once
from txcore.sqlfence.schema import LOWEST_ID

GROUP = "simulated"
MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps files in memory


class _RolledBackError(Exception):
    """Ends a database transaction without its effect."""


class RealDatabase:
    """One SQLite file with the fence, the message table and an inbox; emptied before each seed."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="txcore-sim-", dir=MEMORY if MEMORY.is_dir() else None)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._engine = create_engine(f"sqlite:///{folder}/real.db")
        self.fence = SqlFence(self._engine, sleep=lambda _: None)
        self.inbox = Inbox(self._engine)
        self.fence.create()
        self.inbox.create()
        self.slots = Slots(self.fence._dialect, GROUP, "simulated")  # noqa: SLF001 - the relay's statements alone
        self._run(self.slots.create)

    def empty(self) -> None:
        """Delete all rows, and reset the horizons."""
        with self._engine.begin() as connection:
            for table in ("txcore_tx", "txcore_tx_msg", "txcore_inbox"):
                connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608
            for table in ("txcore_tx_meta", "txcore_inbox_meta"):
                connection.execute(text(f"UPDATE {table} SET pruned_below = :id"), {"id": LOWEST_ID})  # noqa: S608

    # -- the fence -------------------------------------------------------------------------------------------------

    def refuses(self, transaction_id: bytes) -> bool:
        """Return whether a producer's insert would be refused now; the insert is rolled back."""
        try:
            self.fence.rollback(self.fence.begin(None, transaction_id, GROUP))
        except FencedError:
            return True
        return False

    def commit(self, transaction_id: bytes, rows: Sequence[TableRow] | None) -> None:
        """Run a whole transaction."""
        connection = self.fence.begin(None, transaction_id, GROUP)
        if rows is not None:
            self.fence.enqueue(connection, transaction_id, GROUP, rows)
        self.fence.commit(connection)

    def check(self, transaction_id: bytes) -> FenceReading:
        """Check one id."""
        readings: Any = self.fence.check([transaction_id], GROUP)
        found: FenceReading = readings[transaction_id]
        return found

    def raise_horizon(self, below: bytes) -> None:
        """Raise the horizon, which is the first step of a prune."""
        self._run(lambda border: self.fence._dialect.raise_horizon(border, below))  # noqa: SLF001

    def prune(self, below: bytes, is_closed: Callable[[bytes], bool]) -> None:
        """Delete closed rows, which are the other steps of a prune."""
        self.fence.prune(below, lambda ids: [identity for identity in ids if is_closed(identity)])

    def states(self) -> dict[bytes, int]:
        """Return the state of every row, by id."""
        with self._engine.connect() as connection:
            return {
                bytes(row[0]): row[1] for row in connection.execute(text("SELECT transaction_id, state FROM txcore_tx"))
            }

    # -- the message table ---------------------------------------------------------------------------------------------

    def page(self, slots: Iterable[int]) -> set[tuple[bytes, int, int, int]]:
        """Return the rows that a relay with *slots* would read: id, index, lane and tries."""
        found = self._run(lambda border: self.slots.page(border, sorted(slots), (), 1_000))
        return {(row.transaction_id, row.index, row.lane, row.tries) for row in found.rows}

    def settle(self, sent: Sequence[TableRow], refused: Sequence[Refused]) -> None:
        """Delete the sent rows and note the refused ones."""

        def action(border: Border) -> None:
            self.slots.delete(border, sent)
            for each in refused:
                self.slots.note(border, each)

        self._run(action)

    # -- the inbox -----------------------------------------------------------------------------------------------------

    def receive(self, messages: Sequence[Any], rng: random.Random) -> int:
        """Deliver messages in random order, after a rollback in some cases; return the number of effects."""
        effects = 0
        for message in rng.sample(messages, len(messages)):
            while True:
                with suppress(_RolledBackError), self._engine.begin() as connection:
                    with self.inbox.receive(connection, message) as is_first:
                        if is_first and rng.random() < 0.1:
                            raise _RolledBackError
                    effects += is_first
                    break
        return effects

    def _run(self, action: Callable[[Border], Any]) -> Any:
        return at_once(self.fence._own.transact(action, 1.0))  # noqa: SLF001


@functools.cache
def _of_process(_: int) -> RealDatabase:
    return RealDatabase()


def real_database() -> RealDatabase:
    """Return this process's database, empty."""
    found = _of_process(os.getpid())
    found.empty()
    return found
