"""Rollbacks: nothing is ever delivered, and with a fence no rollback is reported before it is certain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from txcore import EndState, Message
from txcore.fence import FenceAnswer
from txcore.records import OpKind
from txcore_conformance.kit import COMMIT, ROLLBACK, Answers, Kit


def test_a_rolled_back_half_is_never_delivered(kit: Kit, topic: str) -> None:
    """`rollback` writes its op, publishes no target and leaves no half pending."""
    transaction = kit.producer().begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    assert EndState.ACCEPTED is transaction.rollback().state
    kit.history.rolled_back(transaction.transaction_id)
    assert EndState.ALREADY_DONE is transaction.rollback().state
    assert EndState.CONFLICT is transaction.commit().state
    assert [] == kit.bodies(topic)
    assert OpKind.ROLLBACK == kit.journey(transaction.transaction_id).final
    assert [] == kit.operator().pending()


def test_a_listener_that_answers_rollback_delivers_nothing(kit: Kit, topic: str) -> None:
    """A listener's ROLLBACK delivers nothing, after a single send and among commits of `send_many`."""
    producer = kit.producer(Answers(local=ROLLBACK))
    result = producer.send_message_in_transaction(Message(topic, b"single"))
    assert (ROLLBACK, EndState.ACCEPTED) == (result.local_transaction_state, result.end.state if result.end else None)
    results = producer.send_many(
        [(Message(topic, b"%02d" % number), COMMIT if number % 2 else ROLLBACK) for number in range(40)]
    )
    for each in results:
        (kit.history.committed if each.local_transaction_state is COMMIT else kit.history.rolled_back)(
            each.transaction_id
        )
    assert [b"%02d" % number for number in range(1, 40, 2)] == sorted(kit.bodies(topic))


def test_an_exception_in_the_block_sends_nothing(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """After an exception in the block the database rolls back and no half is written."""
    import sqlalchemy  # noqa: PLC0415

    identity = None

    def run() -> None:
        nonlocal identity
        with kit.producer(fence=fence).transaction(engine) as transaction:
            identity = transaction.transaction_id
            transaction.connection.execute(sqlalchemy.text("INSERT INTO orders VALUES ('a')"))
            transaction.publish(Message(topic, b"body"))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run()
    assert identity is not None
    assert [] == kit.journey(identity).halves
    assert [] == kit.bodies(topic)
    with engine.connect() as connection:
        assert 0 == connection.exec_driver_sql("SELECT count(*) FROM orders").scalar()


def test_a_fenced_rollback_leaves_a_tombstone(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """`rollback` of a fenced half is ACCEPTED only because the database can no longer commit it."""
    transaction = kit.producer(fence=fence).begin()
    transaction.publish(Message(topic, b"body"))
    with engine.connect() as connection:
        connection.begin()
        transaction.prepare(connection)
        connection.rollback()
    assert EndState.ACCEPTED is transaction.rollback().state
    identity = transaction.transaction_id
    kit.history.rolled_back(identity)
    assert FenceAnswer.ROLLBACK is fence.peek([identity])[identity].answer
    assert [] == kit.bodies(topic)


def test_a_fenced_rollback_of_a_committed_transaction_is_a_conflict(
    kit: Kit, topic: str, engine: Any, fence: Any
) -> None:
    """`rollback` after the database's COMMIT returns CONFLICT and writes no op, and the check delivers."""
    transaction = kit.hasty_producer(fence=fence).begin()
    transaction.publish(Message(topic, b"body"))
    with engine.connect() as connection:
        connection.begin()
        transaction.prepare(connection)
        connection.commit()
    assert EndState.CONFLICT is transaction.rollback().state
    kit.history.committed(transaction.transaction_id)
    assert [] == kit.journey(transaction.transaction_id).ops
    kit.sweep(kit.checker(fence=fence))
    kit.history.at_rest = True
    assert [b"body"] == kit.bodies(topic)


def test_async_rollbacks_deliver_nothing(kit: Kit, topic: str) -> None:
    """The asynchronous primitives roll back like the blocking ones."""
    producer = kit.async_producer()

    async def run() -> EndState:
        transaction = producer.begin()
        transaction.publish(Message(topic, b"body"))
        await transaction.prepare()
        return (await transaction.rollback()).state

    assert EndState.ACCEPTED is asyncio.run(run())
    assert [] == kit.bodies(topic)
