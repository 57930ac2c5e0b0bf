"""RabbitMQ under txcore: the backend for `rabbitmq://` URLs, on pika and streams over AMQP 0-9-1."""

from txcore_rabbitmq.backend import RabbitmqBackend
from txcore_rabbitmq.options import Options, parse_url

__all__ = ["Options", "RabbitmqBackend", "parse_url"]
