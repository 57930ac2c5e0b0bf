"""Making the queue of a target, for `txcore topics create`."""

from __future__ import annotations

from typing import Final

from pika import exceptions  # type: ignore[import-untyped]

from txcore.errors import UsageError
from txcore_rabbitmq.codec import is_missing, parse_topic, translate
from txcore_rabbitmq.connection import connection_parameters, open_blocking
from txcore_rabbitmq.options import Options

HEARTBEAT_S: Final = 20


def make_queue(options: Options, topic: str) -> None:
    """Make a durable quorum queue, unless there is a queue of this name; see `BackendPlugin.target`.

    Raises:
        UsageError: the topic is an exchange with a routing key, whose queues only its consumers know.
        BackendUnavailableError: the broker cannot be reached, or refuses the login.
        ConfigError: it refuses the queue.
    """
    target = parse_topic(topic)
    if target.exchange:
        raise UsageError(
            f"{topic!r} is an exchange with a routing key: declare exchange, queues and bindings with their consumers"
        )
    doing = f"making queue {topic!r}"
    connection = open_blocking(connection_parameters(options, HEARTBEAT_S, "txcore topics"), doing)
    try:
        try:
            connection.channel().queue_declare(target.routing_key, passive=True)
        except exceptions.ChannelClosedByBroker as error:
            if not is_missing(error):
                raise
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(target.routing_key, durable=True, arguments=arguments)
    except exceptions.AMQPError as error:
        raise translate(error, doing) from error
    finally:
        if connection.is_open:
            connection.close()
