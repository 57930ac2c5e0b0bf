"""The end after a framework's COMMIT: its failure must not look like a failure of the committed transaction."""

from __future__ import annotations

from txcore.errors import TxcoreError
from txcore.producer.asynchronous import AsyncTransaction
from txcore.producer.producer import Transaction
from txcore.results import EndResult, EndState


def release(transaction: Transaction) -> EndResult:
    """Publish the targets of a prepared transaction whose local transaction has committed.

    Raises no TxcoreError: instead the result is UNKNOWN with that error, and the checker delivers.
    """
    try:
        return transaction.commit()
    except TxcoreError as error:
        return EndResult(EndState.UNKNOWN, transaction.transaction_id, error)


async def release_async(transaction: AsyncTransaction) -> EndResult:
    """`release` for an asynchronous producer."""
    try:
        return await transaction.commit()
    except TxcoreError as error:
        return EndResult(EndState.UNKNOWN, transaction.transaction_id, error)
