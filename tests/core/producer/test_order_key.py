"""The order key of a message: its partition, its record key, and the producers that refuse it (R18)."""

from __future__ import annotations

import secrets

import pytest
import sqlalchemy as sa

import txcore
from txcore import LocalTransactionState as State
from txcore import Message, MessageRejectedError, TransactionListener, TransactionProducer
from txcore.ids import partition_of
from txcore.records import LogKind
from txcore.wire import decode_half

PARTITIONS = 4


class Listener(TransactionListener):
    """Commits."""

    def execute_local_transaction(self, message, arg):
        """Answer COMMIT."""
        return State.COMMIT

    def check_local_transaction(self, half):
        """Answer UNKNOWN."""
        return State.UNKNOWN


@pytest.fixture
def backend():
    """Return a memory broker with a group."""
    backend = txcore.connect(f"memory://{secrets.token_hex(4)}")
    backend.ensure_group("g", PARTITIONS).result()
    yield backend
    backend.close().result()


@pytest.fixture
def fence(tmp_path):
    """Return a fence in a database file."""
    fence = txcore.SqlFence(sa.create_engine(f"sqlite:///{tmp_path}/shop.db"))
    fence.create()
    return fence


def halves(backend):
    """Return the halves of the group with the partitions that hold them."""
    found = []
    for partition in range(PARTITIONS):
        reader = backend.read("g", LogKind.HALF, partition)
        found += [(partition, decode_half(record.body)) for record in reader.read(1_000)]
        reader.close()
    return found


def test_the_partition_comes_from_the_order_key(backend):
    """Each half of a key is in the key's partition, by every style; the key is the record key of its messages."""
    with TransactionProducer(backend, "g", listener=Listener(), release="owner") as producer:
        producer.send_message_in_transaction(Message("t", b"1", order_key=b"anna"))
        producer.send_many([(Message("t", b"2", order_key=b"anna"), None), (Message("t", b"3"), None)])
        transaction = producer.begin()
        transaction.publish(Message("t", b"4", order_key=b"anna"))
        transaction.publish(Message("t", b"5", b"own", order_key=b"anna"))
        transaction.publish(Message("t", b"6"))
        transaction.prepare()
        transaction.commit()
    ordered = [(partition, half) for partition, half in halves(backend) if half.order_key]
    assert {(partition_of(b"anna", PARTITIONS), b"anna", 2)} == {
        (partition, half.order_key, half.version) for partition, half in ordered
    }
    messages = {message.body: message.key for _, half in halves(backend) for message in half.messages}
    assert {b"1": b"anna", b"2": b"anna", b"3": None, b"4": b"anna", b"5": b"own", b"6": None} == messages


def test_a_batch_of_many_keys_puts_each_half_into_its_partition(backend):
    """The halves of a batch, which are encoded together, name the partitions that hold them."""
    with TransactionProducer(backend, "g", listener=Listener(), release="owner") as producer:
        keys = [None if number % 3 == 0 else b"k%d" % number for number in range(100)]
        producer.send_many([(Message("t", b"%d" % number, order_key=key), None) for number, key in enumerate(keys)])
    stored = {int(half.messages[0].body): (partition, half) for partition, half in halves(backend)}
    for number, key in enumerate(keys):
        partition, half = stored[number]
        assert (partition, key or b"") == (half.partition, half.order_key)
        assert partition == partition_of(key or half.transaction_id, PARTITIONS)


def test_a_handle_keeps_the_partition(backend):
    """Another process ends the transaction in the partition of its order key."""
    with TransactionProducer(backend, "g", release="owner") as producer:
        transaction = producer.begin()
        transaction.publish(Message("t", b"1", order_key=b"anna"))
        transaction.prepare()
        attached = producer.attach(transaction.handle())
        assert partition_of(b"anna", PARTITIONS) == attached._core.half.partition
        attached.commit()


