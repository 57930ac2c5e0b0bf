"""Where targets are looked up: in the streams that the URL names, or in all of the account."""

from __future__ import annotations

import pytest
from txcore_nats.doctor_access import NatsSubject
from txcore_nats.options import parse_url

import txcore
from txcore import Message
from txcore.errors import MessageRejectedError
from txcore.findings import Request


@pytest.fixture
def streams(kit):
    """Two streams, each with a subject in it."""
    return [kit.stream() for _ in range(2)]


def prepare(kit, topic, *, stream):
    """Prepare a transaction with one message, on a connection whose URL names the streams of targets."""
    backend = kit.enlist(kit.harness.open(f"{kit.harness.url}&stream={stream}"))
    with txcore.TransactionProducer(backend, kit.group) as producer:
        transaction = producer.begin()
        transaction.publish(Message(topic, b"body"))
        transaction.prepare()
        return transaction.commit()


def test_a_target_is_found_in_each_named_stream(kit, streams):
    """The URL may name several streams; one that does not exist holds no target, and harms none in the others."""
    (first, topic), (second, other) = streams
    for each in (topic, other):
        assert prepare(kit, each, stream=f"gone,{first},{second}").state is txcore.EndState.ACCEPTED


def test_a_target_in_another_stream_is_refused(kit, streams):
    """A subject of a stream that the URL does not name is refused before the half is stored, with the names."""
    (first, _), (_, other) = streams
    with pytest.raises(MessageRejectedError, match=f"is not in stream 'gone' or '{first}'"):
        prepare(kit, other, stream=f"gone,{first}")


@pytest.mark.parametrize("stream", ["&stream={first},{second}", "&stream={second}", ""])
def test_the_doctor_looks_where_producers_look(kit, streams, stream):
    """The doctor finds a target in the named streams, or in any stream where the URL names none."""
    (first, topic), (second, other) = streams
    url = kit.harness.url + stream.format(first=first, second=second)
    subject = NatsSubject(parse_url(url), Request(group=kit.group, targets=(topic, other, "in.none")))
    subject.connect()
    try:
        found = {name: view and view.name for name, view in subject.target_streams.items()}
    finally:
        subject.close()
    assert found == {topic: first if "first" in stream or not stream else None, other: second, "in.none": None}
