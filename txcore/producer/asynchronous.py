"""The producer for asyncio: the same flows as `producer`, run by the asynchronous driver. No protocol here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from txcore.connections import AsyncDatabaseConnection
from txcore.fence import AsyncFence
from txcore.ids import TransactionId
from txcore.lifecycle import CLOSE_TIMEOUT_S
from txcore.listener import AsyncTransactionListener
from txcore.message import LocalTransactionState, Message
from txcore.message_table import CancelState, Mode
from txcore.producer import transaction_flow as flow
from txcore.producer.admission import POLL_S
from txcore.producer.arguments import BlockOnly
from txcore.producer.base import TransactionBase
from txcore.producer.finish import end
from txcore.producer.handles import attach, id_of
from txcore.producer.listener_style import send_in_transaction
from txcore.producer.producer import ProducerBase
from txcore.producer.transaction import LocalTransaction, begin
from txcore.records import OpKind
from txcore.results import EndResult, TransactionSendResult
from txcore.runtime.commands import Flow
from txcore.runtime.drivers import AsyncBridge, run_async

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine  # noqa: F401 - in a text

R = TypeVar("R")


class AsyncTransaction(TransactionBase["AsyncTransactionProducer", "AsyncConnection"]):
    """`Transaction` for asyncio."""

    async def prepare(self, connection: AsyncDatabaseConnection | None = None) -> None:
        """See `Transaction.prepare`."""
        await self._producer.run(flow.prepare(self._core, connection))

    async def commit(self) -> EndResult:
        """See `Transaction.commit`."""
        return await self._producer.finish(end(self._core, OpKind.COMMIT))

    async def rollback(self) -> EndResult:
        """See `Transaction.rollback`."""
        return await self._producer.finish(end(self._core, OpKind.ROLLBACK))


class AsyncTransactionProducer(ProducerBase[AsyncTransactionListener, AsyncFence]):
    """`TransactionProducer` for asyncio; for the event loop in which it is first used.

    Use it by `async with`, which joins the group and does not block the event loop; the end of the block is `close`.
    Without it the first transaction joins the group, and takes a round trip longer. Either raises as the constructor of
    `TransactionProducer` does.
    """

    _listener_type = AsyncTransactionListener
    _is_async = True
    _has_joined = False
    _asking: asyncio.Future[None] | None = None
    _under_way_count = 0

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self._unsettled_max)

    @cached_property
    def _bridge(self) -> AsyncBridge:
        return AsyncBridge(asyncio.get_running_loop(), self._backend)

    def begin(self) -> AsyncTransaction:
        """See `TransactionProducer.begin`."""
        return AsyncTransaction(self, begin(self._open_context()))

    def transaction(self, engine: AsyncEngine | None = None) -> AsyncDatabaseTransaction:
        """See `TransactionProducer.transaction`."""
        return AsyncDatabaseTransaction(self, begin(self._open_context()), engine)

    async def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """See `TransactionProducer.send_message_in_transaction`."""
        return await self.run(send_in_transaction(begin(self._context), self._require_listener(), message, arg))

    async def send_many(self, messages: Iterable[tuple[Message, Any]]) -> list[TransactionSendResult]:
        """See `TransactionProducer.send_many`."""
        return await asyncio.gather(*(self._send_one(message, arg) for message, arg in messages))

    async def _send_one(self, message: Message, arg: Any) -> TransactionSendResult:
        transaction = begin(self._context)
        try:
            return await self.run(send_in_transaction(transaction, self._require_listener(), message, arg))
        except Exception as error:  # noqa: BLE001 - returned, so that one failure hides no other's result
            return TransactionSendResult(transaction.transaction_id, LocalTransactionState.UNKNOWN, None, error)

    def attach(self, handle: str) -> AsyncTransaction:
        """See `TransactionProducer.attach`."""
        return AsyncTransaction(self, attach(self._open_context(), handle))

    async def cancel(self, transaction: TransactionId | str, connection: AsyncDatabaseConnection) -> CancelState:
        """See `TransactionProducer.cancel`."""
        context = self._context  # it need not have joined: no broker is asked
        return await run_async(flow.cancel(context, id_of(context, transaction), connection), self._bridge)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """See `TransactionProducer.close`; waits for the calls of other tasks."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while self._under_way_count:
            if loop.time() > until_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def __aenter__(self) -> Self:
        await self._join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _join(self) -> None:
        """Join the group; tasks that begin together ask the broker once."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(lambda _: setattr(self, "_asking", None))
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        if self._context.mode is not Mode.TABLE:
            with self._joined():
                answer = asyncio.wrap_future(self._joining.begin())
                self._context.partition_count = await asyncio.wait_for(answer, self._join_timeout_s)
        self._has_joined = True

    async def run(self, step: Flow[R]) -> R:
        """Run one flow in the current task, held back while too many are under way."""
        self._under_way_count += 1
        try:
            if not self._has_joined:
                await self._join()
            async with self._slots:
                return await run_async(step, self._bridge)
        finally:
            self._under_way_count -= 1

    async def finish(self, step: Flow[R]) -> R:
        """See `TransactionProducer.finish`; nothing cancels it before the flow has begun."""
        if not self._slots.locked():
            return await self.run(step)
        self._under_way_count += 1
        try:
            return await run_async(step, self._bridge)
        finally:
            self._under_way_count -= 1


class AsyncDatabaseTransaction(BlockOnly, AbstractAsyncContextManager[AsyncTransaction]):
    """The database style: `async with producer.transaction(engine) as tx`."""

    def __init__(self, producer: AsyncTransactionProducer, core: LocalTransaction, engine: AsyncEngine | None) -> None:
        self._producer = producer
        self._core = core
        self._engine = engine

    async def __aenter__(self) -> AsyncTransaction:
        connection = await self._producer.run(flow.database_begin(self._core, self._engine))
        return AsyncTransaction(self._producer, self._core, connection)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        step = flow.database_finish if kind is None else flow.database_abort
        await self._producer.finish(step(self._core))
