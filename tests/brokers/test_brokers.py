"""Each broker, for real: it keeps data and port after kills, is silent while paused, and is reached by a proxy."""

from __future__ import annotations

import re
import socket

import pytest
from txcore_conformance import brokers

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.fixture(scope="module")
def texts(broker, client):
    """A client with one text stored."""
    made = client(broker.name, broker.url)
    made.create()
    made.put("first")
    return made


def test_broker_reports_its_kind_and_version(broker):
    """The broker has a version, a URL on loopback, and a log."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", broker.version)
    assert re.fullmatch(rf"{broker.name}://(guest:guest@)?127\.0\.0\.1:\d+/?", broker.url)
    assert (broker.folder / "server.log").is_file()
    assert broker.can_be_killed
    assert broker.is_running


def test_killed_and_stopped_broker_comes_back_with_its_data_on_the_same_port(broker, texts, runs):
    """Acknowledged records remain after a kill and a stop; no helper process or name server remains."""
    url = broker.url
    for end, is_paused in ((broker.kill, False), (broker.stop, True)):
        pids = [broker.pid, *broker._children()]
        if is_paused:
            broker.pause()
        end()
        assert not broker.is_running
        assert [] == [pid for pid in pids if runs(pid)]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port))
        end()
        broker.start()
        assert url == broker.url
    texts.put("second")
    assert ["first", "second"] == texts.texts()
    texts.put("first")  # for later tests: reading emptied the queue


def test_paused_broker_keeps_connections_and_says_nothing(broker, texts):
    """Clients of a paused broker get no answer and no end; after that the broker continues."""
    greeting = {"kafka": b"", "rabbitmq": b"AMQP\x00\x00\x09\x01", "nats": b""}[broker.name]
    broker.pause()
    with socket.create_connection(("127.0.0.1", broker.port), 1) as connection:
        connection.sendall(greeting)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    broker.resume()
    texts.put("second")


def test_client_that_came_through_the_proxy_stays_there(broker, texts, client, trouble):
    """The broker reports no address that bypasses the proxy, so a client that the proxy refuses reaches no server."""
    through = client(broker.name, broker.proxied_url, time_max_s=5)
    assert f":{broker.proxy.port}" in broker.proxied_url
    through.put("by proxy")
    broker.proxy.refuse()
    try:
        with pytest.raises(trouble):
            through.put("nowhere")
    finally:
        broker.proxy.forward()
    assert "by proxy" in texts.texts()


def test_two_brokers_of_a_kind_run_at_once(broker, texts, started, client):
    """Two brokers have their own ports, folders and data; one continues after the other's end."""
    other = started(broker.name)
    try:
        assert {broker.folder, broker.url}.isdisjoint({other.folder, other.url})
        there = client(other.name, other.url)
        there.create()
        there.put("other")
        assert ["other"] == there.texts()
    finally:
        other.remove()
    assert not other.folder.exists()
    texts.put("third")


def test_rabbitmqctl_answers(broker):
    """The tool reaches the RabbitMQ node; the other brokers have no such tool."""
    if broker.name == "rabbitmq":
        assert "guest" in broker.control("list_users")
    else:
        with pytest.raises(brokers.ServerUnavailableError, match="no command-line tool"):
            broker.control("list_users")
