"""Commits in all three producer styles, blocking, pipelined and asynchronous: delivered once and unchanged."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from txcore import (
    AsyncTransactionListener,
    EndState,
    ListenerTransaction,
    LocalTransactionState,
    Message,
    TransactionListener,
    current_transaction,
)
from txcore.digest import digest_of, joined, message_digest
from txcore.records import OpKind
from txcore.wire import HEADER_ID, HEADER_KEY, OWN_HEADERS, target_id
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers, Kit


def test_a_prepared_half_is_invisible_until_commit(kit: Kit, topic: str) -> None:
    """Consumers see nothing of a half; after `commit` they see its message once."""
    transaction = kit.producer().begin()
    transaction.publish(Message(topic, b"body", b"key", {"trace": "1"}))
    assert [] == kit.bodies(topic)
    transaction.prepare()
    assert [] == kit.bodies(topic)
    assert EndState.ACCEPTED is transaction.commit().state
    kit.history.committed(transaction.transaction_id)
    assert [b"body"] == kit.bodies(topic)
    assert OpKind.COMMIT == kit.journey(transaction.transaction_id).final


def test_a_second_commit_is_already_done_and_adds_nothing(kit: Kit, topic: str) -> None:
    """A repeated `commit` of one transaction object returns ALREADY_DONE and publishes nothing."""
    transaction = kit.producer().begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    assert [EndState.ACCEPTED, EndState.ALREADY_DONE, EndState.ALREADY_DONE] == [
        transaction.commit().state for _ in range(3)
    ]
    assert EndState.CONFLICT is transaction.rollback().state
    assert [b"body"] == kit.bodies(topic)


def test_all_messages_of_a_transaction_arrive_in_their_topics(kit: Kit, topic: str) -> None:
    """One decision covers several messages for several topics; an atomic release keeps the order within a key."""
    other = kit.topic("other")
    transaction = kit.producer().begin()
    for number in range(10):
        transaction.publish(Message(topic if number % 2 else other, b"%d" % number, b"one key"))
    transaction.prepare()
    assert EndState.ACCEPTED is transaction.commit().state
    evens, odds = [b"%d" % number for number in range(0, 10, 2)], [b"%d" % number for number in range(1, 10, 2)]
    if kit.promises.atomic_release:
        assert (evens, odds) == (kit.bodies(other), kit.bodies(topic))
    assert (evens, odds) == (sorted(kit.bodies(other)), sorted(kit.bodies(topic)))


def test_many_transactions_are_delivered_once_each(kit: Kit, topic: str) -> None:
    """A hundred transactions over all partitions deliver a hundred messages, and no half is pending."""
    producer = kit.producer()
    for number in range(100):
        transaction = producer.begin()
        transaction.publish(Message(topic, b"%03d" % number))
        transaction.prepare()
        assert EndState.ACCEPTED is transaction.commit().state
        kit.history.committed(transaction.transaction_id)
    assert [b"%03d" % number for number in range(100)] == sorted(kit.bodies(topic))
    assert [] == kit.operator().pending()


def test_listener_style_runs_the_local_transaction_after_the_half(kit: Kit, topic: str) -> None:
    """The listener runs once, when the half is durable and nothing is delivered; COMMIT delivers."""
    seen: list[tuple[int, list[bytes]]] = []

    def local() -> LocalTransactionState:
        journey = kit.journey(current_transaction().transaction_id)
        seen.append((len(journey.halves), kit.bodies(topic)))
        return COMMIT

    listener = Answers(local=local)
    result = kit.producer(listener).send_message_in_transaction(Message(topic, b"body"))
    kit.history.committed(result.transaction_id)
    assert [(1, [])] == seen
    assert (COMMIT, EndState.ACCEPTED) == (result.local_transaction_state, result.end.state if result.end else None)
    assert [b"body"] == kit.bodies(topic)


def test_send_many_delivers_every_commit_in_order_of_results(kit: Kit, topic: str) -> None:
    """The pipelined path returns results in the order of the messages, each with its own end."""
    listener = Answers()
    answers = [COMMIT if number % 3 else UNKNOWN for number in range(60)]
    messages = [(Message(topic, b"%02d" % number), answer) for number, answer in enumerate(answers)]
    results = kit.hasty_producer(listener).send_many(messages)
    assert answers == [result.local_transaction_state for result in results]
    for result in results:
        if result.local_transaction_state is COMMIT:
            kit.history.committed(result.transaction_id)
    accepted = [result.end.state for result in results if result.end]
    expected = [message.body for message, answer in messages if answer is COMMIT]
    if set(accepted) != {EndState.ACCEPTED}:  # A slow machine: the hasty producer gave way.
        kit.sweep(kit.checker(Answers(COMMIT)))
        expected = [message.body for message, _ in messages]
    assert expected == sorted(kit.bodies(topic))


def test_send_many_of_a_thousand(kit: Kit, topic: str) -> None:
    """A thousand transactions in one call are all certain, if the machine is fast enough for the backend's timeout."""
    began_s = time.monotonic()
    results = kit.producer(Answers(local=COMMIT)).send_many((Message(topic, b"%04d" % n), None) for n in range(1_000))
    is_slow = time.monotonic() - began_s > kit.promises.release_time_max_s / 2
    expected = [b"%04d" % number for number in range(1_000)]
    uncertain = [result.end or result.error for result in results if not result.end or result.end.error]
    if is_slow and uncertain:  # Nothing is lost: the checker finishes these transactions, and may repeat them.
        assert {EndState.ACCEPTED, EndState.UNKNOWN} >= {each.end.state for each in results if each.end}
        sent = [message for message, each in zip(expected, results, strict=True) if each.end]
        kit.sweep(kit.checker(Answers(COMMIT)))
        assert set(sent) <= set(kit.bodies(topic))
        return
    assert {EndState.ACCEPTED} == {result.end.state if result.end else None for result in results}, uncertain[:3]
    assert expected == sorted(kit.bodies(topic))


