"""Draining: the kit's relays and checkers run until every transaction is decided, and the clock moves meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txcore.findings import counted
from txcore.testing.checking import KitChecker, Waiting
from txcore.testing.clock import ManualClock
from txcore.testing.unsettled import Unsettled

if TYPE_CHECKING:  # needs the extra sql
    from txcore.outbox.relay import Relay

TRIES_MAX: Final = 3
"""Checks without an answer after which a half counts as one that can never be decided here."""
RELAY_PAUSE_S: Final = 30.0
RELAY_TRIES_MAX: Final = 25
"""Batches of a relay: more than the refusals after which it parks a message."""
STEP_S: Final = 0.001
"""Time, in seconds, by which the clock moves past a due time, so that rounding makes no half early."""


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The result of `Kit.drain`.

    Attributes:
        committed: Transactions whose messages the checker published.
        rolled_back: Transactions that the checker ended without a message.
        parked: Transactions, or messages of the table, that were given up, until an operator resumes them.
        relayed: Messages that the relay published from the message table.
        moved_s: Seconds by which the clock was moved.
    """

    committed: int = 0
    rolled_back: int = 0
    parked: int = 0
    relayed: int = 0
    moved_s: float = 0.0


class UndecidedError(AssertionError):
    """Transactions that can never be decided as the test is set up; `transactions` has each with its reason."""

    def __init__(self, transactions: Sequence[Unsettled], further: Sequence[str] = ()) -> None:
        lines = [*map(str, transactions), *further]
        super().__init__("the kit cannot decide everything:\n" + "\n".join(f"  {line}" for line in lines))
        self.transactions = list(transactions)


def drain(
    clock: ManualClock,
    checkers: Sequence[KitChecker],
    relays: Sequence[Relay],
    unsettled: Callable[[], Sequence[Unsettled]],
    *,
    may_await: bool,
) -> Generator[Waiting, None, DrainReport]:
    """Run until nothing is undecided; yields the calls of user code that it waits for. The report is its return value.

    Raises:
        UndecidedError: halves or messages that no further check and no time would settle.
    """
    began_s, before = clock.now_s, _counts(checkers)
    sent = parked = 0
    while True:
        for relay in relays:
            now_sent, now_parked = _relay(clock, relay)
            sent, parked = sent + now_sent, parked + now_parked
        for checker in checkers:
            yield from checker.sweep(may_await=may_await)
        pending = [each for checker in checkers for each in checker.pending()]
        due = [wait_s for half, wait_s in pending if half.extras.failures < TRIES_MAX]
        if not due:
            break
        clock.advance(max(min(due), 0.0) + STEP_S)
    blocked = [reason for checker in checkers for reason in checker.blocked()]
    left = [each for each in unsettled() if not each.is_parked]
    if left or blocked:
        raise UndecidedError(left, blocked)
    done = [after - count for after, count in zip(_counts(checkers), before, strict=True)]
    return DrainReport(done[0], done[1], done[2] + parked, sent, clock.now_s - began_s)


def _counts(checkers: Sequence[KitChecker]) -> list[int]:
    return [sum(each.counts.get(name, 0) for each in checkers) for name in ("commit", "rollback", "parked")]


def _relay(clock: ManualClock, relay: Relay) -> tuple[int, int]:
    """Send everything that waits in a message table; returns the numbers of messages sent and parked."""
    sent = parked = 0
    for _ in range(RELAY_TRIES_MAX):
        report = relay.run_once()
        sent, parked = sent + report.sent, parked + report.parked
        stats = relay.waiting()
        if not stats.waiting:
            return sent, parked
        clock.advance(RELAY_PAUSE_S)
    reason = relay.stats().newer or "the broker gives no certain answer"
    raise UndecidedError([], [f"{counted(stats.waiting, 'message')} in the message table: {reason}"])
