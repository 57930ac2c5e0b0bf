"""The doctor's questions to RabbitMQ: over AMQP on a connection of its own, and over the management API.

This module declares no object, and no message stays: messages are published to a routing key without a queue.
"""

from __future__ import annotations

import base64
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pika  # type: ignore[import-untyped]
from pika import exceptions

from txcore.errors import BackendUnavailableError
from txcore.findings import Request, UntoldError
from txcore.records import LogKind
from txcore_rabbitmq.codec import is_forbidden, is_missing, translate
from txcore_rabbitmq.connection import CONNECT_ERRORS, credentials_of
from txcore_rabbitmq.names import NOWHERE, checks_name, log_name, logs_name, stream_arguments
from txcore_rabbitmq.options import Options

BLOCKED_TIMEOUT_S: Final = 2.0
TIMEOUT_S: Final = 10.0
PARTITIONS_MAX: Final = 1_024
GUEST: Final = ("guest", "guest")
"""User and password of a new broker."""


@dataclass
class RabbitmqSubject:
    """One broker and one group on it."""

    options: Options
    request: Request
    server_version: str = ""
    frame_max: int = 0
    _connection: Any = field(default=None, repr=False)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Lend a new channel; a refusal may close the channel, and even the connection."""
        if self._connection is None or not self._connection.is_open:
            self._connection = pika.BlockingConnection(self._parameters())
        channel = self._connection.channel()
        try:
            yield channel
        finally:
            with suppress(exceptions.AMQPError):
                channel.close()

    def accepts_guest(self) -> bool:
        """Return whether the user guest logs in with the password guest, from this machine."""
        try:
            pika.BlockingConnection(self._parameters(*GUEST)).close()
        except CONNECT_ERRORS:
            return False
        return True

    def foreign_rights(self) -> list[str]:
        """Return what this user may do with objects of another group: read, write, configure.

        The broker checks a right before it looks whether the object exists; the objects of that group do not.
        """
        group = f"doctor-{secrets.token_hex(8)}"
        queue = log_name(group, LogKind.HALF, 0)
        tries: dict[str, Callable[[Any], Any]] = {
            "read": lambda channel: channel.basic_get(queue),
            "write": lambda channel: self._publish_and_wait(channel, logs_name(group)),
            "delete": lambda channel: channel.queue_delete(queue, if_unused=True, if_empty=True),
        }
        return [what for what, attempt in tries.items() if self._is_allowed(attempt)]

    def _is_allowed(self, attempt: Callable[[Any], Any]) -> bool:
        with self.channel() as channel:
            try:
                attempt(channel)
            except exceptions.ChannelClosedByBroker as error:
                if is_forbidden(error):
                    return False
                if not is_missing(error):
                    raise UntoldError(error.reply_text) from error
        return True

    @staticmethod
    def _publish_and_wait(channel: Any, exchange: str) -> None:
        channel.confirm_delivery()
        channel.basic_publish(exchange, NOWHERE, b"")

    def _parameters(self, user: str = "", password: str = "") -> list[Any]:
        options = self.options
        context = options.tls_context()
        own = credentials_of(options)
        credentials = pika.PlainCredentials(user, password, erase_on_connect=False) if user else own
        return [
            pika.ConnectionParameters(
                host=host,
                port=port,
                virtual_host=options.vhost,
                credentials=credentials,
                heartbeat=0,
                socket_timeout=options.connect_timeout_s,
                stack_timeout=2 * options.connect_timeout_s,
                blocked_connection_timeout=BLOCKED_TIMEOUT_S,
                connection_attempts=1,
                ssl_options=None if context is None else pika.SSLOptions(context, options.tls_server_name or host),
                client_properties={"connection_name": "txcore-doctor"},
            )
            for host, port in options.hosts
        ]

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            with suppress(exceptions.AMQPError):
                self._connection.close()

    def connect(self) -> None:
        """Check that the broker answers, and read its version and frame size.

        Raises:
            BackendUnavailableError: the broker does not answer, or refuses the credentials.
        """
        place = "RabbitMQ at " + ", ".join(f"{host}:{port}" for host, port in self.options.hosts)
        try:
            with self.channel() as channel:
                inner = channel.connection._impl  # noqa: SLF001 - pika has no public way to the server's properties
                self.server_version = str(inner.server_properties["version"])
                self.frame_max = int(inner.params.frame_max)
        except CONNECT_ERRORS as error:
            raise _unavailable(error, place) from error

    def exists(self, name: str, *, is_exchange: bool = False) -> bool:
        """Return whether a queue or exchange exists.

        Raises:
            UntoldError: the broker refuses to answer.
        """
        with self.channel() as channel:
            try:
                if is_exchange:
                    channel.exchange_declare(name, passive=True)
                else:
                    channel.queue_declare(name, passive=True)
            except exceptions.ChannelClosedByBroker as error:
                if is_missing(error):
                    return False
                raise UntoldError(str(translate(error, name))) from error
        return True

    @cached_property
    def partition_count(self) -> int:
        """The number of the group's partitions, by its half streams."""
        half = LogKind.HALF
        count = 0
        while count < PARTITIONS_MAX and self.exists(log_name(self.request.group, half, count)):
            count += 1
        return count

    @property
    def streams(self) -> dict[str, dict[str, Any]]:
        """The streams that the group should have, with their arguments."""
        found: dict[str, dict[str, Any]] = {}
        for partition in range(self.partition_count):
            found |= stream_arguments(self.options, self.request.group, partition)
        return found

    @cached_property
    def missing_exchanges(self) -> list[str]:
        """The exchanges of the group's streams that are not there."""
        names = (logs_name(self.request.group), checks_name(self.request.group))
        return [name for name in names if not self.exists(name, is_exchange=True)]

    def publish_nowhere(self, channel: Any, body: bytes) -> None:
        """Publish to a key without a queue; the broker checks the message and drops it.

        The exchange is the group's, where the user needs the right to publish, or the default one for lack of it.
        """
        exchange = logs_name(self.request.group)
        channel.basic_publish("" if exchange in self.missing_exchanges else exchange, NOWHERE, body)

    def managed(self, path: str) -> Any:
        """Return the answer of the management API.

        Raises:
            UntoldError: the API is not known, cannot be reached, or refuses.
        """
        if not self.request.monitor_url:
            raise UntoldError(
                "AMQP does not report it",
                f"--monitor http://{self.options.host}:15672 (rabbitmq-plugins enable rabbitmq_management)",
                is_for_production=True,
            )
        parts = urlsplit(self.request.monitor_url)
        user, password = unquote(parts.username or self.options.user), unquote(parts.password or self.options.password)
        if parts.scheme not in {"http", "https"}:
            raise UntoldError(f"--monitor is an http URL, not {parts.scheme!r}", "--monitor http://host:15672")
        bare = urlunsplit(
            (parts.scheme, parts.netloc.rpartition("@")[2], f"{parts.path.rstrip('/')}/api/{path}", "", "")
        )
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request = urllib.request.Request(bare, headers={"Authorization": f"Basic {token}"})  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            change = f"rabbitmqctl set_user_tags {user} monitoring" if error.code in {401, 403} else "see its log"
            raise UntoldError(f"the management API answers {error.code} {error.reason} to {bare}", change) from error
        except (OSError, ValueError) as error:
            raise UntoldError(f"the management API cannot be reached at {bare}: {error}", "check --monitor") from error

    def managed_queues(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the management API's data of these queues; queues that it does not know are missing."""
        vhost = quote(self.options.vhost, safe="")
        wanted = set(names)
        return {queue["name"]: queue for queue in self.managed(f"queues/{vhost}") if queue["name"] in wanted}


def _unavailable(error: BaseException, place: str) -> BackendUnavailableError:
    """Return an error with one clear sentence; pika wraps the broker's error in a list of attempts."""
    cause = next((part.exception for part in error.args if hasattr(part, "exception")), error)
    if isinstance(cause, OSError):
        return BackendUnavailableError(f"{place} cannot be reached: {cause.strerror or cause}")
    return BackendUnavailableError(str(translate(cause, place)))
