"""The producer in its three styles, for blocking callers. It holds no protocol: every method runs a flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar

from txcore import arguments, ranges
from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.connections import DatabaseConnection
from txcore.errors import BusyError, ClosedError, NotJoinedError, TransactionStateError
from txcore.fence import AsyncFence, Fence
from txcore.ids import IdFactory, TransactionId
from txcore.lifecycle import CLOSE_TIMEOUT_S
from txcore.listener import Listener, TransactionListener
from txcore.message import CheckPolicy, Message
from txcore.message_table import CancelState, Mode, ModeName
from txcore.port import GROUP_TIMEOUT_S, Backend
from txcore.producer import transaction_flow as flow
from txcore.producer.admission import Places
from txcore.producer.arguments import BlockOnly, ReleaseName, mode_of, release_of, require_half_deadline, require_kinds
from txcore.producer.base import TransactionBase
from txcore.producer.finish import end
from txcore.producer.group_join import UNREACHED, Joining
from txcore.producer.handles import attach, id_of
from txcore.producer.listener_style import send_in_transaction
from txcore.producer.policies import require_room
from txcore.producer.send_many import send_many
from txcore.producer.transaction import LocalTransaction, ProducerContext, begin
from txcore.records import OpKind
from txcore.results import EndResult, TransactionSendResult
from txcore.runtime.circuit_breaker import CircuitBreaker
from txcore.runtime.commands import Flow
from txcore.runtime.drivers import BlockingBridge, run_blocking
from txcore.runtime.instrumentation import ProducerReporter

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine  # noqa: F401 - in a text

HALF_DEADLINE_S: Final = 2.0
R = TypeVar("R")
FenceT = TypeVar("FenceT", Fence, AsyncFence)
ListenerT = TypeVar("ListenerT", bound=Listener[Any, Any])


class Transaction(TransactionBase["TransactionProducer", "Connection"]):
    """One transaction in the primitive style; the database style passes it to its block, too.

    For one thread at a time. The order is `publish`…, `prepare`, the database's commit, `commit`.
    """

    def prepare(self, connection: DatabaseConnection | None = None) -> None:
        """Make the half durable, with the fence row first if an open database *connection* is given.

        See `flow.prepare` for the exceptions and the meaning of each for the message.
        """
        self._producer.run(flow.prepare(self._core, connection))

    def commit(self) -> EndResult:
        """Publish the targets after the local transaction committed. Idempotent; see `EndState` for the outcomes.

        With a fence the producer reads its row first: on the prepared connection, if that is still held and has no
        open transaction, else on another one of the fence's engine. So do not call this within the next transaction.
        """
        return self._producer.finish(end(self._core, OpKind.COMMIT))

    def rollback(self) -> EndResult:
        """End without a target; a fenced transaction only after its tombstone is certain, else CONFLICT or UNKNOWN."""
        return self._producer.finish(end(self._core, OpKind.ROLLBACK))


class ProducerBase(Generic[ListenerT, FenceT]):
    """The settings of a producer, the same for both kinds; see `TransactionProducer`.

    Raises:
        ConfigError: an argument is of a wrong type or out of range, an immunity that the backend's delivery time
            exceeds, a mode that needs a fence, or a fence of the other kind; `key` names it.
    """

    _listener_type: ClassVar[type[Listener[Any, Any]]]
    _is_async: ClassVar[bool]

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        fence: FenceT | None = None,
        listener: ListenerT | None = None,
        policy: CheckPolicy | None = None,
        partition_count: int | None = None,
        unsettled_max: int = 10_000,
        mode: ModeName = "half",
        half_deadline_s: float = HALF_DEADLINE_S,
        listener_fences: bool = False,
        release: ReleaseName = "producer",
        plugins: Sequence[object] = (),
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        arguments.require_place(backend, group, fence, plugins)
        require_kinds(type(self).__name__, listener, self._listener_type, fence, is_async=self._is_async)
        if partition_count is not None:
            ranges.require("partition_count", partition_count, int, 1)
        chosen = mode_of(mode, fence)
        clock, randomness, policy = clock or SystemClock(), randomness or system_randomness(), policy or CheckPolicy()
        capabilities = backend.capabilities
        require_room(policy, capabilities.release_time_max_s)
        ranges.require("unsettled_max", unsettled_max, int, 1)
        require_half_deadline(half_deadline_s)
        self._joining = Joining(lambda: backend.ensure_group(group, partition_count))
        self._join_timeout_s = half_deadline_s if chosen is Mode.AUTO else GROUP_TIMEOUT_S
        reporter = ProducerReporter(group, plugins, clock)
        self._context = ProducerContext(
            group,
            1 if chosen is Mode.TABLE else 0,  # mode table never calls the broker, so the broker need not be up
            clock,
            IdFactory(clock, randomness),
            policy,
            capabilities.release_time_max_s,
            capabilities.body_size_max,
            f"p:{randomness.getrandbits(48):012x}",
            fence,
            capabilities.atomic_release and capabilities.resolution_is_unique,
            reporter if plugins or chosen is not Mode.HALF or reporter.is_logging else None,
            chosen,
            CircuitBreaker(clock, probe_s=2 * half_deadline_s) if chosen is Mode.AUTO else None,
            half_deadline_s,
            self._joining,
            capabilities.resolution_kept_s,
            listener_fences,
            None if fence is None else reporter.forgot_fence,
            release_of(release),
        )
        self._backend = backend
        self._listener = listener
        self._unsettled_max = unsettled_max
        self._is_closed = False

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Let mode auto begin before the broker has answered; the other modes raise."""
        try:
            yield
        except UNREACHED as error:
            if self._context.mode is Mode.AUTO:
                return
            why = str(error) or f"no answer within {self._join_timeout_s:g} s"
            text = f"the producer cannot join group {self._context.group!r}: {why}; nothing was sent"
            raise NotJoinedError(text) from error

    def _open_context(self) -> ProducerContext:
        """Return the context, for new work.

        Raises:
            ClosedError: this producer is closed.
        """
        if self._is_closed:
            raise ClosedError("this producer is closed; nothing was begun")
        return self._context

    def _require_listener(self) -> ListenerT:
        self._open_context()
        if self._listener is None:
            raise TransactionStateError("the listener style needs a producer made with listener=…")
        return self._listener