def test_a_transaction_has_one_order_key(backend):
    """A message with another one is refused, and changes nothing."""
    with TransactionProducer(backend, "g", release="owner") as producer:
        transaction = producer.begin()
        transaction.publish(Message("t", b"1", order_key=b"anna"))
        with pytest.raises(MessageRejectedError, match="it has one order key; nothing was sent") as caught:
            transaction.publish(Message("t", b"2", order_key=b"ben"))
        assert "order_key" == caught.value.reason


def test_a_producer_that_publishes_by_itself_refuses_an_order_key(backend):
    """The error says what the producer needs."""
    with TransactionProducer(backend, "g", listener=Listener()) as producer:
        with pytest.raises(MessageRejectedError, match='needs a producer with release="owner"') as caught:
            producer.send_message_in_transaction(Message("t", b"1", order_key=b"anna"))
        assert "order_key" == caught.value.reason
        (result,) = producer.send_many([(Message("t", b"1", order_key=b"anna"), None)])
        assert isinstance(result.error, MessageRejectedError)
    assert [] == halves(backend)


@pytest.mark.parametrize("mode", ["auto", "table"])
def test_a_producer_that_may_use_the_message_table_refuses_an_order_key(backend, fence, mode):
    """Its messages may go by the table, past the halves."""
    with TransactionProducer(backend, "g", fence=fence, release="owner", mode=mode) as producer:
        transaction = producer.begin()
        with pytest.raises(MessageRejectedError, match=f'in mode="{mode}" messages may go by the message table'):
            transaction.publish(Message("t", b"1", order_key=b"anna"))


@pytest.mark.parametrize(
    ("before", "refused", "reason"),
    [
        ({}, {"order_key": b"anna", "delay_s": 5}, "order_key"),
        ({"delay_s": 5}, {"order_key": b"anna"}, "order_key"),
        ({"order_key": b"anna"}, {"delay_s": 5}, "delay_s"),
    ],
)
def test_a_transaction_with_an_order_key_has_no_delayed_message(backend, fence, before, refused, reason):
    """A delayed message goes by the message table, and its whole transaction with it; a refusal changes nothing."""
    with TransactionProducer(backend, "g", fence=fence, release="owner") as producer:
        transaction = producer.begin()
        if before:
            transaction.publish(Message("t", b"1", **before))
        with pytest.raises(MessageRejectedError, match="delayed message, which is sent when it is due") as caught:
            transaction.publish(Message("t", b"2", **refused))
        assert reason == caught.value.reason
        core = transaction._core
        assert (before.get("order_key", b""), len(before)) == (core.order_key, len(core.messages))
        assert ([0] if "delay_s" in before else []) == list(core.delays or ())


def test_a_refused_message_leaves_neither_policy_nor_delay(backend, fence):
    """What a refused message asked for does not apply to the next one."""
    with TransactionProducer(backend, "g", fence=fence) as producer:
        transaction = producer.begin()
        policy = txcore.CheckPolicy(immunity_s=100)
        with pytest.raises(MessageRejectedError):
            transaction.publish(Message("t", b"1", order_key=b"anna", check_policy=policy))
        with pytest.raises(txcore.ConfigError):
            transaction.publish(Message("t", b"1", delay_s=5, check_policy=txcore.CheckPolicy(immunity_s=0.001)))
        assert ((), None, []) == (transaction._core.policies, transaction._core.delays, transaction._core.messages)


@pytest.mark.parametrize(
    ("order_key", "words"),
    [("anna", "Message.order_key must be bytes or None, not str"), (b"", "has 0 bytes"), (b"x" * 1_001, "1001 bytes")],
)
def test_an_invalid_order_key_is_refused_by_name(backend, order_key, words):
    """It is refused where the message is published."""
    with TransactionProducer(backend, "g", release="owner") as producer:
        transaction = producer.begin()
        with pytest.raises(MessageRejectedError, match=words):
            transaction.publish(Message("t", b"1", order_key=order_key))


def test_json_takes_a_text():
    """`Message.json` and `Message.of` encode a text, as they do for `key`."""
    assert b"anna" == Message.json("t", {}, order_key="anna").order_key
