"""The part of a transaction that an application holds and that needs no driver, the same for both kinds of producer."""

from __future__ import annotations

from typing import Generic, TypeVar

from txcore.errors import TransactionStateError
from txcore.ids import TransactionId
from txcore.message import Message
from txcore.producer.handles import handle_of
from txcore.producer.transaction import LocalTransaction, publish
from txcore.results import EndResult

ProducerT = TypeVar("ProducerT")
ConnectionT = TypeVar("ConnectionT")


class TransactionBase(Generic[ProducerT, ConnectionT]):
    """The part of a transaction that needs no driver, the same for both kinds of producer."""

    def __init__(self, producer: ProducerT, core: LocalTransaction, connection: ConnectionT | None = None) -> None:
        self._producer = producer
        self._core = core
        self._connection = connection

    def __repr__(self) -> str:
        """Return the class, the id and the phase."""
        return f"{type(self).__name__}({self.transaction_id!r}, {self._core.phase.value})"

    @property
    def transaction_id(self) -> TransactionId:
        """The id of this transaction everywhere: in headers, on the command line, in the console."""
        return self._core.transaction_id

    @property
    def connection(self) -> ConnectionT:
        """The open database connection of the database style, for your own statements.

        Raises:
            TransactionStateError: the transaction is in another style, which leaves the connection to you.
        """
        if self._connection is None:
            raise TransactionStateError(
                "only the block of `producer.transaction(engine)` has a connection; this transaction uses your own"
            )
        return self._connection

    @property
    def result(self) -> EndResult | None:
        """The result of the end; None before the end, and where nothing was published."""
        return self._core.result

    def publish(self, message: Message) -> None:
        """Add a message; any number, any topics. See `publish` for the exceptions."""
        publish(self._core, message)

    def handle(self) -> str:
        """Return a text with which another process of the group ends this prepared transaction.

        Raises:
            TransactionStateError: not prepared.
        """
        return handle_of(self._core)
