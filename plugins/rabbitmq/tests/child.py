"""Programs that tests run in processes of their own: `child.py PROGRAM URL GROUP …`."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_conformance.across_fork import use_across_fork
from txcore_rabbitmq import PLUGIN
from txcore_rabbitmq.testing import RabbitmqHarness

import txcore


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def hold(url, group):
    """Hold the partitions of this member until killed; print them after each change."""
    backend = PLUGIN.connect(url)
    claim = backend.claim(group, "child")
    held, pause = set(), threading.Event()
    while True:
        before = set(held)
        for event in claim.poll():
            if event.kind.value == "assigned":
                held.add(event.partition)
            else:
                held.discard(event.partition)
                claim.give_up(event.partition)
        if held != before:
            say("held", *sorted(held))
        pause.wait(0.01)


def consume(url, topic, group):
    """Poll five messages, acknowledge the first two, and wait until killed."""
    consumer, received = PLUGIN.open_consumer(url, topic, group), []
    while len(received) < 5:
        received += consumer.poll()
    consumer.ack(received[1].position)
    say("received", len(received))
    sys.stdin.readline()


def fork(url, group, queue):
    """See `use_across_fork`."""
    harness = RabbitmqHarness()
    harness.url = url
    use_across_fork(harness, group, queue)


class Committing(txcore.TransactionListener):
    def execute_local_transaction(self, message, arg):
        return txcore.LocalTransactionState.COMMIT


class CommittingLater(txcore.AsyncTransactionListener):
    async def execute_local_transaction(self, message, arg):
        return txcore.LocalTransactionState.COMMIT


def say_end(transaction_id, end):
    say(end.state.name, transaction_id.hex())


def end_normally(url, group, topic, way):
    """Commit some transactions, print how each ended, and end without waiting."""
    backend = txcore.connect(url)
    if way == "asyncio":
        asyncio.run(commit_many(backend, group, topic))
        return
    producer = txcore.TransactionProducer(backend, group, listener=Committing())
    if way == "many":
        for result in producer.send_many((txcore.Message(topic, b"%d" % n), None) for n in range(60)):
            say_end(result.transaction_id, result.end)
        return
    for number in range(3):
        transaction = producer.begin()
        transaction.publish(txcore.Message(topic, b"%d" % number))
        transaction.prepare()
        say_end(transaction.transaction_id, transaction.commit())
    if way == "closes":
        backend.close()
    elif way == "fails":
        raise RuntimeError("nothing catches this")
    elif way == "exits":
        sys.exit(3)


async def commit_many(backend, group, topic):
    producer = txcore.AsyncTransactionProducer(backend, group, listener=CommittingLater())
    for result in await producer.send_many([(txcore.Message(topic, b"%d" % n), None) for n in range(60)]):
        say_end(result.transaction_id, result.end)


def end_without_broker(url, group, topic):
    """Commit three transactions; end after a line from stdin."""
    end_normally(url, group, topic, "forgets")
    say("ready")
    sys.stdin.readline()


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    {each.__name__: each for each in (hold, consume, fork, end_normally, end_without_broker)}[program](*rest)