class Coroutines(AsyncTransactionListener):
    """An asynchronous listener that answers its argument."""

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        """Answer *arg*."""
        await asyncio.sleep(0)
        return arg  # type: ignore[no-any-return]


def test_async_styles_deliver_like_the_blocking_ones(kit: Kit, topic: str) -> None:
    """Primitives, listener and `send_many` under asyncio end as in blocking code."""
    producer = kit.async_producer(listener=Coroutines())

    async def run() -> list[EndState | None]:
        transaction = producer.begin()
        transaction.publish(Message(topic, b"primitives"))
        await transaction.prepare()
        ends = [(await transaction.commit()).state, (await transaction.commit()).state]
        one = await producer.send_message_in_transaction(Message(topic, b"listener"), COMMIT)
        many = await producer.send_many([(Message(topic, b"many-%02d" % n), COMMIT) for n in range(30)])
        await producer.close()
        return [*ends, *[result.end.state if result.end else None for result in (one, *many)]]

    ends = asyncio.run(run())
    assert [EndState.ACCEPTED, EndState.ALREADY_DONE] == ends[:2]
    assert {EndState.ACCEPTED} == set(ends[2:])
    expected = [b"listener", *[b"many-%02d" % number for number in range(30)], b"primitives"]
    assert expected == sorted(kit.bodies(topic))


def test_concurrent_threads_share_one_producer(kit: Kit, topic: str) -> None:
    """Producers are thread safe: the commits of eight threads are delivered once each."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    producer = kit.producer(Answers(local=COMMIT))

    def send(number: int) -> EndState | None:
        result = producer.send_message_in_transaction(Message(topic, b"%03d" % number))
        return result.end.state if result.end else None

    with ThreadPoolExecutor(8) as pool:
        states = set(pool.map(send, range(160)))
    assert {EndState.ACCEPTED} == states
    assert [b"%03d" % number for number in range(160)] == sorted(kit.bodies(topic))


def test_another_connection_commits_by_handle(kit: Kit, topic: str) -> None:
    """A handle carries a prepared transaction to another connection; the first one's commit is then late."""
    transaction = kit.producer().begin()
    transaction.publish(Message(topic, b"body", b"key", {"a": b"\x00"}))
    transaction.prepare()
    other = kit.producer()
    assert EndState.ACCEPTED is other.attach(transaction.handle()).commit().state
    late = transaction.commit().state
    if kit.promises.atomic_release and kit.promises.resolution_is_unique:
        assert EndState.ALREADY_DONE is late
        assert [b"body"] == kit.bodies(topic)
    else:
        kit.history.causes[transaction.transaction_id] = 1
        assert {b"body"} == set(kit.bodies(topic))


