"""The halves in hand: each is busy from the start of its flow to its end, and delays no other one (R9)."""

from __future__ import annotations

from collections.abc import Callable

from txcore.checker import retry_backoff
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.tenure import Tenure
from txcore.runtime.commands import Flow, Spawn


def take(tenure: Tenure, halves: list[Pending]) -> None:
    """Take halves in hand; `give_back` ends that for each of them."""
    for pending in halves:
        pending.is_busy = True
    tenure.in_hand += len(halves)


def give_back(tenure: Tenure, pending: Pending) -> None:
    """Put a half back: it is looked at again when it is due, unless it was closed."""
    tenure.in_hand -= 1
    pending.is_busy = False
    pending.half = None
    if not pending.is_closed:
        tenure.state.schedule(pending, pending.due_ms)


def start(tenure: Tenure, pending: Pending, flow: Flow[None]) -> Flow[None]:
    """Take one half in hand and run its flow beside the others."""
    take(tenure, [pending])
    yield Spawn(_held(tenure, pending, flow))


def start_chunks(tenure: Tenure, halves: list[Pending], flow: Callable[..., Flow[None]]) -> Flow[None]:
    """Take halves in hand, in chunks of the size that one question or one reading may have; each chunk has a flow."""
    size = tenure.context.limits.fence_batch_count_max
    for index in range(0, len(halves), size):
        chunk = halves[index : index + size]
        take(tenure, chunk)
        yield Spawn(flow(tenure, chunk))


def together(tenure: Tenure, chunk: list[Pending], step: Callable[[Tenure, Pending], Flow[None]]) -> Flow[None]:
    """Read the records of halves in hand in one go; each then takes *step* in a flow of its own."""
    try:
        yield from tenure.logs.load(chunk)
    except Exception as error:  # noqa: BLE001 - they are put back, as one whose own flow fails
        for pending in chunk:
            retry_backoff.put_off(tenure, pending, error)
            give_back(tenure, pending)
        return
    for pending in chunk:
        if tenure.may_write and not pending.is_closed:
            yield Spawn(_held(tenure, pending, step(tenure, pending)))
        else:
            give_back(tenure, pending)


def _held(tenure: Tenure, pending: Pending, flow: Flow[None]) -> Flow[None]:
    """Run *flow* for a half in hand; whatever it ends with, the half is put back.

    One whose COMMITTED was read meanwhile is due at once, however long the flow would have it wait.
    """
    was_committed = pending.is_committed
    try:
        yield from flow
    except Exception as error:  # noqa: BLE001 - one half's trouble, whatever it is, must not stop the others (R9)
        retry_backoff.put_off(tenure, pending, error)
    finally:
        if pending.is_committed and not was_committed:
            pending.due_ms = AT_ONCE_MS
        give_back(tenure, pending)
