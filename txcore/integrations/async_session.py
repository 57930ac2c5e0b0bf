"""SQLAlchemy's AsyncSession: publish inside it; messages are prepared and released within its awaited COMMIT.

publisher = AsyncSessionPublisher(async_producer)
Sessions = async_sessionmaker(async_engine)
publisher.watch(Sessions)

async with Sessions.begin() as session:
    session.add(order)
    await session.flush()                  # if the message needs the order's number
    publisher.publish(session, Message("orders.created", body))

SQLAlchemy runs an AsyncSession's events in a greenlet, which may wait for a coroutine.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_session, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only

from txcore.errors import UsageError
from txcore.integrations.releasing import release_async
from txcore.integrations.session import Watching, result_of
from txcore.message import Message
from txcore.producer.asynchronous import AsyncTransaction, AsyncTransactionProducer
from txcore.results import EndResult


class AsyncSessionPublisher(Watching):
    """`SessionPublisher` for AsyncSessions; each belongs to one task, as always.

    The half is stored, and the message is released, within the awaited `commit` of the AsyncSession.

    Args:
        producer: An asynchronous producer with a fence in the database that the AsyncSessions write to.
    """

    def __init__(self, producer: AsyncTransactionProducer) -> None:
        super().__init__(producer)

    def watch(self, sessions: async_sessionmaker[Any] | async_scoped_session[Any] | AsyncSession) -> None:
        """Listen to an async_sessionmaker, an async_scoped_session or one AsyncSession; idempotent.

        An async_sessionmaker gets a `sync_session_class` of its own, so that no other Session is watched.
        """
        if isinstance(sessions, async_scoped_session):
            sessions = sessions.session_factory
        if isinstance(sessions, AsyncSession):
            self._watch(sessions.sync_session)
            return
        own = sessions.kw.get("sync_session_class", sessions.class_.sync_session_class)
        own = own.class_ if isinstance(own, sessionmaker) else own
        if own not in self._watched:
            own = type(own.__name__, (own,), {})
            sessions.configure(sync_session_class=own)
            self._watch(own)

    def publish(self, session: AsyncSession | async_scoped_session[Any], message: Message) -> None:
        """Send *message* if, and only if, the AsyncSession's transaction commits. Nothing is sent by this call.

        Raises:
            MessageRejectedError: no backend may accept it. Limits of the broker are found at the AsyncSession's COMMIT.
            UsageError: the AsyncSession is not watched, or is a synchronous or two-phase one.
        """
        own = session() if isinstance(session, async_scoped_session) else session
        if not isinstance(own, AsyncSession):
            raise UsageError(
                f"publish takes an AsyncSession, not {type(own).__qualname__}: with a Session, use a SessionPublisher"
            )
        self._publish(own.sync_session, message)

    def result(self, session: AsyncSession | async_scoped_session[Any]) -> EndResult | None:
        """Return the result of the last transaction that published; None before its end, or without one."""
        return result_of(session.info)

    def _prepare(self, transaction: AsyncTransaction, session: Session) -> None:
        await_only(transaction.prepare(cast("AsyncSession", async_session(session))))

    def _release(self, transaction: AsyncTransaction) -> EndResult:
        return await_only(release_async(transaction))