def test_database_style_delivers_committed_messages(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """Leaving the block stores the half, commits the database and publishes."""
    import sqlalchemy  # noqa: PLC0415 - the fixture requires it

    producer = kit.producer(fence=fence)
    with producer.transaction(engine) as transaction:
        transaction.connection.execute(sqlalchemy.text("INSERT INTO orders VALUES ('a')"))
        transaction.publish(Message(topic, b"one"))
        transaction.publish(Message(topic, b"two"))
        assert [] == kit.bodies(topic)
    assert EndState.ACCEPTED is (transaction.result.state if transaction.result else None)
    kit.history.committed(transaction.transaction_id)
    assert [b"one", b"two"] == sorted(kit.bodies(topic))
    assert 1 == _count(engine)


def test_half_and_targets_are_those_of_the_rows_digest(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """What the broker returns has the digest that the database committed (R15)."""
    import sqlalchemy  # noqa: PLC0415 - the fixture requires it

    with kit.producer(fence=fence).transaction(engine) as transaction:
        transaction.publish(Message(topic, b"one", b"key", {"trace": "1"}))
        transaction.publish(Message(topic, b"\0\xff"))
    kit.history.committed(transaction.transaction_id)
    with engine.connect() as connection:
        digest = connection.execute(sqlalchemy.text("SELECT digest FROM txcore_tx")).scalar_one()
    assert [digest] == [digest_of(half.messages) for half in kit.journey(transaction.transaction_id).halves]
    targets = {}
    for each in kit.delivered(topic):
        headers = {name: value for name, value in each.headers.items() if name not in OWN_HEADERS}
        key = each.key if each.key is not None else each.headers.get(HEADER_KEY)
        name = each.headers[HEADER_ID]
        targets[name.decode() if isinstance(name, bytes) else name] = message_digest(topic, key, each.body, headers)
    assert digest == joined([targets[target_id(transaction.transaction_id, index)] for index in range(2)])


def test_a_block_that_publishes_nothing_leaves_no_trace(kit: Kit, engine: Any, fence: Any) -> None:
    """After a block without messages the database commits, the fence row is withdrawn, and no half is written."""
    with kit.producer(fence=fence).transaction(engine) as transaction:
        pass
    assert transaction.result is None
    assert [] == kit.journey(transaction.transaction_id).halves
    assert {} == dict(fence.stats().states)


def test_primitives_take_the_callers_connection(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """`prepare(connection)` fences the caller's own transaction; `commit` is refused until the transaction ends."""
    from txcore import TransactionStateError  # noqa: PLC0415

    transaction = kit.producer(fence=fence).begin()
    transaction.publish(Message(topic, b"body"))
    with engine.connect() as connection:
        connection.begin()
        transaction.prepare(connection)
        with pytest.raises(TransactionStateError):
            transaction.commit()
        connection.commit()
    assert EndState.ACCEPTED is transaction.commit().state
    kit.history.committed(transaction.transaction_id)
    assert [b"body"] == kit.bodies(topic)


def test_a_fenced_listener_commits_its_own_transaction(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """A listener that fences its transaction with `transaction.fence(connection)` gets it delivered."""

    class Fencing(TransactionListener):
        def execute(self, transaction: ListenerTransaction, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
            with engine.begin() as connection:
                transaction.fence(connection)
            return COMMIT

    result = kit.producer(Fencing(), fence=fence).send_message_in_transaction(Message(topic, b"body"))
    kit.history.committed(result.transaction_id)
    assert EndState.ACCEPTED is (result.end.state if result.end else None)
    assert [b"body"] == kit.bodies(topic)


def test_async_database_style_delivers(kit: Kit, topic: str, tmp_path: Path) -> None:
    """`async with producer.transaction(engine)` ends like the blocking block."""
    for package in ("aiosqlite", "greenlet"):
        pytest.importorskip(package, reason=f"the asynchronous database style on SQLite needs {package}")
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    from txcore import AsyncSqlFence  # noqa: PLC0415

    async def run() -> tuple[bytes, EndState | None]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}")
        fence = AsyncSqlFence(engine)
        await fence.create()
        producer = kit.async_producer(fence=fence)
        async with producer.transaction(engine) as transaction:
            await transaction.connection.execute(sqlalchemy.text("CREATE TABLE orders (name TEXT)"))
            transaction.publish(Message(topic, b"body"))
        await engine.dispose()
        return transaction.transaction_id, transaction.result.state if transaction.result else None

    identity, state = asyncio.run(run())
    kit.history.committed(identity)
    assert EndState.ACCEPTED is state
    assert [b"body"] == kit.bodies(topic)


def _count(engine: Any) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM orders").scalar())
