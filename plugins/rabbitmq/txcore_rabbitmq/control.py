"""Control requests: creating or verifying a group's streams, loading checkpoints."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from txcore.errors import ConfigError, TxcoreError, WireFormatError
from txcore.records import Checkpoint, LogKind
from txcore_rabbitmq.codec import (
    decode_checkpoint_or_marker,
    different_setting,
    is_forbidden,
    is_missing,
    translate,
)
from txcore_rabbitmq.names import (
    AGE_ARGUMENT,
    LOG_EXCHANGE_TYPE,
    NAME_PREFIX,
    SHORT_STRING_BYTES_MAX,
    checkpoint_name,
    checks_name,
    log_name,
    logs_name,
    stream_arguments,
    stream_exchanges,
)
from txcore_rabbitmq.options import PARTITION_COUNT_MAX, Options
from txcore_rabbitmq.streams import ReadingLink, Scan

_log = logging.getLogger("txcore.rabbitmq")

GROUP_BYTES_MAX: Final = SHORT_STRING_BYTES_MAX - len(f"{NAME_PREFIX}..checkpoint.{PARTITION_COUNT_MAX}")
T = TypeVar("T")


def verify_group(group: str, partition_count: int | None) -> None:
    """Refuse an invalid name of a group or number of partitions.

    Raises:
        ConfigError: the name is empty or too long, or the count out of range.
    """
    if not group or len(group.encode()) > GROUP_BYTES_MAX:
        raise ConfigError(f"a group's name has 1 to {GROUP_BYTES_MAX} bytes, not {len(group.encode())}", key="group")
    if partition_count is not None and not 1 <= partition_count <= PARTITION_COUNT_MAX:
        raise ConfigError(
            f"a group has 1 to {PARTITION_COUNT_MAX} partitions, not {partition_count}", key="partition_count"
        )


class _Step(NamedTuple):
    """The declaration of a stream that is bound to *exchange*, or of an exchange, which has no *arguments*."""

    name: str
    exchange: str = ""
    arguments: dict[str, Any] | None = None


class GroupSetup:
    """The creation or verification of a group's exchanges and streams; on the reading loop's thread.

    Partition 0 is created last, so that it exists only if all others do. With *must_exist* nothing is created and no
    settings are verified; a missing group is a ConfigError. A user without the right to create gets an existing group
    without a comparison of its settings.
    """

    def __init__(
        self,
        link: ReadingLink,
        options: Options,
        group: str,
        asked: int | None,
        future: Future[int],
        *,
        must_exist: bool = False,
    ) -> None:
        self._link = link
        self._options = options
        self._group = group
        self._asked = asked
        self._must_exist = must_exist
        self._future = future
        self._found = 0
        self._is_new = self._is_looking = False
        self._steps: deque[_Step] = deque()
        self._channel: Any = None

    def start(self) -> None:
        """Count the existing partitions, then declare the streams."""
        self._link.watch(self._future)
        self._link.loop.later(self._options.control_timeout_s, self._expire)
        self._link.when_up(functools.partial(self._with_channel, self._count), self._fail)

    def _with_channel(self, step: Callable[[], None]) -> None:
        if not self._future.done():
            self._channel = self._link.connection.channel(on_open_callback=lambda _channel: step())
            self._channel.add_on_close_callback(self._closed)

    def _count(self) -> None:
        if self._future.done():
            return
        if self._found > PARTITION_COUNT_MAX:
            self._fail(ConfigError(f"group {self._group!r} has more than {PARTITION_COUNT_MAX} partitions"))
            return
        name = log_name(self._group, LogKind.HALF, self._found)
        self._channel.queue_declare(name, passive=True, callback=self._exists)

    def _exists(self, _frame: Any) -> None:
        self._found += 1
        self._count()

    def _closed(self, _channel: Any, error: BaseException) -> None:
        if self._future.done():
            return
        if self._is_looking and is_missing(error):
            self._fail(
                ConfigError(
                    f"group {self._group!r} has no exchange {logs_name(self._group)!r}, which this user may not "
                    "create; `txcore topics create` makes it, under a user that may create",
                    key="group",
                )
            )
        elif is_missing(error) and not self._steps:
            self._plan()
        elif self._steps and self._is_old_parked(error):
            _log.warning(
                "rabbitmq.parked_expires",
                extra={"txcore": {"stream": self._steps[0].name, "reason": getattr(error, "reply_text", "")}},
            )
            self._with_channel(self._bind)
        elif self._steps and is_forbidden(error) and not self._is_new:
            _log.debug(
                "rabbitmq.not_compared",
                extra={"txcore": {"group": self._group, "reason": getattr(error, "reply_text", "")}},
            )
            self._steps.clear()
            self._is_looking = True
            self._with_channel(self._look)
        else:
            self._fail(translate(error, f"group {self._group!r}"))

    def _is_old_parked(self, error: BaseException) -> bool:
        """Return whether this is a parked stream created before 0.1, with an age, which it keeps; the doctor warns."""
        name, exchange, _ = self._steps[0]
        is_parked = exchange and name == log_name(self._group, LogKind.PARKED, int(name.rpartition(".")[2]))
        return bool(is_parked) and different_setting(error) == AGE_ARGUMENT

    def _plan(self) -> None:
        asked, found = self._asked, self._found
        if found and asked is not None and asked != found:
            self._fail(
                ConfigError(
                    f"group {self._group!r} has {found} partitions, not {asked}; the number never changes",
                    key="partition_count",
                )
            )
            return
        if self._must_exist:
            if found:
                self._future.set_result(found)
            else:
                self._fail(missing_group(self._group))
            return
        self._is_new = not found
        self._found = count = found or asked or self._options.partitions
        self._steps.extend(map(_Step, (checks_name(self._group), logs_name(self._group))))
        for partition in reversed(range(count)):
            exchanges = stream_exchanges(self._group, partition)
            for name, arguments in stream_arguments(self._options, self._group, partition).items():
                self._steps.append(_Step(name, exchanges[name], arguments))
        self._with_channel(self._declare)

    def _declare(self) -> None:
        if self._future.done():
            return
        name, exchange, arguments = self._steps[0]
        if exchange:
            self._channel.queue_declare(name, durable=True, arguments=arguments, callback=self._bind)
        else:
            self._channel.exchange_declare(name, LOG_EXCHANGE_TYPE, durable=True, callback=self._next)

    def _bind(self, _frame: Any = None) -> None:
        """Bind the declared stream; only the answer to the last binding is awaited, as it comes after the others."""
        name, exchange, _ = self._steps[0]
        is_last = len(self._steps) == 1
        self._channel.queue_bind(name, exchange, name, callback=self._next if is_last else None)
        if not is_last:
            self._next()

    def _next(self, _frame: Any = None) -> None:
        self._steps.popleft()
        if self._steps:
            self._declare()
        else:
            self._done()

    def _look(self) -> None:
        """Ask for the exchange that is declared last, as this user may not declare it."""
        if not self._future.done():
            self._channel.exchange_declare(logs_name(self._group), passive=True, callback=self._done)

    def _done(self, _frame: Any = None) -> None:
        if not self._future.done():
            self._future.set_result(self._found)
            self._channel.close()

    def _fail(self, error: TxcoreError) -> None:
        if not self._future.done():
            self._future.set_exception(error)
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def _expire(self) -> None:
        if not self._future.done():
            self._fail(self._link.trouble(f"group {self._group!r} could not be set up"))


class Ping:
    """One question whether a group's first half stream is there; on the reading loop's thread. See `Backend.ping`."""

    def __init__(self, link: ReadingLink, group: str, future: Future[None], timeout_s: float) -> None:
        self._link = link
        self._group = group
        self._future = future
        self._timeout_s = timeout_s
        self._channel: Any = None

    def start(self) -> None:
        """Ask on a channel of its own, as the broker closes the channel of a question for a missing stream."""
        self._link.watch(self._future)
        self._link.loop.later(self._timeout_s, self._expire)
        self._link.when_up(self._open, self._fail)

    def _open(self) -> None:
        if not self._future.done():
            self._channel = self._link.connection.channel(on_open_callback=self._ask)
            self._channel.add_on_close_callback(self._closed)

    def _ask(self, channel: Any) -> None:
        name = log_name(self._group, LogKind.HALF, 0)
        channel.queue_declare(name, passive=True, callback=lambda _frame: self._end(None))

    def _closed(self, _channel: Any, error: BaseException) -> None:
        self._end(missing_group(self._group) if is_missing(error) else translate(error, f"group {self._group!r}"))

    def _fail(self, error: TxcoreError) -> None:
        self._end(error)

    def _expire(self) -> None:
        self._link.forget(self._open)
        self._end(self._link.trouble(f"asking for group {self._group!r}"))

    def _end(self, error: TxcoreError | None) -> None:
        if not self._future.done():
            self._future.set_exception(error) if error is not None else self._future.set_result(None)
        if self._channel is not None and self._channel.is_open:
            self._channel.close()


def missing_group(group: str) -> ConfigError:
    """Return the error of a call for a group that does not exist."""
    return ConfigError(f"there is no group {group!r}; `txcore topics create` makes it", key="group")


def scan_checkpoints(
    link: ReadingLink,
    group: str,
    partition: int,
    nonce: bytes,
    future: Future[Checkpoint | None],
    timeout_s: float,
) -> None:
    """Resolve *future* with the last checkpoint before the marker *nonce*; on the reading loop's thread."""
    last: Checkpoint | None = None

    def take(body: bytes) -> bool:
        nonlocal last
        try:
            record = decode_checkpoint_or_marker(body)
        except WireFormatError:
            return False  # the record of a newer plugin; an older checkpoint is a valid lower bound
        if isinstance(record, Checkpoint):
            last = record
        elif record == nonce:
            if not future.done():
                future.set_result(last)
            return True
        return False

    link.watch(future)
    scan = Scan(link, checkpoint_name(group, partition), take, future)
    link.loop.later(timeout_s, scan.expire)
    link.when_up(scan.open, scan.refuse)
