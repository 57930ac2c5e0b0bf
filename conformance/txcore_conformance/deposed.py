"""A leader that is replaced while it is frozen: its later answers must not count as the end of a log.

A test of a backend on a cluster freezes the node that leads the half log of partition 0, and another node acknowledges
halves. After the thaw the test asks for the log's end until the old leader has noticed the new one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from txcore.errors import BackendTimeoutError, BackendUnavailableError
from txcore.port import Backend, Reader
from txcore.records import LogKind, Position, Status
from txcore_conformance import raw
from txcore_conformance.brokers.broker import ManagedBroker
from txcore_conformance.kit import Kit

BEFORE_COUNT: Final = 5
DURING_COUNT: Final = 100
AFTER_S: Final = 8.0
PAUSE_S: Final = 0.002
ASKED_COUNT: Final = 5
SPACE_S: Final = 0.05
"""Pause, in seconds, between questions to the frozen leader, which keeps them separate."""


def wrong_ends(
    kit: Kit,
    topic: str,
    leader: ManagedBroker,
    asking: Backend,
    open_others: Callable[[], Backend],
    is_replaced: Callable[[], Any],
) -> int:
    """Return how often a reader passed an end without halves that were acknowledged before the question.

    Args:
        leader: Node that leads the half log of partition 0.
        asking: Backend that reads, connected to the leader.
        open_others: Opens the backend that appends while the leader is frozen, connected to other nodes.
        is_replaced: Whether another node leads the log now.
    """
    raw.append(kit, *[raw.half(kit, topic) for _ in range(BEFORE_COUNT)])
    reader = asking.read(kit.group, LogKind.HALF, 0)
    bodies: list[bytes] = []

    def has_passed(end: int) -> bool:
        _read_some(reader, bodies)
        return reader.passed >= end

    end = kit.wait(reader.end())
    kit.until(lambda: has_passed(end), "reading the earlier halves")
    leader.pause()
    try:
        kit.until(is_replaced, "another leader")
        others = open_others()
        stored_count = kit.until(lambda: _append(kit, topic, others), "an acknowledgement by the new leader")
        asked = deque(_spaced(reader.end) for _ in range(ASKED_COUNT))  # answered first after the thaw
    finally:
        leader.resume()
    wrong_count = 0
    until_s = time.monotonic() + AFTER_S
    while time.monotonic() < until_s:
        try:
            end = kit.wait(asked.popleft() if asked else reader.end())
        except (BackendTimeoutError, BackendUnavailableError):
            continue
        wrong_count += has_passed(end) and len(bodies) < BEFORE_COUNT + stored_count
        time.sleep(PAUSE_S)
    kit.until(lambda: has_passed(end) and len(bodies) >= BEFORE_COUNT + stored_count, "the rest of the log")
    reader.close()
    kit.wait(others.close(kit.timeout_s))
    return wrong_count


def _spaced(ask: Callable[[], Future[Position]]) -> Future[Position]:
    time.sleep(SPACE_S)
    return ask()


def _append(kit: Kit, topic: str, backend: Backend) -> int:
    halves = [raw.half(kit, topic) for _ in range(DURING_COUNT)]
    return sum(outcome.status is Status.DURABLE for outcome in raw.append(kit, *halves, backend=backend))


def _read_some(reader: Reader, bodies: list[bytes]) -> None:
    try:
        bodies.extend(record.body for record in reader.read(1_000))
    except BackendUnavailableError:
        return
