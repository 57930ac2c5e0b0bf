"""The measures that every system with Kafka and blocking callers shares.

A system gives one function: it commits a transaction with one message of a number, and returns when the COMMIT was
answered, by time.monotonic().
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Final

from benchmarks.drive import Drive
from benchmarks.rivals.system import CALLERS, OVERLOAD, RECOVERY, TRANSACTIONAL, Plan, Row, callers, percentiles
from benchmarks.rivals.topic import Topic, wait_until

Commit = Callable[[int], float]
IDLE_RATE: Final = 10
GRACES_S: Final = (10.0, 60.0)
"""Times, in seconds, after an overload at which missing messages are counted: late ones arrive, lost ones do not."""
_WARM_UP_S: Final = 0.5
_DRAIN_MAX_S: Final = 60.0


def rate(commit: Commit, numbers: itertools.count[int], plan: Plan, words: str) -> dict[Row, float]:
    """Measure the number of transactions that 16 callers commit."""

    def call() -> None:
        commit(next(numbers))

    Drive(_WARM_UP_S).threads(call, CALLERS)
    return {Row(TRANSACTIONAL, f"{callers(CALLERS)}, {words}", "/s"): Drive(plan.seconds).threads(call, CALLERS).per_s}


def recovery(topic: Topic, count: int, took_s: float) -> dict[Row, float]:
    """Return the rows of a recovery of *count* transactions, and close their *topic*."""
    found = topic.numbers()
    topic.close()
    words = f"of {count:,}"
    return {
        Row(RECOVERY, words, "s"): took_s,
        Row(f"{RECOVERY}: not delivered", words, ""): count - len(found),
        Row(f"{RECOVERY}: duplicates", words, ""): found.total() - len(found),
    }


def visible(
    commit: Commit, numbers: itertools.count[int], topic: Topic, plan: Plan, suffix: str = ""
) -> dict[Row, float]:
    """Measure from the answered COMMIT to an ordinary consumer: one idle caller, and a steady load.

    *suffix* ends the names of the loads.
    """
    found: dict[Row, float] = {}
    for a_second, thread_count, words in (
        (IDLE_RATE, 1, f"idle, {IDLE_RATE}/s"),
        (plan.rate, CALLERS, f"{plan.rate}/s"),
    ):
        found |= percentiles(
            _latencies(commit, numbers, topic, a_second, thread_count, max(plan.seconds, 3)), words + suffix
        )
    return found


def _latencies(
    commit: Commit, numbers: itertools.count[int], topic: Topic, a_second: float, thread_count: int, seconds: float
) -> list[float]:
    committed: dict[int, float] = {}

    def work(first_s: float) -> None:
        for due_s in itertools.count(first_s, thread_count / a_second):
            if due_s > begin_s + seconds:
                return
            time.sleep(max(due_s - time.monotonic(), 0))
            number = next(numbers)
            committed[number] = commit(number)

    with topic.watched() as arrived:
        first = next(numbers)
        commit(first)
        wait_until(lambda: first in arrived, _DRAIN_MAX_S)
        begin_s = time.monotonic()
        threads = [
            threading.Thread(target=work, args=(begin_s + each / a_second,), daemon=True)
            for each in range(thread_count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return latencies_ms(committed, arrived)


def latencies_ms(committed: dict[int, float], arrived: dict[int, float]) -> list[float]:
    """Return the times from COMMIT to arrival; a message that does not arrive counts as arriving at the time limit."""
    wait_until(lambda: committed.keys() <= arrived.keys(), _DRAIN_MAX_S)
    now_s = time.monotonic()
    return [max(arrived.get(number, now_s) - at_s, 0) * 1e3 for number, at_s in committed.items()]


def overload(topic: Topic, words: str, send_for: Callable[[float], list[int]], plan: Plan) -> dict[Row, float]:
    """Measure how many transactions that *send_for* reports as committed are not in the topic soon after."""
    missing = set(send_for(plan.overload_s))
    found: dict[Row, float] = {Row(f"{OVERLOAD}: reported committed", words, ""): len(missing)}
    begin_s = time.monotonic()

    def are_there() -> bool:
        missing.difference_update(topic.numbers())
        return not missing

    for grace_s in GRACES_S:
        wait_until(are_there, begin_s + grace_s - time.monotonic(), 1.0)
        found[Row(f"{OVERLOAD}: missing after {grace_s:g} s", words, "")] = len(missing)
    return found


def from_threads(commit: Commit, numbers: itertools.count[int], thread_count: int) -> Callable[[float], list[int]]:
    """Return a function that commits from threads for a time and returns the numbers whose COMMIT was answered."""
    reported: list[int] = []

    def call() -> None:
        number = next(numbers)
        commit(number)
        reported.append(number)

    def send_for(seconds: float) -> list[int]:
        Drive(seconds).threads(call, thread_count)
        return reported

    return send_for
