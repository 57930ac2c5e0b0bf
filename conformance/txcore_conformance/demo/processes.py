"""The demo's processes: workers that take orders, a checker, and a consumer with an inbox.

Each process runs the program that a service would run, and also kills itself at a planned step.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final, cast

from sqlalchemy.exc import IntegrityError

from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    Message,
    NotSentError,
    OutcomeUnknownError,
    TransactionProducer,
    TxcoreError,
)
from txcore.ids import id_text
from txcore.port import Backend, Batch, SettlesEach
from txcore.records import Outcome, Resolution, Status
from txcore.wire import HEADER_ID
from txcore_conformance.demo.consuming import open_consumer
from txcore_conformance.demo.plan import Death, Executioner
from txcore_conformance.demo.settings import Settings, is_declined
from txcore_conformance.demo.shop import Order, Shop, order_of, parse_order
from txcore_conformance.failpoints import Watched, install

TRIES_MAX: Final = 50
PAUSE_S: Final = 0.05
CLOSE_TIMEOUT_S: Final = 5.0
BATCH_COUNT_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one process.

    Attributes:
        role: "worker", "checker" or "consumer".
        worker: Number of the worker.
        death: The planned death; None for a process that is not to die.
        skip: Orders that workers have declined before; only for a worker.
    """

    role: str
    settings: Settings
    worker: int = 0
    death: Death | None = None
    skip: frozenset[int] = frozenset()


class Declined(Exception):  # noqa: N818 - no error, but the service's own refusal
    """The service declines an order whose row is written already; the transaction rolls back."""


def run(job: Job, line: Connection) -> None:
    """Do *job*, then end the process; the process also ends at once when its supervisor ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's business.
    logging.getLogger("txcore").addHandler(logging.NullHandler())  # The demo causes its warnings.
    stop = threading.Event()
    threading.Thread(target=_listen, args=(line, stop), daemon=True).start()
    reports = _Line(line)
    executioner = Executioner(lambda step: reports.send(("dies", step)))
    install(executioner)
    life = _Life(job, reports, executioner, stop)
    try:
        {"worker": life.work, "checker": life.check, "consumer": life.consume}[job.role]()
    except Exception:  # noqa: BLE001 - whatever it is, the supervisor shows it
        reports.send(("failed", traceback.format_exc(limit=-3)))
        os._exit(1)
    reports.send(("done", ""))
    os._exit(0)


def _listen(line: Connection, stop: threading.Event) -> None:
    """Wait for the supervisor's request to stop, or for its end."""
    try:
        line.recv()
    except (EOFError, OSError):
        os._exit(1)
    stop.set()


