"""A broker that accepts a connection and then says nothing, like a frozen process; no broker is needed."""

from __future__ import annotations

import socket

import pytest
from txcore_rabbitmq.consumer import RabbitmqConsumer
from txcore_rabbitmq.doctor_access import RabbitmqSubject
from txcore_rabbitmq.making import make_queue
from txcore_rabbitmq.options import parse_url

from txcore.errors import BackendUnavailableError
from txcore.findings import Request


def consume(options):
    RabbitmqConsumer(options, "orders", "mail")


def make(options):
    make_queue(options, "orders")


def diagnose(options):
    RabbitmqSubject(options, Request("mail")).connect()


@pytest.fixture
def silent():
    """Options for a socket that is never read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield parse_url(f"rabbitmq://guest:guest@127.0.0.1:{server.getsockname()[1]}/?connect_timeout_s=0.05")


@pytest.mark.parametrize("use", [consume, make, diagnose])
def test_a_silent_broker_is_unavailable(silent, use):
    """The error is typed, and names the option: pika's own error for this is no `AMQPError`."""
    with pytest.raises(BackendUnavailableError, match="no answer within connect_timeout_s"):
        use(silent)
