"""What the rights that `txcore permissions` prints do not allow; each is asked of a real broker with a plain client."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from txcore_kafka.options import checkpoint_topic, consumer_group, topic_name, transactional_id_prefix

from txcore.permissions import Role
from txcore.records import LogKind

TIMEOUT_S = 10.0
TOPIC, GROUP, TRANSACTIONAL_ID = (f"{kind}_AUTHORIZATION_FAILED" for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID"))
FOREIGN = ("billing", "orders.eu")
LOGS = {kind.value: lambda group, kind=kind: topic_name(group, kind) for kind in LogKind} | {
    "checkpoint": checkpoint_topic
}


class Client:
    """A user's plain clients. Each call returns the name of the broker's error, or "" if it was allowed."""

    def __init__(self, guarded, user):
        self._login = guarded.login(user) | {"log_level": 0}
        self.admin = guarded.admin_client(user)
        self.producer = Producer(self._login)

    @contextlib.contextmanager
    def consumer(self, **settings):
        own = {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        made = Consumer(self._login | own | settings)
        try:
            yield made
        finally:
            made.close()

    def read(self, topic):
        with self.consumer(**{"enable.partition.eof": True}) as consumer:
            hidden = consumer.list_topics(topic, TIMEOUT_S).topics[topic].error
            if hidden is not None:
                return hidden.name()
            consumer.assign([TopicPartition(topic, 0, 0)])
            while (name := _polled(consumer)) == GROUP:  # The driver asks for a coordinator, and reads without one.
                pass
            return name

    def write(self, topic):
        errors = []
        with _caught() as caught:
            self.producer.produce(topic, b"forged", partition=0, on_delivery=lambda error, _: errors.append(error))
            self.producer.flush(TIMEOUT_S)
            return _name(errors[0])
        return caught[0]

    def delete(self, topic):
        return _refusal(self.admin.delete_topics([topic]))

    def empty(self, topic):
        name = _refusal(self.admin.delete_records([TopicPartition(topic, 0, 0)]))
        return TOPIC if name == "_NOENT" else name  # The driver does not find a topic that is hidden from the user.

    def grow(self, topic):
        return _refusal(self.admin.create_partitions([NewPartitions(topic, 5)]))

    def alter(self, topic):
        entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return _refusal(self.admin.incremental_alter_configs([resource]))

    def join(self, group, topic):
        with self.consumer(**{"group.id": group}) as consumer:
            consumer.subscribe([topic])
            return _polled(consumer)

    def commit(self, group, topic):
        offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
        return _refusal(self.admin.alter_consumer_group_offsets([offsets]))

    def forget(self, group):
        return _refusal(self.admin.delete_consumer_groups([group]))

    def transact(self, identity):
        producer = Producer(self._login | {"transactional.id": identity})
        with _caught() as caught:
            producer.init_transactions(TIMEOUT_S)
        return caught[0]


@contextlib.contextmanager
def _caught():
    found = [""]
    try:
        yield found
    except KafkaException as error:
        found[0] = _name(error.args[0])


def _name(error):
    return "" if error is None else error.name()


def _refusal(request):
    (answer,) = request.values()
    with _caught() as caught:
        answer.result(TIMEOUT_S)
    return caught[0]


def _polled(consumer):
    """Return the name of the first error; "" for a record or the end of the log."""
    message = consumer.poll(TIMEOUT_S)
    assert message is not None, "the broker did not answer"
    error = message.error()
    return "" if error is None or error.code() == error._PARTITION_EOF else error.name()


@pytest.fixture(scope="module")
def clients(guarded):
    """The plain clients of a user, by name."""
    made = {}

    def of(user):
        return made.setdefault(user, made.get(user) or Client(guarded, user))

    return of


@pytest.fixture(params=list(Role), ids=lambda role: role.value)
def own(guarded, clients, request):
    """The clients of a user of the group `orders`, with all rights that are printed for it."""
    return clients(guarded.user("orders", request.param, "transaction"))


@pytest.fixture
def checker(guarded, clients):
    return clients(guarded.user("orders", Role.CHECKER, "transaction"))


@pytest.fixture
def producer(guarded, clients):
    return clients(guarded.user("orders", Role.PRODUCER, "transaction"))


@pytest.mark.parametrize("act", ["read", "write", "delete", "empty", "grow", "alter"])
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("group", FOREIGN)
def test_another_groups_topics_are_closed(own, group, log, act):
    """No user of `orders` may read, write, delete, empty or alter a topic of another group."""
    assert getattr(own, act)(LOGS[log](group)) == TOPIC


@pytest.mark.parametrize("group", FOREIGN)
def test_another_groups_consumer_group_is_closed(own, group):
    """No user of `orders` may join the consumer group of another group's checkers, move its offsets, or delete it."""
    topic, foreign = "orders.created", consumer_group(group)
    assert own.join(foreign, topic) == GROUP
    assert own.commit(foreign, topic) == GROUP
    assert own.forget(foreign) == GROUP


@pytest.mark.parametrize("identity", [*(f"{transactional_id_prefix(group)}01" for group in FOREIGN), "txc.orders", "x"])
def test_other_transactional_ids_are_closed(own, identity):
    """No user of `orders` may use a transactional id of another group, with which it could end their transactions."""
    assert own.transact(identity) == TRANSACTIONAL_ID


@pytest.mark.parametrize("topic", ["salaries", "billing.created", "orders.eu.created"])
def test_targets_that_were_not_named_are_closed(own, topic):
    """No user of `orders` may publish to a topic that was not named for it, or read it."""
    assert own.write(topic) == TOPIC
    assert own.read(topic) == TOPIC


@pytest.mark.parametrize("act", ["delete", "empty", "grow", "alter"])
@pytest.mark.parametrize("log", LOGS)
def test_not_even_its_own_topics_may_be_altered(own, log, act):
    """Neither role may delete, empty or alter its own group's topics: no record is lost by a stolen password."""
    assert getattr(own, act)(LOGS[log]("orders")) == TOPIC


@pytest.mark.parametrize("log", LOGS)
def test_a_producer_reads_nothing_of_its_group(producer, log):
    """A producer may read no topic of its own group."""
    assert producer.read(LOGS[log]("orders")) == TOPIC


@pytest.mark.parametrize("log", ["parked", "checkpoint"])
def test_a_producer_writes_halves_and_ops_only(producer, log):
    """A producer may not write parked messages or checkpoints of its own group."""
    assert producer.write(LOGS[log]("orders")) == TOPIC


def test_a_producer_is_no_checker(producer):
    """A producer may not join the consumer group of its own group's checkers."""
    assert producer.join(consumer_group("orders"), "orders.created") == GROUP


def test_the_questions_are_asked_rightly(checker):
    """A checker may do to its own group what the tests above ask for: their refusals are no mistake of the question."""
    assert [checker.read(name("orders")) for name in LOGS.values()] == [""] * 4
    assert checker.write("orders.created") == ""
    assert checker.commit(consumer_group("orders"), topic_name("orders", LogKind.HALF)) == ""
    assert checker.transact(f"{transactional_id_prefix('orders')}01") == ""
