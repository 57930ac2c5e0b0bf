"""The producer's parts beside the flows: handles between processes, back-pressure, pipelining, closing."""

from __future__ import annotations

import asyncio
import base64
import threading
import weakref

import pytest

from txcore import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    BusyError,
    ClosedError,
    ConfigError,
    EndState,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    TransactionStateError,
    UsageError,
    current_transaction,
)
from txcore.errors import MessageRejectedError
from txcore.fence import FenceAnswer
from txcore.ids import partition_of
from txcore.memory import KAFKA_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.port import SettlesEach
from txcore.producer.send_many import FIRST_COUNT, WINDOW_COUNT
from txcore.producer.transaction import ENOUGH_COUNT
from txcore.records import LogKind, OpKind
from txcore.wire import decode_ops

COMMIT = LocalTransactionState.COMMIT


@pytest.fixture(params=[STRONG, KAFKA_LIKE], ids=["strong", "kafka-like"])
def broker(request):
    """A broker in memory, with and without unique resolutions."""
    return MemoryBroker(request.param)


@pytest.fixture
def backend(broker):
    """A client of the broker."""
    return MemoryBackend(broker)


@pytest.fixture
def producer(backend, clock):
    """A producer on a clock that the test controls."""
    return TransactionProducer(backend, "orders", partition_count=1, clock=clock)


def prepared(producer):
    """Return a prepared transaction."""
    transaction = producer.begin()
    transaction.publish(Message("t", b"body"))
    transaction.prepare()
    return transaction


class Committing(TransactionListener):
    """A listener that commits, or else returns or raises its argument."""

    def execute_local_transaction(self, message, arg):
        if isinstance(arg, Exception):
            raise arg
        return COMMIT if arg is None else arg


class TestHandles:
    def test_another_producer_of_the_group_ends_what_a_handle_names(self, broker, backend, producer, clock):
        """Another producer of the group needs only the text of a handle to end its transaction."""
        transaction = prepared(producer)
        other = TransactionProducer(MemoryBackend(broker), "orders", clock=clock)
        attached = other.attach(transaction.handle())
        assert transaction.transaction_id == attached.transaction_id
        assert EndState.ACCEPTED is attached.commit().state
        assert [b"body"] == [each.body for each in broker.topics["t"]]

    def test_a_handle_of_another_group_is_refused(self, backend, producer):
        """A handle of another group is refused with the names of both groups, and no half is sent."""
        other = TransactionProducer(backend, "payments")
        with pytest.raises(UsageError, match="of group 'orders', not 'payments'"):
            other.attach(prepared(producer).handle())

    @pytest.mark.parametrize(
        "damage", [lambda h: h[:-8], lambda h: ("B" if h[0] == "A" else "A") + h[1:], lambda h: "", lambda h: "ä" + h]
    )
    def test_a_damaged_handle_is_refused(self, producer, damage):
        """A handle that is cut, changed, empty or no text of ours is refused."""
        handle = prepared(producer).handle()
        with pytest.raises(UsageError, match="no transaction handle"):
            producer.attach(damage(handle))

    def test_every_changed_byte_is_noticed(self, producer):
        """A check sum over the whole handle detects a changed byte."""
        raw = base64.urlsafe_b64decode(prepared(producer).handle())
        for place in range(0, len(raw), 7):
            changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
            with pytest.raises(UsageError):
                producer.attach(base64.urlsafe_b64encode(changed).decode())

    @pytest.mark.parametrize("boot", ["boot-2", ""])
    def test_on_another_boot_nothing_is_published_where_the_store_does_not_arbitrate(self, producer, clock, boot):
        """After another boot clock readings do not compare, so the producer asks for a check (TOO_LATE)."""
        broker = MemoryBroker(KAFKA_LIKE)
        first = TransactionProducer(MemoryBackend(broker), "orders", partition_count=1, clock=clock)
        handle = prepared(first).handle()
        clock.boot = boot
        assert EndState.TOO_LATE is first.attach(handle).commit().state
        assert {} == broker.topics
        (record,) = broker.log("orders", LogKind.OP, 0)
        assert [OpKind.NUDGE] == [op.kind for op in decode_ops(record.body)]

    def test_only_a_prepared_transaction_has_a_handle(self, producer):
        """Neither an open nor an ended transaction has a handle."""
        with pytest.raises(TransactionStateError, match="only a prepared one"):
            producer.begin().handle()
        transaction = prepared(producer)
        transaction.commit()
        with pytest.raises(TransactionStateError, match="is ended"):
            transaction.handle()


