"""The producer for asyncio: the same flows as `producer`, run by the asynchronous driver. No protocol here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from txcore.clock import Clock, Randomness
from txcore.errors import ClosedError, TransactionStateError
from txcore.fence import Fence
from txcore.listener import AsyncTransactionListener
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.port import Backend
from txcore.producer import transaction_flow as flow
from txcore.producer.finish import end
from txcore.producer.handles import attach, handle_of
from txcore.producer.listener_style import send_in_transaction
from txcore.producer.producer import HALF_DEADLINE_S, make_context
from txcore.producer.transaction import LocalTransaction, begin, publish
from txcore.records import OpKind
from txcore.results import EndResult, TransactionSendResult
from txcore.runtime.commands import Flow
from txcore.runtime.drivers import AsyncBridge, run_async

R = TypeVar("R")


class AsyncTransaction:
    """`Transaction` for asyncio."""

    def __init__(self, producer: AsyncTransactionProducer, core: LocalTransaction) -> None:
        self._producer = producer
        self._core = core

    @property
    def transaction_id(self) -> bytes:
        """See `Transaction.transaction_id`."""
        return self._core.transaction_id

    @property
    def connection(self) -> Any:
        """See `Transaction.connection`."""
        return self._core.connection

    @property
    def result(self) -> EndResult | None:
        """See `Transaction.result`."""
        return self._core.result

    def publish(self, message: Message) -> None:
        """See `Transaction.publish`."""
        publish(self._core, message)

    async def prepare(self, connection: Any = None) -> None:
        """See `Transaction.prepare`."""
        await self._producer.run(flow.prepare(self._core, connection))

    async def commit(self) -> EndResult:
        """See `Transaction.commit`."""
        return await self._producer.finish(end(self._core, OpKind.COMMIT))

    async def rollback(self) -> EndResult:
        """See `Transaction.rollback`."""
        return await self._producer.finish(end(self._core, OpKind.ROLLBACK))

    def handle(self) -> str:
        """See `Transaction.handle`."""
        return handle_of(self._core)


class AsyncTransactionProducer:
    """`TransactionProducer` for asyncio; for the event loop in which it is first used.

    The constructor joins the group and blocks for one round trip; make it before the loop serves traffic.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        fence: Fence | None = None,
        listener: AsyncTransactionListener | None = None,
        policy: CheckPolicy | None = None,
        partition_count: int | None = None,
        unsettled_max: int = 10_000,
        mode: str = "half",
        half_deadline_s: float = HALF_DEADLINE_S,
        listener_fences: bool = False,
        plugins: Sequence[object] = (),
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self._context = make_context(
            backend,
            group,
            fence=fence,
            policy=policy,
            partition_count=partition_count,
            mode=mode,
            half_deadline_s=half_deadline_s,
            listener_fences=listener_fences,
            plugins=plugins,
            clock=clock,
            randomness=randomness,
        )
        self._listener = listener
        self._backend = backend
        self._slots = asyncio.Semaphore(unsettled_max)
        self._bridge: AsyncBridge | None = None
        self._is_closed = False

    def begin(self) -> AsyncTransaction:
        """See `TransactionProducer.begin`."""
        self._require_open()
        return AsyncTransaction(self, begin(self._context))

    def transaction(self, engine: Any) -> AsyncDatabaseTransaction:
        """See `TransactionProducer.transaction`; *engine* is an AsyncEngine."""
        self._require_open()
        return AsyncDatabaseTransaction(self, begin(self._context), engine)

    async def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """See `TransactionProducer.send_message_in_transaction`."""
        self._require_open()
        if self._listener is None:
            raise TransactionStateError("the listener style needs a producer made with listener=…")
        transaction = begin(self._context)
        return await self.run(send_in_transaction(transaction, self._listener, message, arg))

    async def send_many(self, messages: Iterable[tuple[Message, Any]]) -> list[TransactionSendResult]:
        """See `TransactionProducer.send_many`."""
        return await asyncio.gather(*(self._send_one(message, arg) for message, arg in messages))

    async def _send_one(self, message: Message, arg: Any) -> TransactionSendResult:
        try:
            return await self.send_message_in_transaction(message, arg)
        except Exception as error:  # noqa: BLE001 - returned, so that one failure hides no other's result
            identity = getattr(error, "transaction_id", b"")
            return TransactionSendResult(identity, LocalTransactionState.UNKNOWN, None, error)

    def attach(self, handle: str) -> AsyncTransaction:
        """See `TransactionProducer.attach`."""
        self._require_open()
        return AsyncTransaction(self, attach(self._context, handle))

    async def close(self) -> None:
        """See `TransactionProducer.close`."""
        self._is_closed = True

    async def run(self, step: Flow[R]) -> R:
        """Run one flow in the current task, held back while too many are under way."""
        async with self._slots:
            return await run_async(step, self._running_bridge())

    async def finish(self, step: Flow[R]) -> R:
        """See `TransactionProducer.finish`; nothing cancels it before the flow has begun."""
        if self._slots.locked():
            return await run_async(step, self._running_bridge())
        return await self.run(step)

    def _running_bridge(self) -> AsyncBridge:
        if self._bridge is None:
            self._bridge = AsyncBridge(asyncio.get_running_loop(), self._backend)
        return self._bridge

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this producer is closed")


class AsyncDatabaseTransaction(AbstractAsyncContextManager[AsyncTransaction]):
    """The database style: `async with producer.transaction(engine) as tx`."""

    def __init__(self, producer: AsyncTransactionProducer, core: LocalTransaction, engine: Any) -> None:
        self._producer = producer
        self._core = core
        self._engine = engine

    async def __aenter__(self) -> AsyncTransaction:
        await self._producer.run(flow.database_begin(self._core, self._engine))
        return AsyncTransaction(self._producer, self._core)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._producer.finish(flow.database_finish(self._core))
        else:
            await self._producer.finish(flow.database_abort(self._core))
