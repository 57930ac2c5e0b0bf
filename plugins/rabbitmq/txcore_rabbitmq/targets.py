"""Checks before a half is stored whether its targets exist: passive declares, remembered for a while.

The broker answers whether a queue or an exchange exists, but not whether an exchange has a binding for a routing key.
A missing binding is found only when the message is returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from txcore.backends.target_cache import Found, TargetCache
from txcore.backends.target_hint import how_to_make
from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError
from txcore_rabbitmq.codec import Target, is_forbidden, is_locked, is_login_refused, is_missing, translate


class TargetChecks:
    """Questions for targets, one at a time on a channel of its own, as a refusal closes it. On the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: Any = None
        self._channel: Any = None
        self._cache: TargetCache[Target, bool] = TargetCache(clock, self._begin)
        self._queue: deque[Target] = deque()
        self._is_asking = False
        self._refusal: TxcoreError | None = None

    def is_known(self, target: Target) -> bool:
        """Return whether the target was found not long ago."""
        return self._cache.known(_what(target), self._clock.elapsed_s()) is not None

    def ask(self, targets: Iterable[Target], found: Found) -> None:
        """Call *found* once: when *targets* were found, or with the first error. The caller keeps a deadline."""
        self._cache.ask(map(_what, targets), found)

    def forget(self, target: Target) -> None:
        """Ask for the target again next time, as a message to it was refused."""
        self._cache.forget(_what(target))

    def up(self, connection: Any) -> None:
        """Ask the waiting questions on a new connection."""
        self._connection = connection
        self._refusal = None
        self._is_asking = False
        self._next()

    def down(self, error: TxcoreError) -> None:
        """Keep the questions for the next connection, or answer all with *error* if the broker refuses the login."""
        self._connection = self._channel = None
        self._is_asking = False
        if is_login_refused(error):
            self._refusal = error
            queue, self._queue = self._queue, deque()
            self._begin(queue)

    def _begin(self, targets: Iterable[Target]) -> None:
        if self._refusal is None:
            self._queue.extend(targets)
            self._next()
        else:
            for target in targets:
                self._cache.failed(target, self._refusal)

    def _next(self) -> None:
        if self._is_asking or self._connection is None or not self._queue:
            return
        self._is_asking = True
        if self._channel is None:
            self._channel = self._connection.channel(on_open_callback=self._opened)
            self._channel.add_on_close_callback(self._closed)
        else:
            self._opened(self._channel)

    def _opened(self, channel: Any) -> None:
        target = self._queue[0]
        if target.exchange:
            channel.exchange_declare(target.exchange, passive=True, callback=lambda _frame: self._answer(None))
        else:
            channel.queue_declare(target.routing_key, passive=True, callback=lambda _frame: self._answer(None))

    def _closed(self, _channel: Any, error: BaseException) -> None:
        self._channel = None
        if self._connection is None or not self._is_asking:
            return
        target = self._queue[0]
        if is_locked(error) or is_forbidden(error):
            # The queue is another connection's exclusive one; or this user may not ask for it, but may publish to it.
            self._answer(None)
        elif is_missing(error):
            kind, name = ("exchange", target.exchange) if target.exchange else ("queue", target.routing_key)
            advice = "" if target.exchange else f", or {how_to_make(name)}"
            text = f"there is no {kind} {name!r}; declare it before sending to it{advice}"
            self._answer(MessageRejectedError(text, topic=name, reason="unknown"))
        elif getattr(error, "reply_code", None) is not None and self._connection.is_open:
            self._answer(translate(error, f"asking for target {target}"))

    def _answer(self, error: TxcoreError | None) -> None:
        self._is_asking = False
        target = self._queue.popleft()
        if error is None:
            self._cache.answered(target, True)
        else:
            self._cache.failed(target, error)
        self._next()


def _what(target: Target) -> Target:
    return Target(target.exchange, "") if target.exchange else target
