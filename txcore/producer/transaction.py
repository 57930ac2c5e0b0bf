"""One transaction on its producer's side: its state, the messages that it accepts, and its half."""

from __future__ import annotations

import contextvars
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final, overload

import msgspec

from txcore import wire
from txcore.clock import Clock
from txcore.columns import HalfColumns
from txcore.connections import AsyncDatabaseConnection, DatabaseConnection
from txcore.delay import Delay
from txcore.digest import digest_of
from txcore.enums import direct
from txcore.errors import MessageRejectedError, TransactionStateError
from txcore.fence import NO_DATABASE, AnyFence
from txcore.ids import IdFactory, TransactionId, id_text, known_id, partition_of, partitions_of
from txcore.message import (
    MESSAGE_COUNT_MAX,
    CheckPolicy,
    Message,
    validate_message,
)
from txcore.message_table import Mode
from txcore.producer.delayed import note_delay, require_delay
from txcore.producer.group_join import Joining
from txcore.producer.order_key import require_order_key
from txcore.producer.policies import require_room, transaction_policy
from txcore.records import Half, HalfRecord, OpKind, ReleaseBy, TargetMessage
from txcore.results import EndResult
from txcore.runtime.circuit_breaker import CircuitBreaker
from txcore.runtime.instrumentation import ProducerReporter

ENOUGH_COUNT: Final = 8
"""Number of halves of one partition that fill a request."""
_identity_of, _policies_of = attrgetter("identity"), attrgetter("policies")


@direct
class Phase(enum.Enum):
    """The phase of a transaction on its producer's side."""

    OPEN = "open"
    PREPARING = "being prepared"
    PREPARED = "prepared"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(slots=True)
class ProducerContext:
    """The settings and objects that all flows of one producer share.

    Attributes:
        margin_s: Seconds before the end of immunity at which the producer gives way.
        store_arbitrates: Targets and op are one atomic release on a store that keeps resolutions unique: then a late
            producer need not give way, as the store refuses it before anything is delivered.
        arbitrates_s: Seconds after the half for which that holds; later the store forgets resolutions. None for ever.
        mode: The path of the messages: half, table or auto.
        breaker, half_deadline_s: In mode auto: when to try the broker, and how long a half may take there.
        listener_fences: The user has promised that the listener commits nothing without the fence row.
        forgot_fence: Reports that a listener has committed without the fence row.
        release: The process that publishes the targets of halves: their producer, or the owner of their partition.
        joining: In mode auto: asks for `partition_count`, which is 0 until the broker has answered for the first time.
    """

    group: str
    partition_count: int
    clock: Clock
    ids: IdFactory
    policy: CheckPolicy
    margin_s: float
    body_size_max: int
    by: str
    fence: AnyFence | None = None
    store_arbitrates: bool = False
    observer: ProducerReporter | None = None
    mode: Mode = Mode.HALF
    breaker: CircuitBreaker | None = None
    half_deadline_s: float | None = None
    joining: Joining | None = None
    arbitrates_s: float | None = None
    listener_fences: bool = False
    forgot_fence: Callable[[bytes], None] | None = None
    release: ReleaseBy = ReleaseBy.PRODUCER

    def has_joined(self) -> bool:
        """Return whether the group's number of partitions is known; if it is not, ask again without waiting."""
        if not self.partition_count and self.joining is not None:
            self.partition_count = self.joining.poll()
        return self.partition_count > 0


