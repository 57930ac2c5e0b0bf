"""The blocks of producers: joining the group, and the calls that are under way at the end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest
import sqlalchemy

import txcore
from txcore import (
    BackendUnavailableError,
    ClosedError,
    ConfigError,
    EndState,
    HalfRefusedError,
    Message,
    NotJoinedError,
    NotSentError,
    SqlFence,
)
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.producer import producer as producers

COMMIT = txcore.LocalTransactionState.COMMIT


class LateGroup(MemoryBackend):
    """A backend that answers about its group when the test says so."""

    def __init__(self):
        super().__init__(MemoryBroker())
        self.answer = Future()
        self.answer.set_running_or_notify_cancel()
        self.asked_count = 0

    def ensure_group(self, group, partition_count=None):
        super().ensure_group(group, partition_count)
        self.asked_count += 1
        return self.answer


class Held(txcore.TransactionListener):
    """A listener that commits when the test says so."""

    def __init__(self):
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def execute_local_transaction(self, message, arg):
        self.has_begun.set()
        assert self.may_end.wait(30)
        return COMMIT

    def check_local_transaction(self, half):
        return COMMIT


class HeldTask(txcore.AsyncTransactionListener):
    """The same for asyncio; to be made in its event loop."""

    def __init__(self):
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def execute_local_transaction(self, message, arg):
        self.has_begun.set()
        await self.may_end.wait()
        return COMMIT


def prepared(producer):
    """Return a transaction whose half is stored."""
    transaction = producer.begin()
    transaction.publish(Message("t", b"x"))
    transaction.prepare()
    return transaction


class TestJoining:
    def test_entering_awaits_the_group(self):
        """`async with` waits for the group, the event loop runs meanwhile, and the first transaction asks no more."""
        backend = LateGroup()

        async def main():
            producer = txcore.AsyncTransactionProducer(backend, "g")
            assert 0 == backend.asked_count
            entering = asyncio.ensure_future(producer.__aenter__())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not entering.done()
            backend.answer.set_result(1)
            async with await entering as entered:
                assert entered is producer
                transaction = producer.begin()
                transaction.publish(Message("t", b"x"))
                await transaction.prepare()
                await transaction.commit()

        asyncio.run(main())
        assert 2 == backend.asked_count  # the test has entered twice
        assert [b"x"] == [each.body for each in backend.broker.topics["t"]]

    def test_without_async_with_the_first_transaction_joins(self):
        """A producer that was not entered joins its group with its first transaction, once."""
        backend = LateGroup()
        backend.answer.set_result(1)

        async def main():
            producer = txcore.AsyncTransactionProducer(backend, "g")
            for _ in range(2):
                transaction = producer.begin()
                transaction.publish(Message("t", b"x"))
                await transaction.prepare()
                await transaction.commit()

        asyncio.run(main())
        assert 1 == backend.asked_count

    def test_tasks_that_begin_together_ask_once(self):
        """Many first transactions at once join the group with one question to the broker."""
        backend = LateGroup()

        async def send(producer):
            transaction = producer.begin()
            transaction.publish(Message("t", b"x"))
            await transaction.prepare()
            await transaction.commit()

        async def main():
            producer = txcore.AsyncTransactionProducer(backend, "g")
            tasks = [asyncio.ensure_future(send(producer)) for _ in range(20)]
            await asyncio.sleep(0)
            backend.answer.set_result(1)
            await asyncio.gather(*tasks)

        asyncio.run(main())
        assert 1 == backend.asked_count

    def test_another_group_is_refused_on_entering(self):
        """Entering raises ConfigError for a group with other settings."""
        backend = MemoryBackend(MemoryBroker())
        backend.ensure_group("g", 1).result(1)

        async def main():
            async with txcore.AsyncTransactionProducer(backend, "g", partition_count=2):
                pass

        with pytest.raises(ConfigError, match="has 1 partitions, not 2"):
            asyncio.run(main())

    def test_a_broker_without_an_answer_is_named(self, monkeypatch):
        """Both kinds of producer raise NotJoinedError when the broker does not answer about the group."""
        monkeypatch.setattr(producers, "GROUP_TIMEOUT_S", 0.01)

        async def main():
            async with txcore.AsyncTransactionProducer(LateGroup(), "g"):
                pass

        for make in (lambda: txcore.TransactionProducer(LateGroup(), "g"), lambda: asyncio.run(main())):
            text = r"cannot join group 'g': no answer within 0.01 s; nothing was sent"
            with pytest.raises(NotJoinedError, match=text) as raised:
                make()
            assert isinstance(raised.value, NotSentError)
            assert isinstance(raised.value, BackendUnavailableError)


class TestUnderWay:
    @pytest.mark.parametrize("send", ["send_message_in_transaction", "send_many"])
    def test_the_end_of_the_block_waits_for_the_calls_of_other_threads(self, send):
        """A call that is under way ends before the backend is closed, so its message is sent."""
        broker, listener = MemoryBroker(), Held()
        with MemoryBackend(broker) as backend, txcore.TransactionProducer(backend, "g", listener=listener) as producer:
            message = Message("t", b"x")
            call = producer.send_message_in_transaction if send != "send_many" else producer.send_many
            argument = message if send != "send_many" else [(message, None)]
            thread = threading.Thread(target=call, args=(argument,))
            thread.start()
            assert listener.has_begun.wait(30)
            threading.Timer(0.05, listener.may_end.set).start()
        assert [b"x"] == [each.body for each in broker.topics["t"]]
        thread.join(30)

    def test_an_end_without_a_place_is_waited_for(self, monkeypatch):
        """The end of a transaction is never held back for want of a place; closing waits for it all the same."""
        backend = MemoryBackend(MemoryBroker())
        producer = txcore.TransactionProducer(backend, "g", unsettled_max=1)
        release, has_begun, may_end = backend.release, threading.Event(), threading.Event()

        def held(batch):
            has_begun.set()
            assert may_end.wait(30)
            release(batch)

        transaction = prepared(producer)
        monkeypatch.setattr(backend, "release", held)
        assert producer._places.take(0)
        thread = threading.Thread(target=transaction.commit)
        thread.start()
        assert has_begun.wait(30)
        producer._places.give_back()
        assert not producer.close(0.05)
        may_end.set()
        assert producer.close()
        assert EndState.ACCEPTED is transaction.result.state
        thread.join(30)

    def test_an_end_without_a_place_is_waited_for_by_asyncio(self, monkeypatch):
        """The same for asyncio."""
        backend, batches = MemoryBackend(MemoryBroker()), []

        async def main():
            producer = txcore.AsyncTransactionProducer(backend, "g", unsettled_max=1)
            transaction = producer.begin()
            transaction.publish(Message("t", b"x"))
            await transaction.prepare()
            release = backend.release
            monkeypatch.setattr(backend, "release", batches.append)
            async with producer._slots:
                ending = asyncio.ensure_future(transaction.commit())
                while not batches:  # noqa: ASYNC110 - no event follows the handing over
                    await asyncio.sleep(0)
            assert not await producer.close(0.05)
            release(batches[0])
            assert await producer.close()
            assert EndState.ACCEPTED is (await ending).state

        asyncio.run(main())

    def test_the_end_of_the_block_waits_for_the_calls_of_other_tasks(self):
        """The same for asyncio, whose event loop runs the calls meanwhile."""
        broker = MemoryBroker()

        async def main():
            listener = HeldTask()
            async with (
                MemoryBackend(broker) as backend,
                txcore.AsyncTransactionProducer(backend, "g", listener=listener) as producer,
            ):
                sending = asyncio.ensure_future(producer.send_message_in_transaction(Message("t", b"x")))
                await listener.has_begun.wait()
                asyncio.get_running_loop().call_later(0.05, listener.may_end.set)
            return (await sending).local_transaction_state

        assert COMMIT is asyncio.run(main())
        assert [b"x"] == [each.body for each in broker.topics["t"]]

    def test_closing_gives_up_in_time(self):
        """`close` returns False when a call is still under way after its timeout, and the call ends by itself."""
        listener = Held()
        producer = txcore.TransactionProducer(MemoryBackend(MemoryBroker()), "g", listener=listener)
        thread = threading.Thread(target=producer.send_message_in_transaction, args=(Message("t", b"x"),))
        thread.start()
        assert listener.has_begun.wait(30)
        assert not producer.close(0.02)
        listener.may_end.set()
        thread.join(30)
        assert producer.close(0.0)

        async def main():
            listener = HeldTask()
            producer = txcore.AsyncTransactionProducer(MemoryBackend(MemoryBroker()), "g", listener=listener)
            sending = asyncio.ensure_future(producer.send_message_in_transaction(Message("t", b"x")))
            await listener.has_begun.wait()
            assert not await producer.close(0.02)
            listener.may_end.set()
            await sending
            return await producer.close(0.0)

        assert asyncio.run(main())

    def test_a_block_that_outlives_its_backend_is_rolled_back(self, tmp_path):
        """A database block that is open when the backend closes ends with an error, and its rows are rolled back."""
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db")
        fence, broker = SqlFence(engine), MemoryBroker()
        fence.create()
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE orders (item TEXT)"))
        with MemoryBackend(broker) as backend, txcore.TransactionProducer(backend, "g", fence=fence) as producer:
            block = producer.transaction(engine)
            transaction = block.__enter__()
            transaction.connection.execute(sqlalchemy.text("INSERT INTO orders VALUES ('tea')"))
            transaction.publish(Message("t", b"tea"))
        with pytest.raises((HalfRefusedError, ClosedError)):
            block.__exit__(None, None, None)
        with engine.connect() as connection:
            assert [] == connection.execute(sqlalchemy.text("SELECT item FROM orders")).all()
        assert "t" not in broker.topics
        engine.dispose()

    def test_the_error_of_the_block_is_raised(self):
        """An error in the block of a producer and its backend is raised as it is."""
        with (
            pytest.raises(KeyError, match="mine"),
            txcore.connect("memory://") as backend,
            txcore.TransactionProducer(backend, "g"),
        ):
            raise KeyError("mine")
        with pytest.raises(ClosedError):
            backend.ensure_group("g")


@pytest.mark.parametrize(
    ("kind", "word"), [(txcore.TransactionProducer, "with"), (txcore.AsyncTransactionProducer, "async with")]
)
def test_forgotten_with_is_named_in_the_error(kind, word):
    """A block that was not entered has nothing of a transaction; the text gives the line to write."""
    producer = kind(MemoryBackend(MemoryBroker()), "g")
    with pytest.raises(AttributeError, match=rf"no 'publish' before .* write `{word} producer\.transaction"):
        producer.transaction().publish(Message("t", b"1"))
