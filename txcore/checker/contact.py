"""Whether the broker answers a checker, and which partitions fail: the checker's part of readiness.

A checker that has nothing to write hears nothing from its broker: an empty read proves nothing. So it asks when it has
heard no answer for a while. Questions are never waited for, so a frozen broker holds up neither the loop nor a reader
of these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock
from txcore.errors import TxcoreError

ASK_AFTER_S: Final = 2.0
"""Time, in seconds, without an answer after which the broker is asked, and between two questions."""
ANSWER_MAX_S: Final = 6.0
"""Age, in seconds, of a question without an answer at which the broker counts as down."""
QUESTIONS_MAX: Final = 8
"""Most questions under way."""
FAILING_S: Final = 2.0
"""Time, in seconds, over which a partition must fail without a success in between, to be called failing."""
KEPT_S: Final = 8.0
"""Time, in seconds, for which a failure counts. Longer than from one failure of a mark to the next."""


class Contact:
    """The last answer of the broker to one checker. `look` runs on the checker's loop, everything else on any thread.

    Args:
        ask: Asks the broker, see `Backend.ping`.
        changed: Called by `look` when the broker counts as down, with the reason, and with "" when it answers again.
    """

    def __init__(self, clock: Clock, ask: Callable[[], Future[None]], changed: Callable[[str], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._changed = changed
        self._heard_s = self._asked_s = clock.elapsed_s()
        self._unanswered_since_s: float | None = None  #: when the first question after the last answer was asked
        self._under_way: set[Future[None]] = set()
        self._error = ""
        self._is_down = False

    def heard(self) -> None:
        """Note an answer of the broker."""
        self._heard_s = self._clock.elapsed_s()
        self._unanswered_since_s = None
        self._error = ""

    @property
    def trouble(self) -> str:
        """Why the broker counts as down, as `look` found and reported it; "" while it answers."""
        if not self._is_down:
            return ""
        error = self._error
        return f"no answer for {self._clock.elapsed_s() - self._heard_s:.0f} s{f': {error}' if error else ''}"

    def look(self) -> None:
        """Ask where it is time to, and report a change."""
        now_s = self._clock.elapsed_s()
        if now_s - max(self._heard_s, self._asked_s) >= ASK_AFTER_S and len(self._under_way) < QUESTIONS_MAX:
            self._send(now_s)
        since_s = self._unanswered_since_s
        is_down = since_s is not None and now_s - since_s >= ANSWER_MAX_S
        if is_down is not self._is_down:
            self._is_down = is_down
            self._changed(self.trouble)

    def _send(self, now_s: float) -> None:
        self._asked_s = now_s
        if self._unanswered_since_s is None:
            self._unanswered_since_s = now_s
        try:
            asked = self._ask()
        except TxcoreError as error:
            self._error = str(error)
            return
        self._under_way.add(asked)
        asked.add_done_callback(self._answered)

    def _answered(self, future: Future[None]) -> None:
        self._under_way.discard(future)
        error = future.exception()
        if error is None:
            self.heard()
        else:
            self._error = str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class _Failure:
    since_s: float
    last_s: float
    reason: str


class Failures:
    """What failed lately, by partition. Changed on the checker's loop, read on any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[int, _Failure] = {}

    def failed(self, partition: int, reason: str, began_s: float | None = None) -> None:
        """Note a failure of a step that began at *began_s*, by default now."""
        now_s = self._clock.elapsed_s()
        since_s = now_s if began_s is None else began_s
        known = self._found.get(partition)
        if known is not None and now_s - known.last_s <= KEPT_S:
            since_s = known.since_s
        self._found[partition] = _Failure(since_s, now_s, reason)

    def worked(self, partition: int) -> None:
        """Forget the failures of a partition, as the broker did there what was asked."""
        self._found.pop(partition, None)

    def lately(self) -> dict[int, str]:
        """Return why partitions fail, those that others may have taken over included, for `KEPT_S` at most."""
        now_s = self._clock.elapsed_s()
        return {
            partition: each.reason
            for partition, each in sorted(self._found.copy().items())
            if now_s - each.last_s <= KEPT_S and each.last_s - each.since_s >= FAILING_S
        }
