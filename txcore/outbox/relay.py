"""The relay: publishes the messages that producers have put into the message table, and deletes them there.

Run at least one for each group whose producers use the mode `table` or `auto`; the checker process is one. Any number
may run at once, and any of them may be killed anywhere: each message is sent at least once, always with the same id,
and in the order of insertion for each message key.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from txcore import arguments
from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import BackendNotInstalledError, TransactionStateError, sentence_of
from txcore.ids import TransactionId
from txcore.lifecycle import RunningInside
from txcore.outbox.relay_steps import BatchReport, RelayContext, RelayLimits, Rest, relay_batch
from txcore.port import Backend, ensured
from txcore.runtime import instrumentation as names
from txcore.runtime.flow_loop import Loop
from txcore.runtime.instrumentation import Reporter

try:
    from sqlalchemy import Engine
except ImportError as missing:
    if missing.name != "sqlalchemy":
        raise
    raise BackendNotInstalledError("Relay", "SQLAlchemy", "sql") from missing

from txcore.outbox.foreign_layouts import LAYOUTS, Layout, layout_of
from txcore.outbox.foreign_tables import OutboxTable
from txcore.outbox.slots import ParkedMessage, TableStats
from txcore.outbox.sql_table import NoTableError, SqlMessageTable

HOLD_SPARE_S: Final = 10.0
"""Time, in seconds, that a relay keeps its slots beyond its slowest batch before another relay may hold them."""
NEVER: Final = 1_000_000_000
COUNT_EVERY_S: Final = 15.0
RING_FROM_S: Final = 0.05
"""Shortest time, in seconds, without a message after which a relay asks producers to ring."""


@dataclass(frozen=True, slots=True)
class RelayStats:
    """The counts of a relay since it was made.

    Attributes:
        trouble: Why the relay sends nothing now; "" while it can send.
        turned_s: Seconds since a running relay last finished a batch; many while database or broker are silent.
        newer: Why messages of a newer txcore wait, and with them all messages of their keys; "" for none.
        waiting: The table's counts as last read; a running relay reads them every `COUNT_EVERY_S` seconds. None before.
    """

    sent: int = 0
    refused: int = 0
    parked: int = 0
    batches: int = 0
    is_running: bool = False
    trouble: str = ""
    turned_s: float = 0.0
    newer: str = ""
    waiting: TableStats | None = None


class Relay(RunningInside):
    """Relays the message table of one group.

    Use either `with` (`async with` in a coroutine; `start` and `stop` do the same), or `run_once`. The end of the block
    is `stop`; a batch that takes longer raises BackendTimeoutError there.

    Args:
        backend: An open backend; it stays the caller's.
        group: The producer group.
        engine: A synchronous SQLAlchemy Engine of the producers' database; it needs two connections, three on
            PostgreSQL.
        table: The fence table there, as in `SqlFence`.
        layout: The columns of *table*, when it is an outbox table that another library made; see `layout_of`.
        limits: Bounds; the defaults suit production.
        plugins: Objects with the hook `txcore_on_event`.

    Raises:
        ConfigError: an asynchronous engine, or an invalid table name.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        engine: Engine,
        *,
        table: str = "txcore_tx",
        layout: Layout | None = None,
        limits: RelayLimits | None = None,
        plugins: Sequence[object] = (),
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        arguments.require_place(backend, group, None, plugins)
        if limits is not None:
            arguments.require_type("limits", limits, RelayLimits, "txcore.RelayLimits")
        self._clock, randomness = clock or SystemClock(), randomness or system_randomness()
        self._limits = limits or RelayLimits()
        self._by = f"r:{randomness.getrandbits(48):012x}"
        hold_s = self._limits.batch_s + backend.capabilities.release_time_max_s + HOLD_SPARE_S
        self.table: SqlMessageTable | OutboxTable = (
            SqlMessageTable(engine, group, self._by, table=table, hold_s=hold_s)
            if layout is None
            else OutboxTable(engine, group, table, layout, hold_s=hold_s)
        )
        if layout is not None:
            self._limits = replace(self._limits, tries_max=NEVER)
        self._backend = backend
        self._group = group
        self._report = Reporter("txcore.relay", plugins, group=group)
        self._context: RelayContext | None = None
        self._stats = RelayStats()
        self._outage = Rest()
        self._turned_at_s = self._clock.elapsed_s()
        self._count_at_s = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Relay in a thread until `stop`; the thread reports a failure of database or broker, and retries.

        Raises:
            TransactionStateError: it was started already.
        """
        if self._thread is not None:
            raise TransactionStateError("this relay is running already")
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=f"txcore-relay-{self._group}", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the relay to stop; returns at once."""
        self._stop.set()

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Finish the current batch and end, within *timeout_s*; idempotent. Returns whether the relay has ended."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                return False
            self._thread = None
        self.table.close()
        return True

    def run_once(self) -> BatchReport:
        """Relay until no message can be sent now; returns the sums of all batches.

        Raises:
            TransactionStateError: it runs in a thread.
            BackendUnavailableError: the database, or the broker when the group is joined, cannot be reached.
            ConfigError: the group exists with other settings, see `Backend.ensure_group`.
        """
        if self._thread is not None:
            raise TransactionStateError("this relay runs in a thread; stop it before run_once")
        total = BatchReport()
        self._joined()
        self._look_again()
        self.table.beat()
        while True:
            report = self._batch()
            total.taken += report.taken
            total.sent += report.sent
            total.refused += report.refused
            total.parked += report.parked
            total.uncertain += report.uncertain
            total.turned += report.turned
            if not report.sent and not report.parked and not report.turned:
                return total

    def stats(self) -> RelayStats:
        """Return the counts; from any thread."""
        thread = self._thread
        is_running = thread is not None and thread.is_alive()
        turned_s = max(self._clock.elapsed_s() - self._turned_at_s, 0.0) if is_running else 0.0
        return replace(self._stats, is_running=is_running, turned_s=turned_s)

    # The table, for operators -----------------------------------------------------------------------------------------

    def waiting(self) -> TableStats:
        """Count the waiting rows of the table. Raises BackendUnavailableError."""
        return self.table.stats()

    def parked(self) -> list[ParkedMessage]:
        """Return the messages that are not retried any more, with their reasons. Raises BackendUnavailableError."""
        return self.table.parked()

    def resume(self, transaction_id: TransactionId) -> int:
        """Retry the parked messages of a transaction; returns their number. Raises BackendUnavailableError."""
        return self.table.resume(TransactionId(transaction_id))

    def drop(self, transaction_id: TransactionId, why: str, by: str) -> int:
        """Drop the parked messages of a transaction for good; returns their number.

        They are never sent, and stay in the table with name, time and reason; the audit names the transaction FORCED.

        Raises:
            UsageError: *why* is empty.
            BackendUnavailableError: the database failed.
        """
        return self.table.give_up(TransactionId(transaction_id), why, by)

    # -----------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = self._limits.poll_s
        while not self._stop.is_set():
            self._turned_at_s = self._clock.elapsed_s()
            try:
                report = self._batch()
                self._count()
            except NoTableError as error:
                self._wait_out(str(error))
                continue
            except Exception as error:  # noqa: BLE001 - a driver's own error must not end the relay for good
                self._wait_out(sentence_of(error))
                continue
            if report.uncertain and not report.sent:
                self._wait_out("the broker gave no certain answer")
                continue
            self._recover()
            if report.sent or report.parked or report.turned:
                pause_s = self._limits.poll_s
                continue
            self._idle(pause_s, is_calm=not report.taken)
            pause_s = min(pause_s * 2, self._limits.idle_poll_s)

    def _count(self) -> None:
        now_s = self._clock.elapsed_s()
        if now_s >= self._count_at_s:
            self._count_at_s = now_s + COUNT_EVERY_S
            self.table.beat()
            self._stats = replace(self._stats, waiting=self.table.stats())

    def _batch(self) -> BatchReport:
        context = self._joined()
        loop = Loop(self._backend, self._clock)
        task = loop.spawn(relay_batch(context))
        loop.run_all()
        report: BatchReport = task.result
        stats = self._stats
        self._stats = replace(
            stats,
            sent=stats.sent + report.sent,
            refused=stats.refused + report.refused,
            parked=stats.parked + report.parked,
            batches=stats.batches + bool(report.taken),
            newer=next(iter(context.newer.values()), ""),
        )
        return report

    def _joined(self) -> RelayContext:
        if self._context is None:
            count = ensured(self._backend, self._group)
            self.table.join()
            self._context = RelayContext(
                self._group,
                count,
                self.table,
                self._clock,
                self._limits,
                self._report,
                self._by,
                self._backend.capabilities.batch_count_max,
            )
        return self._context

    def _wait_out(self, trouble: str) -> None:
        """Report the trouble once, and pause longer each time while it lasts."""
        self._turned_at_s = self._clock.elapsed_s()
        if not self._outage.count:
            self._report.event(names.RELAY_DOWN, reason=trouble)
        self._stats = replace(self._stats, trouble=trouble)
        self._stop.wait(self._outage.next_s(self._limits.retry_s, self._limits.outage_max_s))

    def _recover(self) -> None:
        """Report the end of a trouble."""
        if self._outage.count:
            self._outage = Rest()
            self._stats = replace(self._stats, trouble="")
            self._report.event(names.RELAY_UP)

    def _idle(self, pause_s: float, *, is_calm: bool) -> None:
        """Wait for a message, for the next row that is due, or for the time of the next poll."""
        left_s = max(self._joined().look_at_s - self._clock.elapsed_s(), 0.0)
        if is_calm and pause_s >= RING_FROM_S and self.table.can_ring:
            self.table.sleep(min(self._limits.idle_poll_s, left_s), self._stop.is_set)
            self._look_again()  # the ring may be for a message that is due earlier than the others
        else:
            self._stop.wait(min(pause_s, left_s))

    def _look_again(self) -> None:
        """Look at the delayed rows in the next batch."""
        if self._context is not None:
            self._context.look_at_s = 0.0


__all__: list[Any] = ["LAYOUTS", "Layout", "Relay", "RelayLimits", "RelayStats", "layout_of"]