class TestBackPressure:
    def test_a_caller_beyond_the_bound_is_refused_after_its_time(self, backend, broker):
        """A caller beyond the bound gets BusyError after its time-out, and its message is not sent."""
        gate = threading.Event()
        inside = threading.Event()

        class Waiting(TransactionListener):
            def execute_local_transaction(self, message, arg):
                inside.set()
                gate.wait(10)
                return COMMIT

        producer = TransactionProducer(backend, "g", listener=Waiting(), unsettled_max=1, busy_timeout_s=0.01)
        caller = threading.Thread(target=producer.send_message_in_transaction, args=(Message("t", b"1"),))
        caller.start()
        assert inside.wait(10)
        with pytest.raises(BusyError, match="nothing was sent"):
            producer.send_message_in_transaction(Message("t", b"2"))
        gate.set()
        caller.join()
        assert [b"1"] == [each.body for each in broker.topics["t"]]


class TestSendMany:
    def test_results_are_in_the_order_given(self, backend, broker):
        """More transactions than one window holds end each with its own result, in the order of their messages."""
        ids = {}

        class Noting(TransactionListener):
            def execute_local_transaction(self, message, arg):
                ids[message.body] = current_transaction().transaction_id
                return COMMIT

        producer = TransactionProducer(backend, "g", listener=Noting())
        bodies = [b"%04d" % n for n in range(WINDOW_COUNT + 500)]
        results = producer.send_many((Message("t", body), None) for body in bodies)
        assert {(COMMIT, EndState.ACCEPTED)} == {(each.local_transaction_state, each.end.state) for each in results}
        assert [ids[body] for body in bodies] == [each.transaction_id for each in results]
        assert WINDOW_COUNT + 500 == len(broker.topics["t"])

    @pytest.mark.parametrize(("count", "filled_count"), [(4, 1), (4 * ENOUGH_COUNT, 4)])
    def test_few_share_partitions_and_many_fill_all(self, backend, clock, count, filled_count):
        """A few transactions share one partition and many fill all, so that requests to the broker are full."""
        producer = TransactionProducer(backend, "g", listener=Committing(), clock=clock, partition_count=4)
        made = producer.send_many((Message("t", b"x"), None) for _ in range(count))
        assert filled_count == len({partition_of(each.transaction_id, 4) for each in made})

    def test_what_cannot_be_encoded_is_the_result_of_its_batch(self, backend, broker):
        """Messages that cannot be made to halves, for a reason that no rule names, have results; nothing was sent."""

        class Text(str):
            __slots__ = ()

        message = Message("t", b"x", headers={"name": Text("value")})
        producer = TransactionProducer(backend, "g", listener=Committing())
        results = producer.send_many([(message, None), (Message("", b"y"), None)])
        assert [TypeError, MessageRejectedError] == [type(each.error) for each in results]
        assert {LocalTransactionState.UNKNOWN} == {each.local_transaction_state for each in results}
        assert not broker.topics.get("t")

    def test_a_listener_sees_its_transaction_as_prepared(self, backend):
        """A listener's transaction is shown as prepared, one of many as a single one."""
        seen = []

        class Looking(TransactionListener):
            def execute_local_transaction(self, message, arg):
                seen.append(repr(current_transaction()).partition(", ")[2])
                return COMMIT

        producer = TransactionProducer(backend, "g", listener=Looking())
        producer.send_message_in_transaction(Message("t", b"x"))
        for count in (1, 4 * ENOUGH_COUNT):
            producer.send_many((Message("t", b"x"), None) for _ in range(count))
        assert {"prepared)"} == set(seen)

    def test_it_waits_for_nothing_once_all_have_ended(self, backend, monkeypatch):
        """`send_many` polls the backend without waiting, and its last poll announces no other one."""
        polls = []

        def poll(timeout_s, is_done=None, *, comes_again=False):
            polls.append((timeout_s, comes_again))
            return True

        monkeypatch.setattr(backend, "poll", poll)
        producer = TransactionProducer(backend, "g", listener=Committing())
        assert 10 == len(producer.send_many((Message("t", b"x"), None) for _ in range(10)))
        assert (0.0, False) == polls.pop()
        assert {(0.0, True)} == set(polls)

    def test_one_failure_hides_no_other_result(self, backend, broker):
        """A rejected message and a raising listener do not change the results of the other messages."""
        producer = TransactionProducer(backend, "g", listener=Committing())
        boom = ValueError("boom")
        results = producer.send_many(
            [
                (Message("t", b"1"), None),
                (Message("", b"2"), None),
                (Message("t", b"3"), boom),
                (Message("t", b"4"), LocalTransactionState.ROLLBACK),
                (Message("t", b"5"), None),
            ]
        )
        states = [each.local_transaction_state.name for each in results]
        assert ["COMMIT", "UNKNOWN", "UNKNOWN", "ROLLBACK", "COMMIT"] == states
        assert isinstance(results[1].error, UsageError)
        assert boom is results[2].error
        assert [b"1", b"5"] == [each.body for each in broker.topics["t"]]

    @pytest.mark.parametrize(
        ("answer", "state", "ops"),
        [
            (FenceAnswer.ROLLBACK, EndState.ACCEPTED, [OpKind.ROLLBACK]),
            (FenceAnswer.COMMIT, EndState.CONFLICT, []),
            (FenceAnswer.NO_ANSWER, EndState.UNKNOWN, []),
        ],
    )
    def test_a_rollback_needs_the_fences_tombstone(self, backend, broker, fence, answer, state, ops):
        """A rollback needs the fence's tombstone, as for a single one (R5): the listener may be wrong."""
        fence.answer = answer
        producer = TransactionProducer(backend, "g", listener=Committing(), fence=fence, partition_count=1)
        (result,) = producer.send_many([(Message("t", b"x"), LocalTransactionState.ROLLBACK)])
        assert state is result.end.state
        assert ops == [op.kind for record in broker.log("g", LogKind.OP, 0) for op in decode_ops(record.body)]

    def test_slow_local_transactions_let_none_publish_too_late(self, clock, monkeypatch):
        """A transaction that is past its time publishes nothing, because the checker may decide it."""
        backend = MemoryBackend(MemoryBroker(KAFKA_LIKE))
        began_s, released_s = clock.now_s, []

        class Slow(TransactionListener):
            def execute_local_transaction(self, message, arg):
                clock.advance(1.0)
                return COMMIT

        release = backend.release

        def noted(batch, claim=None):
            released_s.extend(clock.now_s - began_s for each in batch.items if each.op.kind is OpKind.COMMIT)
            release(batch, claim)

        monkeypatch.setattr(backend, "release", noted)
        producer = TransactionProducer(backend, "g", listener=Slow(), clock=clock)
        results = producer.send_many((Message("t", b"x"), None) for _ in range(20))
        room_s = producer._context.policy.immunity_s - producer._context.margin_s
        assert max(released_s) <= room_s
        states = [each.end.state for each in results]
        in_time_count = states.count(EndState.ACCEPTED)
        assert [EndState.ACCEPTED] * in_time_count + [EndState.TOO_LATE] * (20 - in_time_count) == states
        assert int(room_s) <= in_time_count

    def test_no_more_are_begun_than_slow_local_transactions_can_end_in_time(self, clock):
        """After the first batch, `send_many` begins no more transactions of 0.1 s each than can end in time."""

        class Slow(TransactionListener):
            def execute_local_transaction(self, message, arg):
                clock.advance(0.1)
                return COMMIT

        producer = TransactionProducer(MemoryBackend(MemoryBroker(KAFKA_LIKE)), "g", listener=Slow(), clock=clock)
        results = producer.send_many((Message("t", b"x"), None) for _ in range(1_000))
        states = [each.end.state for each in results]
        assert {EndState.ACCEPTED, EndState.TOO_LATE} == set(states[:FIRST_COUNT])
        assert {EndState.ACCEPTED} == set(states[FIRST_COUNT:])

    def test_three_things_are_no_message(self, backend):
        """An item that is not a pair raises UsageError, and no message of its list is sent."""
        producer = TransactionProducer(backend, "g", listener=Committing())
        with pytest.raises(UsageError, match=r"pairs \(message, arg\), not tuple"):
            producer.send_many([(Message("t", b"x"), None, "more")])

    def test_a_half_without_an_answer_holds_up_no_other(self, backend, broker, monkeypatch):
        """The other transactions are published before a late half is answered."""
        append, release, poll = backend.append_halves, backend.release, backend.poll
        late, released_count, polls = [], 0, iter(range(1_000))

        class Holding(SettlesEach):
            def __init__(self, batch):
                self.items, self._batch = batch.items, batch

            def settle(self, index, outcome):
                if late or index:
                    self._batch.settle(index, outcome)
                else:
                    late.append(lambda: self._batch.settle(index, outcome))

        def counted(batch, claim=None):
            nonlocal released_count
            release(batch, claim)
            released_count += len(batch.items)
            if released_count == 49:
                late[0]()

        def limited(*args, **kwargs):
            next(polls)
            return poll(*args, **kwargs)

        monkeypatch.setattr(backend, "append_halves", lambda batch: append(Holding(batch)))
        monkeypatch.setattr(backend, "release", counted)
        monkeypatch.setattr(backend, "poll", limited)
        producer = TransactionProducer(backend, "g", listener=Committing())
        results = producer.send_many((Message("t", b"%d" % n), None) for n in range(50))
        assert [EndState.ACCEPTED] * 50 == [each.end.state for each in results]
        assert b"0" == broker.topics["t"][-1].body

    def test_what_has_ended_is_let_go(self, backend, clock):
        """`send_many` keeps the results of ended transactions, and not their messages and arguments.

        The window follows the rate; on a clock that does not move, the window is full.
        """
        refs, held_count = [], 0

        class Arg:
            """The argument that the caller hands in beside a message."""

        class Indifferent(TransactionListener):
            def execute_local_transaction(self, message, arg):
                return COMMIT

        def messages():
            nonlocal held_count
            for _ in range(4 * WINDOW_COUNT):
                arg = Arg()
                refs.append(weakref.ref(arg))
                held_count = max(held_count, sum(ref() is not None for ref in refs[::100]) * 100)
                yield Message("t", b"x"), arg

        producer = TransactionProducer(backend, "g", listener=Indifferent(), clock=clock)
        assert 4 * WINDOW_COUNT == len(producer.send_many(messages()))
        assert WINDOW_COUNT <= held_count <= 2 * WINDOW_COUNT

    def test_asyncio_sends_many_too(self, backend, broker):
        """The asynchronous producer sends many messages with an asynchronous listener."""

        class Async(AsyncTransactionListener):
            async def execute_local_transaction(self, message, arg):
                await asyncio.sleep(0)
                return COMMIT

        producer = AsyncTransactionProducer(backend, "g", listener=Async())

        async def main():
            return await producer.send_many(
                [(Message("t", b"%d" % n), None) for n in range(300)] + [(Message("", b""), 0)]
            )

        results = asyncio.run(main())
        assert 300 == len(broker.topics["t"])
        assert isinstance(results[-1].error, UsageError)