class _Line:
    """The connection to the supervisor, which several threads may use."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._lock = threading.Lock()

    def send(self, report: tuple[str, Any]) -> None:
        """Send a report to the supervisor; a report sent before a kill arrives."""
        with self._lock:
            self._line.send(report)


class Witness:
    """A backend that reports the causes of second deliveries to the supervisor: attempts, and uncertain releases."""

    def __init__(self, inner: Any, say: Callable[[tuple[str, Any]], None]) -> None:
        self._inner = inner
        self._say = say
        self._attempts: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def release(self, batch: Batch[Resolution], claim: Any = None) -> None:
        """Hand over releases; each attempt is reported before its first release."""
        for attempt in {item.by for item in batch.items} - self._attempts:
            self._attempts.add(attempt)
            self._say(("attempt", attempt))
        self._inner.release(_Observed(batch, self._say), claim)


class _Observed(SettlesEach):
    def __init__(self, batch: Batch[Resolution], say: Callable[[tuple[str, Any]], None]) -> None:
        self._batch = batch
        self._say = say
        self.items = batch.items

    def settle(self, index: int, outcome: Outcome) -> None:
        item = self.items[index]
        if outcome.status is Status.UNKNOWN and item.targets:
            self._say(("uncertain", item.half.transaction_id))
        self._batch.settle(index, outcome)


class _Life:
    def __init__(self, job: Job, line: _Line, executioner: Executioner, stop: threading.Event) -> None:
        self._job = job
        self._settings = job.settings
        self._line = line
        self._executioner = executioner
        self._stop = stop
        self._shop = Shop(job.settings.database_url, job.settings.name)

    def _connect(self) -> Backend:
        witness = Witness(self._settings.connect(), self._line.send)
        return cast("Backend", Watched(witness, self._executioner))

    def _arm_at(self, done: int, todo: int) -> None:
        death = self._job.death
        if death is not None and done >= int(death.after * todo):
            self._executioner.arm(death.step)

    # -- the service ---------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Take all orders of this worker that are not committed yet."""
        backend = self._connect()
        policy = CheckPolicy(immunity_s=self._settings.immunity_s)
        producer = TransactionProducer(backend, self._settings.group, fence=self._shop.fence, policy=policy)
        committed = self._shop.numbers() | self._job.skip
        numbers = [number for number in self._settings.numbers(self._job.worker) if number not in committed]
        for done, number in enumerate(numbers):
            self._arm_at(done, len(numbers))
            self._try(lambda order: self._take(producer, order), order_of(number, self._settings.seed))
        producer.close()
        backend.close(CLOSE_TIMEOUT_S).result(CLOSE_TIMEOUT_S)

    def _take(self, producer: TransactionProducer, order: Order) -> None:
        """Take one order: write its row and its message, both or neither. A service needs no more code than this."""
        with producer.transaction(self._shop.engine) as transaction:
            self._executioner.reach("before insert")
            self._shop.add(transaction.connection, order, id_text(transaction.transaction_id))
            self._executioner.reach("after insert")
            if is_declined(order.number):
                raise Declined
            key = str(order.number).encode()
            headers = {"customer": order.customer}
            transaction.publish(Message(self._settings.topic, order.to_json(), key=key, headers=headers))

    def _try(self, take: Callable[[Order], None], order: Order) -> None:
        """Take an order; retry it after an error unless its row is in the database."""
        for _ in range(TRIES_MAX):
            try:
                take(order)
            except Declined:
                self._line.send(("declined", order.number))
                return
            except IntegrityError:
                return  # The COMMIT of the process before this one took effect.
            except (NotSentError, OutcomeUnknownError) as error:
                self._line.send(("again", repr(error)))
                self._stop.wait(PAUSE_S)
                if self._shop.has(order.number):
                    return
            else:
                return
        raise TxcoreError(f"order {order.number} could not be placed in {TRIES_MAX} tries")

    # -- the checker ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check until the supervisor stops it."""
        self._arm_at(0, 1)
        backend = self._connect()
        limits = replace(Limits(), retry_max_s=1.0, checkpoint_interval_s=0.5)
        checker = Checker(backend, self._settings.group, fence=self._shop.fence, limits=limits)
        checker.start()
        self._stop.wait()
        checker.stop()
        backend.close(CLOSE_TIMEOUT_S).result(CLOSE_TIMEOUT_S)

    # -- the consumer --------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        """Apply each order once, however often its message comes, until the supervisor stops it."""
        consumer = open_consumer(self._settings.broker_url, self._settings.topic, f"{self._settings.name}-consumer")
        received = 0
        while not self._stop.is_set():
            batch = consumer.poll(BATCH_COUNT_MAX)
            if not batch:
                self._stop.wait(PAUSE_S)
                continue
            received += len(batch)
            self._arm_at(received, self._settings.orders)
            with self._shop.engine.connect() as connection:
                first = sum(self._apply(connection, message) for message in batch)
                self._executioner.reach("before inbox commit")
                connection.commit()
            self._line.send(("duplicates", len(batch) - first))
            self._executioner.reach("after inbox commit")
            consumer.ack(batch[-1].position)
        consumer.close()

    def _apply(self, connection: Any, message: Any) -> bool:
        with self._shop.inbox.receive(connection, message.headers) as first:
            if first:
                identity = message.headers[HEADER_ID]
                text = identity if isinstance(identity, str) else identity.decode()
                self._shop.apply(connection, parse_order(message.body), text)
        return first