class LocalTransaction(msgspec.Struct):
    """One transaction on its producer's side; a listener's `execute` receives it.

    Attributes:
        identity: The 16 bytes of its id, as records, fence and broker take them.
        messages: Those that it holds so far; in a batch they are in its columns, unless the fence needs them here.
        half: Set when the half is made.
        immunity_s: Its context's until the half is made, then that of the half.
        give_way_s: Reading of the clock after which the producer publishes nothing; None without a reading.
        began_s: When its database transaction was opened, in the database style.
        is_via_table: Its messages are in the message table, so it publishes nothing and writes no op.
        fenced: It has a fence row, or its listener may write one.
        may_lack_row: Its half says that its listener may have committed without the fence row.
        database: The identity of the database that has the row, or is to have it.
        notice: An error to report beside the result.
        must_look: The fence is read before targets are published, as nothing here proves that the row is there.
        delays: The delays of its messages, by their index; None where none is delayed.
        is_by_owner: Its half is released by the partition's owner: its end publishes nothing.
        order_key: The order key of its messages, from which its partition comes; empty for none.
    """

    context: ProducerContext
    identity: bytes
    messages: list[TargetMessage] = msgspec.field(default_factory=list)
    policies: tuple[CheckPolicy, ...] = ()
    phase: Phase = Phase.OPEN
    connection: Any = None
    fenced: bool = False
    may_lack_row: bool = False
    database: bytes = b""
    must_look: bool = False
    notice: Exception | None = None
    half: HalfRecord | None = None
    immunity_s: float = 0.0
    give_way_s: float | None = None
    began_s: float = 0.0
    is_via_table: bool = False
    asked: OpKind | None = None
    result: EndResult | None = None
    delays: dict[int, Delay] | None = None
    is_by_owner: bool = False
    order_key: bytes = b""

    def __repr__(self) -> str:
        """Return the class, the id and the phase."""
        return f"LocalTransaction({self.transaction_id!r}, {self.phase.value})"

    @property
    def transaction_id(self) -> TransactionId:
        """The id of this transaction everywhere: in headers, on the command line, in the console."""
        return known_id(self.identity)

    @property
    def partition(self) -> int:
        """The partition of its order key, or else of its id; 0 while their number is unknown, so without a half."""
        count = self.context.partition_count
        return partition_of(self.order_key or self.identity, count) if count else 0

    @overload
    def fence(self, connection: DatabaseConnection) -> None: ...

    @overload
    def fence(self, connection: AsyncDatabaseConnection) -> Awaitable[None]: ...

    def fence(self, connection: DatabaseConnection | AsyncDatabaseConnection) -> Awaitable[None] | None:
        """Insert the fence row in the listener's own open database transaction, which makes its check decisive.

        Call it first in that transaction, inside the listener. Returns an awaitable for an async connection. From then
        on, refused or not, only a committed row publishes: PostgreSQL's COMMIT rolls back without an error where the
        listener has caught one of a statement, and a listener may forget its commit.

        Raises:
            TransactionStateError: the producer was made without a fence.
            FenceMisuseError, FencedError: see `Fence.insert`; the database transaction was rolled back.
            WrongDatabaseError: the connection is not to the fence's database, which the half names; likewise.
        """
        fence = self.context.fence
        if fence is None:
            raise TransactionStateError("this producer has no fence; make it with a SqlFence or an AsyncSqlFence")
        expected = b"" if self.database == NO_DATABASE else self.database
        row = (connection, self.identity, self.context.group, (), expected, row_digest(self))
        insert: Callable[[], Any] = partial(fence.insert, *row)
        if fence.is_async:
            return self._fence_awaited(insert)
        self.must_look = True
        inserted: None = insert()  # the simulator's fence has a generator here
        return inserted

    async def _fence_awaited(self, insert: Callable[[], Awaitable[None]]) -> None:
        self.must_look = True  # not before: a coroutine that is never awaited is a forgotten fence
        await insert()


current: Final[contextvars.ContextVar[LocalTransaction | None]] = contextvars.ContextVar("txcore", default=None)


def current_transaction() -> LocalTransaction:
    """Return the transaction whose local part is running here; `execute` receives the same one.

    Raises:
        TransactionStateError: called outside a listener.
    """
    transaction = current.get()
    if transaction is None:
        raise TransactionStateError("current_transaction() works only inside a listener")
    return transaction


def begin(context: ProducerContext) -> LocalTransaction:
    """Return a new open transaction with an id of its own."""
    identity = context.ids.new(context.partition_count)
    return LocalTransaction(context, identity, immunity_s=context.policy.immunity_s)


def begin_many(context: ProducerContext, count: int) -> list[LocalTransaction]:
    """Return *count* new transactions as their listener sees them, each with an id of its own.

    A few that begin at one moment share partitions, so that requests to the broker are full. Where each partition gets
    enough of them, they are spread over all partitions: a client waits for five requests of a partition at a time.
    """
    ids, immunity_s = context.ids, context.policy.immunity_s
    if count < ENOUGH_COUNT * context.partition_count:
        identities = [ids.new(context.partition_count) for _ in range(count)]
    else:
        identities = ids.many(count)
    return [LocalTransaction(context, each, phase=Phase.PREPARED, immunity_s=immunity_s) for each in identities]


def publish(transaction: LocalTransaction, message: Message) -> None:
    """Add a message to an open transaction; nothing is sent.

    Raises:
        TransactionStateError: the transaction is prepared already: one half holds all of its messages.
        MessageRejectedError: see `validate_message` and `require_order_key`; or the messages are too many.
        ConfigError: the message's immunity leaves no room for the backend's delivery timeout.
    """
    if transaction.phase is not Phase.OPEN:
        raise TransactionStateError(
            f"transaction {id_text(transaction.identity)} is {transaction.phase.value}; "
            "publish before prepare, or begin another one"
        )
    is_delayed = validate_message(message)
    if len(transaction.messages) >= MESSAGE_COUNT_MAX:
        raise MessageRejectedError(
            f"a transaction holds at most {MESSAGE_COUNT_MAX} messages", topic=message.topic, reason="count"
        )
    if is_delayed:
        require_delay(transaction, message)
    add(transaction, message)
    if is_delayed:
        note_delay(transaction, message)