class TestBothForms:
    """`execute(transaction, message, arg)`, and RocketMQ's `execute_local_transaction(message, arg)`."""

    def test_both_forms_get_the_transaction_of_their_result(self, backend):
        """`execute` receives the transaction that `current_transaction` returns in RocketMQ's form."""
        seen = []

        class Ours(TransactionListener):
            def execute(self, transaction, message, arg):
                assert transaction is current_transaction()
                seen.append((transaction.transaction_id, message.body, arg))
                return COMMIT

        class RocketMqs(TransactionListener):
            def execute_local_transaction(self, message, arg):
                seen.append((current_transaction().transaction_id, message.body, arg))
                return COMMIT

        for listener in (Ours(), RocketMqs()):
            producer = TransactionProducer(backend, "g", listener=listener)
            result = producer.send_message_in_transaction(Message("t", b"1"), "arg")
            (of_many,) = producer.send_many([(Message("t", b"2"), "other")])
            assert [(result.transaction_id, b"1", "arg"), (of_many.transaction_id, b"2", "other")] == seen
            seen.clear()

    def test_both_forms_of_asyncio_get_the_transaction_of_their_result(self, backend):
        """The same for coroutines, whose transaction stays the current one when others run in between."""
        seen = set()

        class Ours(AsyncTransactionListener):
            async def execute(self, transaction, message, arg):
                await asyncio.sleep(0)
                seen.add((transaction.transaction_id, arg))
                return COMMIT

        class RocketMqs(AsyncTransactionListener):
            async def execute_local_transaction(self, message, arg):
                await asyncio.sleep(0)
                seen.add((current_transaction().transaction_id, arg))
                return COMMIT

        for listener in (Ours(), RocketMqs()):
            producer = AsyncTransactionProducer(backend, "g", listener=listener)
            results = asyncio.run(producer.send_many((Message("t", b""), number) for number in range(5)))
            assert {(each.transaction_id, number) for number, each in enumerate(results)} == seen
            seen.clear()

    def test_a_listener_without_either_is_refused(self, backend):
        """A listener with Java's names of the methods is refused when the producer is made, before its first half."""

        class Java(TransactionListener):
            def executeLocalTransaction(self, message, arg):  # noqa: N802 - the mistake
                """Never called."""

        with pytest.raises(ConfigError, match=r"^Java must define execute\(.* or execute_local_transaction\("):
            TransactionProducer(backend, "g", listener=Java())


