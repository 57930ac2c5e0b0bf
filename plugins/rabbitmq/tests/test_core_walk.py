"""Runs the real producer and checker over the RabbitMQ backend; the broker is named by TXCORE_RABBITMQ_URL."""

import contextlib
import os
import subprocess
import time
import uuid

import pika
import pytest
from txcore_rabbitmq import parse_url
from txcore_rabbitmq.backend import RabbitmqBackend

from txcore.checker import Checker
from txcore.checking import Limits
from txcore.listener import TransactionListener
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.producer import TransactionProducer
from txcore.records import LogKind
from txcore.wire import decode_parked

URL = os.environ.get("TXCORE_RABBITMQ_URL", "")
CONTROL = os.environ.get("TXCORE_RABBITMQ_CONTROL", "")
pytestmark = pytest.mark.skipif(not URL, reason="test_core_walk needs a RabbitMQ: set TXCORE_RABBITMQ_URL")
POLICY = CheckPolicy(immunity_s=3.0, interval_s=0.3, check_max=3)
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


class Scripted(TransactionListener):
    """Answers what the message's body says: first word at execution, second at a check."""

    def execute_local_transaction(self, message, arg):
        return LocalTransactionState[message.body.decode().split()[0]]

    def check_local_transaction(self, half):
        return LocalTransactionState[half.messages[0].body.decode().split()[1]]


@pytest.fixture
def group():
    return f"core-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def url():
    return URL + ("&" if "?" in URL else "?") + "delivery_timeout_s=0.5&claim_heartbeat_s=1"


@pytest.fixture
def queue(group):
    options = parse_url(URL)
    credentials = pika.PlainCredentials(options.user, options.password)
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(options.host, options.port, options.vhost, credentials, heartbeat=0)
    )
    channel = connection.channel()
    # A quorum queue that is killed within a second of its making may stay without a leader (seen on 3.10.8).
    channel.queue_declare(group, durable=True, arguments={"x-queue-type": "classic"})

    def drain():
        bodies = []
        while (found := channel.basic_get(group, auto_ack=True))[0] is not None:
            bodies.append(found[2])
        return bodies

    yield drain
    with contextlib.suppress(pika.exceptions.AMQPError):  # the broker may have been killed meanwhile
        channel.queue_delete(group)
        connection.close()


def wait_for(condition, timeout_s=20.0):
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "not within the deadline"
        time.sleep(0.05)
    return value


def send(producer, group, *bodies):
    return [producer.send_message_in_transaction(Message(group, body.encode()), None) for body in bodies]


def test_every_end_and_every_answer(url, group, queue):
    """Committed ones come at once, checked ones after immunity, rolled back ones never, stuck ones are parked."""
    backend = RabbitmqBackend(url)
    producer = TransactionProducer(backend, group, listener=Scripted(), policy=POLICY, partition_count=2)
    checker = Checker(backend, group, listener=Scripted(), policy=POLICY, limits=Limits(checkpoint_interval_s=0.2))
    checker.start()
    send(producer, group, "COMMIT UNKNOWN", "ROLLBACK UNKNOWN", "UNKNOWN COMMIT", "UNKNOWN ROLLBACK", "UNKNOWN UNKNOWN")
    assert queue() == [b"COMMIT UNKNOWN"]
    wait_for(lambda: (checker.counts.get("parked"), checker.counts.get("commit")) == (1, 1))
    wait_for(lambda: checker.counts.get("rollback") == 1)
    assert queue() == [b"UNKNOWN COMMIT"]
    readers = [backend.read(group, LogKind.PARKED, partition) for partition in range(2)]
    records = wait_for(lambda: [record for reader in readers for record in reader.read(10)])
    assert decode_parked(records[0].body).count == 3
    checker.stop()
    producer.close()
    backend.close(5.0).result(10.0)


def test_second_checker_takes_over(url, group, queue):
    """Halves that the first checker left are decided by the second; none twice without need."""
    first_backend, second_backend = RabbitmqBackend(url), RabbitmqBackend(url)
    producer = TransactionProducer(first_backend, group, listener=Scripted(), policy=POLICY, partition_count=2)
    first = Checker(first_backend, group, listener=Scripted(), policy=POLICY)
    second = Checker(second_backend, group, listener=Scripted(), policy=POLICY)
    first.start()
    wait_for(lambda: first.partitions == (0, 1))
    second.start()
    bodies = [f"UNKNOWN COMMIT {number}" for number in range(100)]
    send(producer, group, *bodies)
    first.stop()
    wait_for(lambda: second.partitions == (0, 1))
    wait_for(lambda: first.counts.get("commit", 0) + second.counts.get("commit", 0) >= 100)
    assert {body.encode() for body in bodies} == set(queue())
    second.stop()
    producer.close()
    for backend in (first_backend, second_backend):
        backend.close(5.0).result(10.0)


@pytest.mark.skipif(not CONTROL, reason="needs TXCORE_RABBITMQ_CONTROL to kill the broker")
def test_checker_goes_on_after_the_broker_was_killed(url, group, queue):
    """kill -9 and a restart under a running checker: every stored half is decided afterwards."""
    backend = RabbitmqBackend(url)
    producer = TransactionProducer(backend, group, listener=Scripted(), policy=POLICY, partition_count=2)
    checker = Checker(backend, group, listener=Scripted(), policy=POLICY)
    checker.start()
    bodies = [f"UNKNOWN COMMIT {number}" for number in range(100)]
    send(producer, group, *bodies)
    for command in ("kill9", "start"):
        subprocess.run([*CONTROL.split(), command], check=True, timeout=60, capture_output=True)
    wait_for(lambda: checker.counts.get("commit", 0) >= 100, 40.0)
    checker.stop()
    producer.close()
    backend.close(5.0).result(10.0)
    options = parse_url(URL)
    parameters = pika.ConnectionParameters(
        options.host, options.port, options.vhost, pika.PlainCredentials(options.user, options.password)
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        found = set()
        while (got := channel.basic_get(group, auto_ack=True))[0] is not None:
            found.add(got[2].decode())
    assert found == set(bodies)


def test_run_once_sees_what_is_there(url, group, queue):
    """A single sweep judges every half that was due when it began."""
    backend = RabbitmqBackend(url)
    producer = TransactionProducer(backend, group, listener=Scripted(), policy=POLICY, partition_count=2)
    send(producer, group, *[f"UNKNOWN COMMIT {number}" for number in range(20)])
    checker = Checker(backend, group, listener=Scripted(), policy=POLICY)
    seen = checker.run_once()
    assert seen.committed + seen.pending == 20
    time.sleep(POLICY.immunity_s)
    done = checker.run_once()
    assert (seen.committed + done.committed, done.pending) == (20, 0)
    assert len(queue()) == 20
    checker.stop()
    backend.close(5.0).result(10.0)
