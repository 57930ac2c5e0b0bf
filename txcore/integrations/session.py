"""SQLAlchemy's Session: publish inside it; messages are prepared just before its COMMIT, released right after it.

publisher = SessionPublisher(producer)
Sessions = sessionmaker(engine)
publisher.watch(Sessions)

with Sessions.begin() as session:
    session.add(order)
    session.flush()                        # if the message needs the order's number
    publisher.publish(session, Message("orders.created", body))

For AsyncSessions see `txcore.integrations.async_session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from txcore.errors import TransactionStateError, UsageError
from txcore.integrations.releasing import release
from txcore.message import Message, validate_message
from txcore.producer.asynchronous import AsyncTransaction, AsyncTransactionProducer
from txcore.producer.producer import Transaction, TransactionProducer
from txcore.results import EndResult
from txcore.sqlfence.savepoints import open_savepoints, watch_savepoints

_KEY: Final = "txcore"


@dataclass(slots=True)
class _Outgoing:
    """The messages of one Session's transaction; each with the savepoints in which it was published."""

    messages: list[tuple[Message, tuple[SessionTransaction, ...]]] = field(default_factory=list)
    transaction: Transaction | AsyncTransaction | None = None
    result: EndResult | None = None


class Watching:
    """The steps of both kinds of publisher, as handlers of a Session's events."""

    def __init__(self, producer: TransactionProducer | AsyncTransactionProducer) -> None:
        self._producer = producer
        self._watched: list[Any] = []

    def _watch(self, target: Any) -> None:
        if target not in self._watched:
            self._watched.append(target)
            event.listen(target, "after_begin", _after_begin)
            event.listen(target, "before_commit", self._before_commit)
            event.listen(target, "after_commit", self._after_commit)
            event.listen(target, "after_soft_rollback", _after_soft_rollback)
            event.listen(target, "after_transaction_end", _after_transaction_end)

    def _publish(self, own: Session, message: Message) -> None:
        if not any(own is each or (isinstance(each, type) and isinstance(own, each)) for each in self._watched):
            raise UsageError("this Session is not watched, so the message would never be sent; call watch() first")
        if own.twophase:
            raise UsageError("a two-phase Session commits elsewhere than it prepares, so it cannot carry messages")
        validate_message(message)
        savepoints = []
        nested = own.get_nested_transaction()
        while nested is not None and nested.nested:
            savepoints.append(nested)
            nested = nested.parent
        outgoing = own.info.get(_KEY)
        if outgoing is None or outgoing.result is not None:
            outgoing = own.info[_KEY] = _Outgoing()
        outgoing.messages.append((message, tuple(savepoints)))

    def _before_commit(self, session: Session) -> None:
        """Make the half durable; an exception here keeps the Session from committing."""
        outgoing: _Outgoing | None = session.info.get(_KEY)
        if outgoing is None or outgoing.result is not None or not outgoing.messages:
            return
        if session.in_nested_transaction():
            return  # only a savepoint is released
        if outgoing.transaction is not None:
            raise TransactionStateError("this Session's messages could not be prepared: roll it back, nothing is sent")
        session.flush()  # the database refuses a change before the half is stored
        transaction = outgoing.transaction = self._producer.begin()
        for message, _ in outgoing.messages:
            transaction.publish(message)
        _release_savepoints(session.connection())
        self._prepare(transaction, session)

    def _after_commit(self, session: Session) -> None:
        outgoing: _Outgoing | None = session.info.get(_KEY)
        if outgoing is not None and outgoing.transaction is not None and outgoing.result is None:
            outgoing.result = self._release(outgoing.transaction)

    def _prepare(self, transaction: Any, session: Session) -> None:
        raise NotImplementedError

    def _release(self, transaction: Any) -> EndResult:
        raise NotImplementedError


class SessionPublisher(Watching):
    """Connects a producer with Sessions. Thread safe; each Session belongs to one thread, as always.

    The message shares the fate of the Session's transaction: a rollback drops it, a rollback to a savepoint drops the
    messages published after that savepoint. When the database's COMMIT itself fails, it may have applied; SQLAlchemy's
    error is raised unchanged, and the check decides. Two-phase Sessions are refused.

    Args:
        producer: A producer with a fence in the database that the Sessions write to.
    """

    def __init__(self, producer: TransactionProducer) -> None:
        super().__init__(producer)

    def watch(self, sessions: sessionmaker[Any] | scoped_session[Any] | type[Session] | Session) -> None:
        """Listen to a sessionmaker, a scoped_session, a Session class or one Session; idempotent."""
        if isinstance(sessions, scoped_session):
            sessions = sessions.session_factory
        self._watch(sessions.class_ if isinstance(sessions, sessionmaker) else sessions)

    def publish(self, session: Session | scoped_session[Any], message: Message) -> None:
        """Send *message* if, and only if, the Session's transaction commits. Nothing is sent by this call.

        Raises:
            MessageRejectedError: no backend may accept it. Limits of the broker are found at the Session's COMMIT.
            UsageError: the Session is not watched, or is an asynchronous or two-phase one.
        """
        own = session() if isinstance(session, scoped_session) else session
        if not isinstance(own, Session):
            raise UsageError(
                f"publish takes a synchronous Session, not {type(own).__qualname__}: with an AsyncSession, use "
                "txcore.integrations.async_session.AsyncSessionPublisher"
            )
        self._publish(own, message)

    def result(self, session: Session | scoped_session[Any]) -> EndResult | None:
        """Return the result of the Session's last transaction that published; None before its end, or without one."""
        return result_of(session.info)

    def _prepare(self, transaction: Transaction, session: Session) -> None:
        transaction.prepare(session)

    def _release(self, transaction: Transaction) -> EndResult:
        return release(transaction)


def result_of(info: Mapping[str, Any]) -> EndResult | None:
    """Return the result in a Session's `info`."""
    outgoing: _Outgoing | None = info.get(_KEY)
    return outgoing.result if outgoing is not None else None


def _after_soft_rollback(session: Session, ended: SessionTransaction) -> None:
    """Drop the messages that were published after a savepoint."""
    outgoing: _Outgoing | None = session.info.get(_KEY)
    if outgoing is not None:
        outgoing.messages = [each for each in outgoing.messages if ended not in each[1]]


def _after_transaction_end(session: Session, ended: SessionTransaction) -> None:
    """Drop the unsent messages after any end of the Session's transaction: rolled back, or only closed."""
    outgoing: _Outgoing | None = session.info.get(_KEY)
    if ended.parent is None and outgoing is not None and outgoing.result is None:
        del session.info[_KEY]


def _after_begin(_session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    watch_savepoints(connection.engine)


def _release_savepoints(connection: Connection) -> None:
    """Close savepoints to which the Session has rolled back: SQLAlchemy has dropped them, the database has not.

    A fence row after one would not belong to the top-level transaction.
    """
    names = open_savepoints(connection)
    if names:  # releasing the first one releases all that were opened after it
        connection.execute(text(f"RELEASE SAVEPOINT {names[0]}"))
