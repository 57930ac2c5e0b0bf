"""FastAPI: a database transaction with its messages as a dependency of an endpoint.

InTransaction = Annotated[AsyncTransaction, transaction_of(producer, engine)]

@app.post("/orders", status_code=201)
async def place(order: Order, tx: InTransaction) -> None:
    await tx.connection.execute(insert_order, ...)
    tx.publish(Message("orders.created", body))
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import Depends

from txcore.producer.asynchronous import AsyncTransaction, AsyncTransactionProducer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def transaction_of(producer: AsyncTransactionProducer, engine: AsyncEngine) -> Any:
    """Return the dependency: each request gets a transaction of its own.

    It ends, half, COMMIT and targets, before the response leaves: a client that reads 201 can rely on it. (A dependency
    with FastAPI's usual scope would commit after the response.) An exception of the endpoint, HTTPException too, rolls
    back. The errors of the end go to the application's exception handlers: NotSentError and HalfUnknownError mean that
    nothing was committed, CommitUnknownError that the outcome is not known yet.
    """

    async def transaction() -> AsyncIterator[AsyncTransaction]:
        async with producer.transaction(engine) as tx:
            yield tx

    return Depends(transaction, scope="function")
