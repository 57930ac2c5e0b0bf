"""What is pending and parked in a group, read from its logs; one read at a time, kept for a moment.

A page that is reloaded, or ten that are open, cost the broker no more than one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from txcore.clock import Clock
from txcore.ids import id_text
from txcore.operator import Operator, ParkedHalf, PendingHalf
from txcore.port import Backend

KEPT_S: Final = 2.0


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock
    read_at_s: float = -1.0
    backend: Backend | None = None
    rows: Sequence[dict[str, Any]] = ()


class Lists:
    """Reads and keeps. Thread safe; calls block while they read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._lock = threading.Lock()

    def pending(self, backend: Backend, group: str) -> Sequence[dict[str, Any]]:
        """Return the undecided halves of all partitions, oldest first. Raises: as `Operator.pending`."""
        return self._read("pending", backend, group, lambda operator: list(map(_pending, operator.pending())))

    def parked(self, backend: Backend, group: str) -> Sequence[dict[str, Any]]:
        """Return the parked halves, oldest first. Raises: as `Operator.parked`."""
        return self._read("parked", backend, group, lambda operator: list(map(_parked, operator.parked())))

    def _read(
        self, kind: str, backend: Backend, group: str, read: Callable[[Operator], Sequence[dict[str, Any]]]
    ) -> Sequence[dict[str, Any]]:
        with self._lock:
            kept = self._kept.setdefault((kind, group), _Kept(threading.Lock()))
        with kept.lock:
            is_fresh = 0 <= self._clock.elapsed_s() - kept.read_at_s < KEPT_S
            if not is_fresh or kept.backend is not backend:
                kept.rows = read(Operator(backend, group, by="console", clock=self._clock))
                kept.backend, kept.read_at_s = backend, self._clock.elapsed_s()
            return kept.rows


def _pending(half: PendingHalf) -> dict[str, Any]:
    return {
        "transaction_id": id_text(half.transaction_id),
        "partition": half.partition,
        "generation": half.generation,
        "born_ms": half.born_ms,
        "check_times": half.check_times,
        "topics": half.topics,
    }


def _parked(half: ParkedHalf) -> dict[str, Any]:
    return {
        "transaction_id": id_text(half.transaction_id),
        "partition": half.partition,
        "generation": half.generation,
        "code": half.code,
        "reason": half.reason,
        "parked_ms": half.parked_ms,
        "check_times": half.check_times,
        "topics": half.topics,
        "missing": half.missing,
    }
