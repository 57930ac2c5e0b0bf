"""What happens now and then: a group's streams are made or verified, checkpoints are loaded."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from txcore.errors import BackendTimeoutError, ConfigError, WireFormatError
from txcore.records import Checkpoint, LogKind
from txcore_rabbitmq.codec import decode_checkpoint, is_missing, translate
from txcore_rabbitmq.options import Options, checkpoint_name, log_name, stream_arguments
from txcore_rabbitmq.reading import ReadingLink, Scan

CONTROL_TIMEOUT_S: Final = 10.0
PARTITION_COUNT_MAX: Final = 1_024
T = TypeVar("T")


def new_future() -> Future[T]:
    """Return a Future that is marked running, so that a waiter that gives up cannot hurt the thread behind it."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


class GroupSetup:
    """Makes or verifies the streams of one group, one declaration at a time; on the reading loop's thread.

    Partition 0 is made last, so that its presence means that all others are there.
    """

    def __init__(self, link: ReadingLink, options: Options, group: str, asked: int | None, future: Future[int]) -> None:
        self._link = link
        self._options = options
        self._group = group
        self._asked = asked
        self._future = future
        self._found = 0
        self._steps: deque[tuple[str, dict[str, Any]]] = deque()
        self._channel: Any = None

    def start(self) -> None:
        """Count what exists, then declare."""
        self._link.loop.later(CONTROL_TIMEOUT_S, self._expire)
        self._link.when_up(functools.partial(self._with_channel, self._count))

    def _with_channel(self, step: Callable[[], None]) -> None:
        if self._future.done():
            return
        self._channel = self._link.connection.channel(on_open_callback=lambda _channel: step())
        self._channel.add_on_close_callback(self._closed)

    def _count(self) -> None:
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
        if is_missing(error) and not self._steps:
            self._plan()
        else:
            self._fail(translate(error, f"group {self._group!r}"))

    def _plan(self) -> None:
        found, asked = self._found, self._asked
        if found and asked is not None and asked != found:
            text = f"group {self._group!r} has {found} partitions, not {asked}; the number is fixed for ever"
            self._fail(ConfigError(text, key="partition_count"))
            return
        count = found or asked or self._options.partitions
        self._found = count
        for partition in reversed(range(count)):
            self._steps.extend(stream_arguments(self._options, self._group, partition).items())
        self._with_channel(self._declare)

    def _declare(self) -> None:
        name, arguments = self._steps[0]
        self._channel.queue_declare(name, durable=True, arguments=arguments, callback=self._declared)

    def _declared(self, _frame: Any) -> None:
        self._steps.popleft()
        if self._steps:
            self._declare()
        elif not self._future.done():
            self._future.set_result(self._found)
            self._channel.close()

    def _fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def _expire(self) -> None:
        self._fail(BackendTimeoutError(f"group {self._group!r} could not be set up within {CONTROL_TIMEOUT_S} s"))


def scan_checkpoints(
    link: ReadingLink,
    group: str,
    partition: int,
    nonce: bytes,
    future: Future[Checkpoint | None],
) -> None:
    """Resolve *future* with the last checkpoint in front of the marker *nonce*; on the reading loop's thread."""
    last: Checkpoint | None = None

    def take(body: bytes) -> bool:
        nonlocal last
        try:
            record = decode_checkpoint(body)
        except WireFormatError:
            return False  # a newer plugin's; an older checkpoint is a lower bound too
        if isinstance(record, Checkpoint):
            last = record
        elif record == nonce:
            if not future.done():
                future.set_result(last)
            return True
        return False

    scan = Scan(link, checkpoint_name(group, partition), take, future)
    link.loop.later(CONTROL_TIMEOUT_S, scan.expire)
    link.when_up(scan.open)
