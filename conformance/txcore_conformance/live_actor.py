"""One process of a live run: a producer in one of five styles, or a checker. It works until SIGTERM.

    python -m txcore_conformance.live_actor '{"role": "checker", "url": …}'

The process continues after all errors of the broker; only an unexpected error ends it. Its journal records its work.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import txcore
from txcore import (
    Checker,
    CheckPolicy,
    Event,
    Limits,
    Message,
    TransactionProducer,
    TxcoreError,
    hookimpl,
)
from txcore.port import Backend
from txcore.producer.arguments import ReleaseName
from txcore.signals import end_requested
from txcore_conformance.live_orders import NEVER_KNOWN, Deliberate, OrderListener, Orders
from txcore_conformance.live_record import Journal, Recording

PRODUCERS: Final = ("database", "fenced", "listener", "pipelined")
CLOSE_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.2
PIPELINE: Final = 20
MESSAGES_MAX: Final = 3
LIMITS: Final = Limits(idle_poll_s=0.05, retry_s=0.1, retry_max_s=2.0, checkpoint_interval_s=0.5, refusals_max=50)


@dataclass(frozen=True, slots=True)
class ActorJob:
    """The job of one process; `rate` is transactions per second."""

    role: str
    name: str
    url: str
    group: str
    topics: tuple[str, ...]
    database: str
    journal: str
    immunity_s: float
    seed: str
    rate: float = 20.0
    interval_s: float = 1.0
    check_max: int = 3
    release: ReleaseName = "producer"
    order_keys: int = 0  #: number of order keys of all transactions; 0 for none

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))


class _Events:
    """Writes the checker's events to the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @hookimpl
    def txcore_on_event(self, event: Event) -> None:
        fields = {key: value for key, value in event.fields.items() if isinstance(value, int | str | float)}
        self._journal.write("event", event.name, fields)


class Actor:
    """The work of the process."""

    def __init__(self, job: ActorJob, stop: threading.Event) -> None:
        self._job = job
        self._stop = stop
        self._journal = Journal(Path(job.journal))
        self._orders = Orders(job.database)
        self._random = random.Random(job.seed)
        self._number = 0

    def born(self) -> None:
        """Write to the journal that the process handles requests to end."""
        self._journal.write("born")

    def run(self) -> None:
        """Work until the process is asked to end."""
        backend = cast("Backend", Recording(txcore.connect(self._job.url), self._journal))
        try:
            if self._job.role == "checker":
                self._check(backend)
            else:
                self._produce(backend)
        finally:
            backend.close(CLOSE_TIMEOUT_S).result(2 * CLOSE_TIMEOUT_S)
            self._orders.close()
            self._journal.write("ended")

    def _patiently(self, attempt: Callable[[], Any]) -> Any:
        """Return the result of *attempt*, retried until the broker can be reached; None after a request to stop."""
        while not self._stop.is_set():
            try:
                return attempt()
            except (TxcoreError, TimeoutError) as error:
                self._journal.write("failed", repr(error))
                self._stop.wait(RETRY_S)
        return None

    def _check(self, backend: Backend) -> None:
        job = self._job
        checker = Checker(
            backend,
            job.group,
            listener=OrderListener(self._orders),
            fence=self._orders.fence,
            policy=CheckPolicy(interval_s=job.interval_s, check_max=job.check_max),
            member=job.name,
            limits=LIMITS,
            plugins=[_Events(self._journal)],
        )
        self._patiently(checker.start)
        self._journal.write("ready")
        self._stop.wait()
        checker.stop(4 * CLOSE_TIMEOUT_S)

    def _produce(self, backend: Backend) -> None:
        job, orders = self._job, self._orders
        is_fenced = job.role in {"database", "fenced"}

        def made() -> TransactionProducer:
            return TransactionProducer(
                backend,
                job.group,
                fence=orders.fence if is_fenced else None,
                listener=OrderListener(orders, is_fenced=is_fenced),
                policy=CheckPolicy(immunity_s=job.immunity_s),
                release=job.release,
            )

        producer = self._patiently(made)
        if producer is None:
            return
        self._journal.write("ready")
        styles = {"database": self._database, "pipelined": self._pipelined, "heads": self._head}
        once = styles.get(job.role, self._listener)
        size = PIPELINE if job.role == "pipelined" else 1
        while not self._stop.is_set():
            try:
                once(producer)
            except Exception as error:  # noqa: BLE001 - the broker, the network or the database; the oracle judges
                self._journal.write("failed", repr(error))
            self._stop.wait(size / job.rate)
        producer.close()

    def _database(self, producer: TransactionProducer) -> None:
        is_rollback = self._random.random() < 0.15
        with contextlib.suppress(Deliberate), producer.transaction(self._orders.engine) as transaction:
            self._orders.insert(transaction.connection, transaction.transaction_id)
            order_key = self._order_key()
            for _ in range(self._random.randint(1, MESSAGES_MAX)):
                transaction.publish(self._message("order", order_key))
            if is_rollback:
                raise Deliberate
        if transaction.result is not None:
            self._journal.write("end", transaction.transaction_id.hex(), transaction.result.state.value)

    def _listener(self, producer: TransactionProducer) -> None:
        arg = self._arg()
        result = producer.send_message_in_transaction(self._alone(arg), arg)
        self._journal.write("end", result.transaction_id.hex(), result.end.state.value if result.end else "silent")

    def _head(self, producer: TransactionProducer) -> None:
        """Store a half that stays UNKNOWN, so that it is parked, and holds its order key up."""
        result = producer.send_message_in_transaction(self._message("unknown", self._order_key()), "unknown")
        self._journal.write("end", result.transaction_id.hex(), "silent")

    def _pipelined(self, producer: TransactionProducer) -> None:
        args = [self._arg() for _ in range(PIPELINE)]
        for result in producer.send_many([(self._alone(arg), arg) for arg in args]):
            state = result.end.state.value if result.end else repr(result.error)
            self._journal.write("end", result.transaction_id.hex(), state)

    def _arg(self) -> str:
        kinds = ("commit", "rollback", "silent", "unknown")
        weights = (80, 12, 7, 0 if self._job.role == "fenced" else 1)
        return self._random.choices(kinds, weights)[0]

    def _order_key(self) -> bytes | None:
        return b"order-%d" % self._random.randrange(self._job.order_keys) if self._job.order_keys else None

    def _alone(self, arg: str) -> Message:
        """Return the only message of a transaction; no operator ends what is never known, so it has no order key."""
        return self._message(arg, None if arg == "unknown" else self._order_key())

    def _message(self, arg: str, order_key: bytes | None) -> Message:
        self._number += 1
        text = NEVER_KNOWN if arg == "unknown" else arg.encode()
        body = b"%s %s %d" % (text, self._job.name.encode(), self._number)
        key = b"key-%d" % self._random.randrange(20) if not order_key and self._random.random() < 0.7 else None
        topic, headers = self._random.choice(self._job.topics), {"number": str(self._number)}
        return Message(topic, body, key=key, headers=headers, order_key=order_key)


def main(text: str) -> None:
    """Run the job in *text* until SIGTERM; at SIGUSR1 the stack of each thread goes to standard error."""
    fields = json.loads(text)
    faulthandler.register(signal.SIGUSR1)
    with end_requested() as requested:
        actor = Actor(replace(ActorJob(**fields), topics=tuple(fields["topics"])), requested)
        actor.born()
        actor.run()


if __name__ == "__main__":
    main(sys.argv[1])