class TransactionProducer(ProducerBase[TransactionListener, Fence]):
    """Sends transactional messages for one group.

    Args:
        backend: An open backend; the caller closes it.
        group: The producer group; its checker decides the transactions that this producer leaves open.
        fence: Makes checks decisive; needed for the database style.
        listener: Runs local transactions in the listener style.
        policy: Immunity of this group's halves; interval and count are the checker's unless a message has its own.
        partition_count: Verified against the group, or used to create it; None accepts the existing count.
        unsettled_max: Most callers that may begin, prepare, or send with the listener at once, from 1; others wait for
            up to `busy_timeout_s`. Callers that end a transaction count, too, but never wait.
        mode: "half"; "table": the messages go into the message table of the fence's database, with the local
            transaction, and a relay publishes them; "auto": a half, and the table while the broker is down, slow or
            full. The table needs a fence and, somewhere, a relay: the checker process is one.
        half_deadline_s: In mode auto, how long the open database transaction waits for the half's ack.
        listener_fences: Your promise that the listener calls `transaction.fence(connection)` in each database
            transaction that it commits. The fence alone then decides its halves. Without the promise a half with no
            fence row is left to `check_local_transaction`. A broken promise and a crash together lose the message.
        release: "producer": the producer publishes the targets. "owner": it stores its decision, and the checker that
            owns the half's partition publishes them. Then ACCEPTED says that the decision is durable: the message will
            be delivered, or is visibly parked. Without a checker nothing is delivered.
        plugins: Notified of events, such as `txcore.integrations.opentelemetry.Tracing`; see `hookspecs`.

    Thread safe. A forked child must make its own producer. Use it by `with`; the end of the block is `close`.

    Raises:
        ConfigError: see `ProducerBase`; or the group has other settings.
        NotJoinedError: the broker does not answer; modes auto and table do without.
    """

    _listener_type = TransactionListener
    _is_async = False

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        fence: Fence | None = None,
        listener: TransactionListener | None = None,
        policy: CheckPolicy | None = None,
        partition_count: int | None = None,
        unsettled_max: int = 10_000,
        busy_timeout_s: float = 10.0,
        mode: ModeName = "half",
        half_deadline_s: float = HALF_DEADLINE_S,
        listener_fences: bool = False,
        release: ReleaseName = "producer",
        plugins: Sequence[object] = (),
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        ranges.require("busy_timeout_s", busy_timeout_s, float, 0)
        super().__init__(
            backend,
            group,
            fence=fence,
            listener=listener,
            policy=policy,
            partition_count=partition_count,
            unsettled_max=unsettled_max,
            mode=mode,
            half_deadline_s=half_deadline_s,
            listener_fences=listener_fences,
            release=release,
            plugins=plugins,
            clock=clock,
            randomness=randomness,
        )
        if self._context.mode is not Mode.TABLE:
            with self._joined():
                self._context.partition_count = self._joining.begin().result(self._join_timeout_s)
        self._bridge = BlockingBridge(backend)
        self._places = Places(unsettled_max)
        self._busy_timeout_s = busy_timeout_s

    def begin(self) -> Transaction:
        """Return a new transaction in the primitive style; nothing is sent yet."""
        return Transaction(self, begin(self._open_context()))

    def transaction(self, engine: Engine | None = None) -> DatabaseTransaction:
        """Return the database style's context manager; entering opens a transaction of *engine*, or of the fence's one.

        The block ends without an error: the half is stored, the database commits, the targets are published; the
        result is in `result`. It ends with an error: the database rolls back and nothing was sent.
        """
        return DatabaseTransaction(self, begin(self._open_context()), engine)

    def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Send in the listener style: half, local transaction, end.

        Raises:
            TransactionStateError: this producer has no listener.
            MessageRejectedError, HalfRefusedError, BusyError: nothing was sent, the listener was not called.
            HalfUnknownError: the half may exist; the listener was not called.
        """
        return self.run(send_in_transaction(begin(self._context), self._require_listener(), message, arg))

    def send_many(self, messages: Iterable[tuple[Message, Any]]) -> list[TransactionSendResult]:
        """Send many in the listener style, pipelined: those that the broker answers together continue together.

        The listener runs in this thread. Results are in the order given. The transactions of one call are under way
        together: those with one order key have no order among themselves. A transaction of which nothing was sent, or
        whose half is uncertain, has its error in `error` and UNKNOWN as its local transaction state; the others are
        not affected.

        At most 1,000 are under way, and fewer where the listener is slow: as many as can end, at the rate so far, in
        half of a producer's time (`immunity_s` less the backend's `release_time_max_s`). So only some of the first 100
        can end TOO_LATE because of the others.
        """
        listener, leave = self._require_listener(), self._places.enter()
        try:
            return send_many(self._backend, self._context, listener, messages)
        finally:
            leave()

    def attach(self, handle: str) -> Transaction:
        """Return the prepared transaction that a `handle` names, from this or another process.

        On another machine, or after a restart of this one, there is no comparable clock reading: then `commit`
        publishes nothing and leaves the transaction to the checker (TOO_LATE), except where the store arbitrates.

        Raises:
            UsageError: the handle is damaged, or not of this group.
        """
        return Transaction(self, attach(self._open_context(), handle))

    def cancel(self, transaction: TransactionId | str, connection: DatabaseConnection) -> CancelState:
        """Cancel the delayed messages of a transaction, in the open database transaction of *connection*.

        The result holds if and only if that transaction commits; a record of the cancel stays. All delayed messages of
        the transaction are cancelled, or none: once a relay has queued one that was due, the answer is TOO_LATE.

        Args:
            transaction: The id (also as text), or a handle.
            connection: Of the fence's database. The messages are locked until its transaction ends.

        Raises:
            TransactionStateError: this producer has no fence.
            UsageError: no id and no handle of this group.
            FenceMisuseError: an autocommit connection, or one to another kind of database.
            What else the database raises is raised as it is: the caller's transaction is the caller's.
        """
        context = self._context
        return self.finish(flow.cancel(context, id_of(context, transaction), connection))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Refuse new work, and wait for the calls of other threads that are under way; idempotent.

        A begun transaction may still be prepared and ended, for as long as the backend is open. Closing the backend
        undoes what is not prepared, with an error; the checker ends what is. Not to be called by a listener.

        Returns whether the calls have ended within *timeout_s*.
        """
        self._is_closed = True
        return self._places.wait_for_all(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, step: Flow[R]) -> R:
        """Run one flow for a blocking caller, held back while too many are under way.

        Raises:
            BusyError: no room within `busy_timeout_s`; nothing was sent by this step.
        """
        if not self._places.take(self._busy_timeout_s):
            raise BusyError(f"no room for another transaction within {self._busy_timeout_s:g} s; nothing was sent")
        try:
            return run_blocking(step, self._bridge)
        finally:
            self._places.give_back()

    def finish(self, step: Flow[R]) -> R:
        """Run a flow that ends a begun transaction: it counts as a caller in flight, and never waits for one.

        A refusal would leave a database transaction open, or report that nothing of a committed one was sent.
        """
        leave = self._places.enter()
        try:
            return run_blocking(step, self._bridge)
        finally:
            leave()


class DatabaseTransaction(BlockOnly, AbstractContextManager[Transaction]):
    """The database style: `with producer.transaction(engine) as tx`."""

    def __init__(self, producer: TransactionProducer, core: LocalTransaction, engine: Engine | None) -> None:
        self._producer = producer
        self._core = core
        self._engine = engine

    def __enter__(self) -> Transaction:
        connection = self._producer.run(flow.database_begin(self._core, self._engine))
        return Transaction(self._producer, self._core, connection)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        step = flow.database_finish if kind is None else flow.database_abort
        self._producer.finish(step(self._core))