class TestMisuse:
    def test_a_listener_is_needed_for_the_listener_style(self, producer):
        """Sending without a listener raises an error that names the parameter."""
        with pytest.raises(TransactionStateError, match="listener="):
            producer.send_message_in_transaction(Message("t", b""))

    def test_a_group_is_needed(self, backend):
        """An empty group name is refused by its key."""
        with pytest.raises(ConfigError) as caught:
            TransactionProducer(backend, "")
        assert "group" == caught.value.key

    @pytest.mark.parametrize("kind", [TransactionProducer, AsyncTransactionProducer])
    @pytest.mark.parametrize(("key", "value"), [("half_deadline_s", 0), ("half_deadline_s", 61), ("unsettled_max", 0)])
    def test_a_number_out_of_range_is_refused(self, backend, kind, key, value):
        """A number out of range is refused when the producer is made, by its key."""
        with pytest.raises(ConfigError) as caught:
            kind(backend, "orders", **{key: value})
        assert key == caught.value.key

    def test_another_number_of_partitions_than_the_groups_is_refused(self, backend, producer):
        """The number of a group's partitions never changes."""
        with pytest.raises(ConfigError, match="has 1 partitions, not 2"):
            TransactionProducer(backend, "orders", partition_count=2)

    def test_a_closed_producer_starts_nothing_new(self, producer):
        """A closed producer begins no transaction, still ends those under way, and may be closed twice."""
        transaction = prepared(producer)
        with producer:
            pass
        producer.close()
        for call in (producer.begin, lambda: producer.transaction(None), lambda: producer.send_many([])):
            with pytest.raises(ClosedError):
                call()
        assert EndState.ACCEPTED is transaction.commit().state

    def test_a_backend_from_before_a_fork_is_the_callers_mistake(self, backend, producer, monkeypatch):
        """The producer raises the backend's own error about a fork, because the broker refused nothing."""
        error = UsageError("this memory backend was opened before a fork")

        def refuse(batch):
            raise error

        monkeypatch.setattr(backend, "append_halves", refuse)
        transaction = producer.begin()
        transaction.publish(Message("t", b""))
        with pytest.raises(UsageError) as caught:
            transaction.prepare()
        assert error is caught.value

    def test_a_closed_backend_sends_nothing(self, backend, producer):
        """Preparing on a closed backend raises an error, and the half is certainly not stored."""
        transaction = producer.begin()
        transaction.publish(Message("t", b""))
        backend.close().result()
        with pytest.raises(Exception, match="closed"):
            transaction.prepare()


def test_listener_of_another_class_is_refused(backend):
    """A class that only has RocketMQ's methods is refused when the producer is made, not after its first half."""

    class Ported:
        def execute_local_transaction(self, message, arg):
            """Never called."""

    with pytest.raises(ConfigError, match=r"derives from TransactionListener, for .*; not Ported$"):
        TransactionProducer(backend, "orders", listener=Ported())
