"""One step of a pipeline: it takes an order, packs a parcel in its database, and announces the parcel.

The order's id, the parcel and its announcement are one database transaction: all or nothing, once for each order.
"""

from typing import Any, Final

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine

import txcore

GROUP: Final = "packing"
CREATE: Final = "CREATE TABLE IF NOT EXISTS parcels (order_number VARCHAR(40))"
INSERT: Final = text("INSERT INTO parcels VALUES (:order_number)")


def packed(order: str) -> txcore.Message:
    """Return the announcement of a parcel."""
    return txcore.Message("parcels.packed", order.encode(), key=order.encode())


def create_tables(engine: Engine) -> None:
    """Make the parcels, the inbox and the fence."""
    txcore.SqlFence(engine).create()
    txcore.Inbox(engine).create()
    with engine.begin() as connection:
        connection.execute(text(CREATE))


def pack(producer: txcore.TransactionProducer, engine: Engine, inbox: txcore.Inbox, message: Any, order: str) -> None:
    """Pack the order in *message*, which is in the form in which the broker's client returns it.

    Acknowledge it after the return. After an error do not: it comes again, and is new or known as the database decided.
    """
    with producer.transaction(engine) as tx, inbox.receive(tx.connection, message) as is_first:
        if is_first:
            tx.connection.execute(INSERT, {"order_number": order})
            tx.publish(packed(order))


async def create_tables_async(engine: AsyncEngine) -> None:
    """Make the same tables by an asynchronous engine."""
    await txcore.AsyncSqlFence(engine).create()
    await txcore.AsyncInbox(engine).create()
    async with engine.begin() as connection:
        await connection.execute(text(CREATE))


async def pack_async(
    producer: txcore.AsyncTransactionProducer, engine: AsyncEngine, inbox: txcore.AsyncInbox, message: Any, order: str
) -> None:
    """Do the same in an asyncio task."""
    async with producer.transaction(engine) as tx, inbox.receive(tx.connection, message) as is_first:
        if is_first:
            await tx.connection.execute(INSERT, {"order_number": order})
            tx.publish(packed(order))
