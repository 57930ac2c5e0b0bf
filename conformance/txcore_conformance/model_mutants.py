"""Mutants of the protocol: each leaves one rule out, and the model must find the violation.

The identifiers are shared with the simulator. From `decided_not_read_back` to `no_new_assignment` they are rules that
this model found to be needed: an owner acts on a DECIDED only after it has read it back under its own token; a DISCARD
after a DECIDED is void unless its reason is UNDELIVERABLE; the margin covers appends under way; an owner that gave up
is assigned again.
"""

from __future__ import annotations

from typing import Final

MUTANTS: Final = {
    "no_fence": "fenced",
    "op_before_target": "fenced",
    "local_after_uncertain_ack": "fenced",
    "exception_is_rollback": "fenced",
    "immunity_counts_as_check": "listener",
    "unanswered_counts_as_check": "listener",
    "checkpoint_past_undecided": "fenced",
    "late_producer_publishes": "listener",
    "last_op_wins": "resume",
    "discard_before_park": "listener",
    "rollback_without_tombstone": "fenced",
    "prune_without_horizon": "prune",
    "checkpoint_past_unread_op": "fenced",
    "resume_as_op": "resume",
    "stale_checkpoint_accepted": "resume",
    "decided_not_read_back": "resume",
    "discard_after_decided": "resume",
    "margin_too_small": "listener",
    "no_new_assignment": "fenced",
    "released_before_target": "owner",
    "owner_publishes_state_3": "owner-table",
}
"""Mutants, each with the configuration in which the model searches for its violation."""

INEXPRESSIBLE: Final = {
    "head_of_line_stop": "it needs a second transaction that the first one delays",
    "published_before_read_back": "it needs two contradicting decisions: a forced one, or a listener's second answer",
}
"""Mutants of the simulator that this model cannot distinguish from the protocol, each with the reason."""
