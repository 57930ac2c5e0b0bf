"""A gate before whoever is asked: once it is down, one question at a time finds out whether it is back.

Without it every waiting half would ask a dead callback or database by itself. Whoever is turned away learns for how
long; nothing is counted (R10).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness
from txcore.errors import CheckPostponedError

LOG: Final = logging.getLogger("txcore.sidecar")
JITTER: Final = 0.2
_RANDOM_BITS: Final = 32


@dataclass(slots=True)
class Passage:
    """One question; it says how it went by `failure`, which closes the gate once there are enough in a row."""

    failure: str = ""
    retry_after_s: float = 0.0


class Gate:
    """Counts failures in a row; closes, with doubling pauses, and opens with the first success. Thread safe.

    Args:
        name: What is behind it, for people.
        failures_max: Failures in a row that close it.
        first_s: The first pause.
        longest_s: The longest pause.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        randomness: Randomness,
        *,
        group: str = "",
        failures_max: int = 3,
        first_s: float = 0.5,
        longest_s: float = 30.0,
    ) -> None:
        self.name = name
        self.reason = ""  #: why it is closed; "" while it is open
        self._group = group
        self._clock = clock
        self._randomness = randomness
        self._failures_max = failures_max
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0
        self._pause_s = 0.0
        self._closed_until_s = 0.0
        self._is_probing = False
        self._changed = threading.Condition()

    @contextmanager
    def passage(self, wait_s: float) -> Iterator[Passage]:
        """Let one question through; while another one probes, wait up to *wait_s* for how that ends.

        Raises:
            CheckPostponedError: the gate is closed; `retry_after_s` says for how long.
        """
        self._enter(wait_s)
        passage = Passage()
        try:
            yield passage
        except BaseException as error:
            passage.failure = passage.failure or repr(error)
            raise
        finally:
            self._leave(passage)

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next question may pass; 0 while the gate is open."""
        with self._changed:
            return max(self._closed_until_s - self._clock.elapsed_s(), 0.0)

    def _enter(self, wait_s: float) -> None:
        deadline_s = self._clock.elapsed_s() + wait_s
        with self._changed:
            while self._failures >= self._failures_max:
                now_s = self._clock.elapsed_s()
                if now_s < self._closed_until_s:
                    raise self._postponed(self._closed_until_s - now_s)
                if not self._is_probing:
                    self._is_probing = True
                    return
                if now_s >= deadline_s:
                    raise self._postponed(self._first_s)
                self._changed.wait(deadline_s - now_s)

    def _postponed(self, retry_after_s: float) -> CheckPostponedError:
        return CheckPostponedError(
            f"{self.name} is down ({self.reason}); asked again in {retry_after_s:.1f} s", retry_after_s=retry_after_s
        )

    def _leave(self, passage: Passage) -> None:
        with self._changed:
            self._is_probing = False
            if passage.failure:
                self._fail(passage)
            else:
                if self.reason:
                    self._report("source.up", self.reason)
                self._failures, self._pause_s, self.reason = 0, 0.0, ""
            self._changed.notify_all()

    def _fail(self, passage: Passage) -> None:
        self._failures += 1
        now_s = self._clock.elapsed_s()
        if self._failures < self._failures_max or now_s < self._closed_until_s:
            return  # Those that were under way when it closed do not lengthen the pause.
        if not self.reason:
            self._report("source.down", passage.failure)
        self.reason = passage.failure
        self._pause_s = min(max(self._pause_s * 2, self._first_s), self._longest_s)
        jitter = 1 + JITTER * self._randomness.getrandbits(_RANDOM_BITS) / 2**_RANDOM_BITS
        self._closed_until_s = now_s + max(self._pause_s * jitter, passage.retry_after_s)

    def _report(self, event: str, reason: str) -> None:
        LOG.warning(event, extra={"txcore": {"group": self._group, "source": self.name, "reason": reason}})
