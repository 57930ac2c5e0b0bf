"""The back-off of a half after a check without an answer or a failed write. It uses up no check (R10)."""

from __future__ import annotations

from txcore.checker.decide import Pending
from txcore.checker.tenure import Tenure
from txcore.errors import sentence_of
from txcore.runtime import instrumentation as names


def put_off(tenure: Tenure, pending: Pending, error: Exception | None = None, retry_after_s: float = 0.0) -> None:
    """Let a half be due again later: after `retry_s` at first, twice as long each time, up to `retry_max_s`.

    The pause is no longer than the half's interval between checks, but at least *retry_after_s*.

    Args:
        error: Why a write or a reading failed; it is reported.
    """
    limits = tenure.context.limits
    backoff_s = min(limits.retry_s * 2 ** min(pending.extras.failures, 20), limits.retry_max_s)
    pending.note(failures=pending.extras.failures + 1)
    backoff_ms = min(backoff_s * 1000, max(pending.terms.interval_ms, limits.retry_s * 1000))
    pending.due_ms = tenure.now_ms() + max(backoff_ms, retry_after_s * 1000)
    if error is not None:
        tenure.context.report.event(
            names.RELEASE_UNKNOWN, transaction_id=pending.transaction_id, error=sentence_of(error)
        )
