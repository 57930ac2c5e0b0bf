"""The consumers of the demo: each comes from a function of the plugin's module."""

from __future__ import annotations

import pytest
from txcore_conformance.demo.consuming import open_consumer

import txcore


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'broker.db'}?auto_create=false"


def test_sqlite_consumer_makes_its_topic_and_begins_with_its_first_message(url):
    """The consumer creates its topic, and a group that is opened later also begins with the first message."""
    with pytest.raises(txcore.MessageRejectedError, match="orders"):
        publish(url, b"too early")
    early = open_consumer(url, "orders", "early")
    publish(url, b"first")
    late = open_consumer(url, "orders", "late")
    for consumer in (early, late):
        (message,) = consumer.poll()
        assert (consumer.topic, message.key, message.body) == ("orders", b"key", b"first")
        assert consumer.ack(message.position)
        consumer.close()


def test_sqlite_consumer_refuses_unknown_options(url):
    """The consumer refuses the same options as the backend."""
    with pytest.raises(txcore.ConfigError, match="nope"):
        open_consumer(f"{url}&nope=1", "orders", "group")


def publish(url, body):
    """Publish one message as a committed transaction."""
    backend = txcore.connect(url)
    try:
        transaction = txcore.TransactionProducer(backend, "shop").begin()
        transaction.publish(txcore.Message("orders", body, key=b"key"))
        transaction.prepare()
        transaction.commit()
    finally:
        backend.close().result(5)
