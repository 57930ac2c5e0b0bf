"""The writer: one thread with its own connection that commits all queued work as one transaction.

A single caller pays for one transaction and nothing else; callers that come while it runs share the next one. Callers
that shared a transaction return at nearly the same time, so the next transaction waits for them while they keep coming.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from typing import Final

from txcore.clock import Clock
from txcore.errors import BusyError, ClosedError, TxcoreError
from txcore.records import Status
from txcore_sqlite.catalog import Catalog
from txcore_sqlite.codec import certain_error, is_busy, is_full, uncertain_error
from txcore_sqlite.ledger import Ledger
from txcore_sqlite.store import BUSY_ATTEMPT_MS, Store
from txcore_sqlite.work import Work

TRANSACTION_ITEMS_MAX: Final = 4_000
"""Items after which a transaction accepts no further work; bounds memory and how long others wait for the lock."""
COMPANY_S: Final = 0.0003
"""Longest wait, in seconds, for the next caller to return, while a transaction is smaller than the one before."""

_LOG: Final = logging.getLogger("txcore.sqlite")


class Writer:
    """Queue and thread. `submit` and `close` are thread safe; the thread starts with the first work.

    Every entry ends by its deadline plus the time of one transaction: committed, certainly not stored, or unknown.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        # A SimpleQueue's `get` waits for ever if its timeout is over before it begins to wait (CPython 3.11).
        self._queue: queue.Queue[Work | None] = queue.Queue()
        self._lock = threading.Lock()
        self._waiting = 0  # items in the queue and in flight
        self._flight: list[Work] = []
        self._carry: list[Work] = []  # taken from the queue, not in a transaction yet
        self._singly = 0  # number of entries of `_carry` that get a transaction of their own
        self._last_size = 0
        self._is_last = False
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._connection: sqlite3.Connection | None = None
        self._catalog = Catalog()

    def submit(self, work: Work) -> None:
        """Queue *work*, or fail it at once with a BusyError when `queue_max` items wait already.

        Raises:
            ClosedError: `close` was called.
        """
        with self._lock:
            if self._closing:
                raise ClosedError("the sqlite backend is closed")
            queue_max = self._store.options.queue_max
            full = self._waiting and self._waiting + work.size > queue_max
            if not full:
                self._enqueue(work)
                self._waiting += work.size
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="txcore-sqlite-writer", daemon=True)
                    self._thread.start()
        if full:
            work.fail(Status.REFUSED, BusyError(f"{queue_max} items (queue_max) wait for the file already; slow down"))

    def _enqueue(self, work: Work) -> None:
        """Put *work* into the queue.

        An exception of a signal's handler in `Queue.put` could keep the queue's lock; a bare lock's `with` never does.
        """
        with self._queue.mutex:
            self._queue.queue.append(work)
            self._queue.not_empty.notify()

    def close(self, timeout_s: float) -> None:
        """Commit all queued work, then stop; after *timeout_s* seconds fail the rest. Blocks; call it once."""
        with self._lock:
            self._closing = True
            self._queue.put(None)
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                self._abandon()

    def _abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            flight, self._flight = self._flight, []
            rest, self._carry = self._carry, []
        _end(flight, Status.UNKNOWN, uncertain_error(None))
        while True:
            try:
                work = self._queue.get_nowait()
            except queue.Empty:
                break
            if work is not None:
                rest.append(work)
        self._queue.put(None)
        _end(rest, Status.REFUSED, _closed_early())

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while group := self._gather():
            self._commit_group(group)
        if self._connection is not None:
            self._connection.close()

    def _gather(self) -> list[Work]:
        """Return the entries of the next transaction, waiting for the first one; an empty list means the end."""
        with self._lock:
            group, self._carry = self._carry, []
            if self._singly and group:
                self._singly -= 1
                self._carry = group[1:]
                return group[:1]
        size = sum(work.size for work in group)
        while size < TRANSACTION_ITEMS_MAX and not self._is_last:
            try:
                if not group:
                    work = self._queue.get()
                elif size >= self._last_size:
                    work = self._queue.get_nowait()
                else:
                    work = self._queue.get(timeout=COMPANY_S)
            except queue.Empty:
                break
            if work is None:
                self._is_last = True
            else:
                group.append(work)
                size += work.size
        self._last_size = size
        return group

    def _commit_group(self, group: list[Work]) -> None:
        """Commit *group* in one transaction and settle it; without the lock, settle the entries that must end now."""
        with self._lock:
            self._flight = group
            is_abandoned = self._abandoned
        if is_abandoned:
            self._settle(Status.REFUSED, _closed_early())
            return
        try:
            connection = self._begin(min(work.deadline_s for work in group))
        except sqlite3.Error as error:
            self._not_begun(group, error)
        except TxcoreError as error:
            self._settle(Status.REFUSED, error)
        else:
            self._in_transaction(connection, group)

    def _begin(self, deadline_s: float) -> sqlite3.Connection:
        """Take the write lock, in short attempts until the deadline; at least one."""
        if self._connection is None:
            self._catalog = Catalog()
            self._connection = self._store.connect()
        # The number of attempts is a bound of its own, for a clock that has stopped.
        for attempts_left in reversed(range(1 + round(self._store.options.busy_timeout_s * 1000 / BUSY_ATTEMPT_MS))):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                is_late = attempts_left == 0 or self._abandoned or self._clock.elapsed_s() >= deadline_s
                if is_late or not is_busy(error):
                    raise
            else:
                break
        return self._connection

    def _not_begun(self, group: list[Work], error: sqlite3.Error) -> None:
        """Refuse entries after their deadline, as nothing is stored without a BEGIN; the other ones wait again."""
        now_s = self._clock.elapsed_s()
        early = [work for work in group if is_busy(error) and work.deadline_s > now_s]
        if 0 < len(early) < len(group):
            with self._lock:
                self._carry = early + self._carry
                self._flight = [work for work in self._flight if work not in early]
        self._settle(Status.REFUSED, certain_error(error))

    def _in_transaction(self, connection: sqlite3.Connection, group: list[Work]) -> None:
        is_committing = False
        try:
            ledger = Ledger(connection, self._catalog, self._store.options, self._clock.wall_ms())
            for work in group:
                work.apply(ledger)
            ledger.flush()
            is_committing = True
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the thread continues and every item is settled
            self._undo(connection)
            # Only a COMMIT that fails while syncing may still turn out to be stored.
            if is_committing and not (isinstance(error, sqlite3.Error) and (is_full(error) or is_busy(error))):
                self._settle(Status.UNKNOWN, uncertain_error(error))
            else:
                self._rolled_back(group, error)
        else:
            self._settle(None, None)

    def _undo(self, connection: sqlite3.Connection) -> None:
        self._catalog = Catalog()
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # A closed connection takes its open transaction with it; the next one starts afresh.
            self._connection = None
            connection.close()

    def _rolled_back(self, group: list[Work], error: Exception) -> None:
        """Give each entry a transaction of its own, so that one cannot make the others fail; refuse a single entry."""
        if len(group) > 1:
            with self._lock:
                if not self._abandoned:
                    self._flight = []
                    self._carry = group + self._carry
                    self._singly = len(group)
            return
        if isinstance(error, sqlite3.Error):
            self._settle(Status.REFUSED, certain_error(error))
            return
        wrapped = TxcoreError(f"the sqlite backend could not turn this into rows; nothing was stored: {error!r}")
        wrapped.__cause__ = error
        self._settle(Status.REFUSED, wrapped)

    def _settle(self, status: Status | None, error: TxcoreError | None) -> None:
        """End the entries in flight, unless `close` has ended them already."""
        with self._lock:
            flight, self._flight = self._flight, []
            self._waiting -= sum(work.size for work in flight)
        _end(flight, status, error)


def _end(works: list[Work], status: Status | None, error: TxcoreError | None) -> None:
    for work in works:
        try:
            if status is None:
                work.done()
            else:
                assert error is not None
                work.fail(status, error)
        except Exception:  # noqa: BLE001 - a completion that raises breaks its contract; the others must not suffer
            _LOG.exception("sqlite.settle_failed")


def _closed_early() -> ClosedError:
    return ClosedError("the sqlite backend was closed before this reached the file; nothing was stored")