def add(transaction: LocalTransaction, message: Message) -> None:
    """Add a message that `validate_message` has seen to a transaction that takes it.

    Raises:
        ConfigError, MessageRejectedError: see `require_room` and `require_order_key`.
    """
    context, headers, key = transaction.context, message.headers, message.key
    if message.order_key is not None:
        key = require_order_key(transaction, message)
    if message.check_policy is not None:
        require_room(message.check_policy, context.margin_s)
        transaction.policies += (message.check_policy,)
    if message.order_key is not None:
        transaction.order_key = message.order_key
    headers = dict(headers) if headers else {}
    if context.observer is not None:
        headers = {**context.observer.headers(transaction.transaction_id), **headers}
    transaction.messages.append(TargetMessage(message.topic, key, message.body, headers))


def make_half(transaction: LocalTransaction) -> HalfRecord:
    """Set the encoded half and the immunity of *transaction*, and return the half.

    Raises:
        MessageRejectedError: the messages together are larger than the backend takes.
    """
    context, identity, messages = transaction.context, transaction.identity, transaction.messages
    envelope = _envelope(transaction)
    body = wire.encode_half(envelope)
    if len(body) > context.body_size_max:
        transaction.phase = Phase.FAILED
        raise _too_large(context, messages, body)
    transaction.half = half = HalfRecord(context.group, envelope.partition, identity, 0, body, messages)
    if context.release:
        transaction.is_by_owner = True
    return half


def make_halves(
    transactions: Sequence[LocalTransaction], messages: Sequence[TargetMessage]
) -> tuple[HalfColumns, dict[int, MessageRejectedError]]:
    """Make the halves of transactions of one producer with one message each, each as `make_half` would.

    All have the same fence and database. Returns the halves of those without an error, and by its place the error of
    each transaction that has none.
    """
    context, identities = transactions[0].context, [*map(_identity_of, transactions)]
    partitions = partitions_of(identities, context.partition_count)
    unlike = any(map(_policies_of, transactions))
    if context.release:
        for place, transaction in enumerate(transactions):
            transaction.is_by_owner = True
            if transaction.order_key:
                partitions[place], unlike = transaction.partition, True
    plain = msgspec.structs.replace(transactions[0], policies=(), order_key=b"")
    bodies = wire.HalfTemplate(_envelope(plain)).encode_each(identities, partitions, messages)
    if unlike:
        for place, transaction in enumerate(transactions):
            if transaction.policies or transaction.order_key:
                bodies[place] = wire.encode_half(_envelope(transaction))
    halves = HalfColumns(context.group, partitions, identities, bodies, messages)
    if max(map(len, bodies)) <= context.body_size_max:
        return halves, {}
    large = [place for place, body in enumerate(bodies) if len(body) > context.body_size_max]
    for place in large:
        transactions[place].phase = Phase.FAILED
    errors = {place: _too_large(context, messages[place : place + 1], bodies[place]) for place in large}
    return halves.take([place for place in range(len(bodies)) if place not in errors]), errors


def _too_large(context: ProducerContext, messages: Sequence[TargetMessage], body: bytes) -> MessageRejectedError:
    return MessageRejectedError(
        f"the messages of one transaction take {len(body)} bytes together; this backend takes "
        f"{context.body_size_max}; send less at once, or a reference to the data",
        topic=messages[0].topic,
        reason="size",
    )


def _envelope(transaction: LocalTransaction) -> Half:
    """Return the half, and set the immunity of *transaction*."""
    context = transaction.context
    immunity_s, interval_s, check_max = context.policy.immunity_s, 0.0, 0  # on the wire: the checker's own
    if transaction.policies:
        policy = transaction_policy(transaction.policies)
        immunity_s, interval_s, check_max = policy.immunity_s, policy.interval_s, policy.check_max
    transaction.immunity_s = immunity_s
    return Half(
        wire.OWNER_VERSION if context.release else wire.VERSION,
        transaction.identity,
        context.group,
        transaction.partition,
        0,
        context.clock.wall_ms(),
        round(immunity_s * 1000),
        round(interval_s * 1000),
        check_max,
        transaction.fenced,
        context.by,
        transaction.messages,
        database=transaction.database,
        release=context.release,
        may_lack_row=transaction.may_lack_row,
        order_key=transaction.order_key,
    )


def row_digest(transaction: LocalTransaction) -> bytes:
    """Return the digest for the fence row of *transaction*; empty if its fence takes none."""
    fence = transaction.context.fence
    return digest_of(transaction.messages) if fence is not None and fence.digests else b""
