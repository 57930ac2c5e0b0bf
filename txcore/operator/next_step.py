"""The next step of a transaction and its actor, as one sentence."""

from __future__ import annotations

from typing import Final

from txcore.history.journey import Journey, why_no_half
from txcore.ids import id_text
from txcore.operator.plan import decider_text
from txcore.operator.to_json import kind_name, park_code
from txcore.records import ParkCode

_TURNS: Final = {
    True: "until then later halves of its order key wait",
    False: "it is published after all earlier halves of its order key",
}
"""What the order key of a half means for it, by whether it is parked."""


def next_step(journey: Journey, name: str = "") -> str:
    """Return the next step of a transaction.

    Args:
        name: The id that an operator types in a command; "" where the operator has buttons instead.
    """
    half = journey.any_half
    if half is not None and half.order_key and not journey.final:
        return f"{_next_step(journey, name)}; {_TURNS[journey.is_parked]}"
    return _next_step(journey, name)


def _next_step(journey: Journey, name: str) -> str:
    half, inner = journey.any_half, journey.inner_half
    resume = f"txcore resume {name}" if name else "resume it"
    if journey.final:
        return "nothing: it is finished"
    if inner is not None:
        return f"{resume}: it holds the half of {id_text(inner.transaction_id)}"
    if journey.is_poison and journey.is_dismissible:
        rollback = f"txcore rollback {name} --why TEXT" if name else "a rollback"
        return f"find the program that writes into this log; {rollback} takes it off the list"
    if journey.is_newer or (journey.is_parked and half is None):
        return why_no_half(journey)
    if journey.is_parked and journey.awaits_release and park_code(journey) != ParkCode.UNDELIVERABLE:
        return f"{resume}: it is committed, and the checker publishes it without asking"
    if journey.is_parked and journey.decided:
        return f"repair the topic, then {resume}"
    if journey.is_parked:
        return f"{resume}, or txcore commit | rollback {name} --why TEXT" if name else f"{resume}, or decide"
    if journey.awaits_release:
        return "committed; the checker that owns its partition publishes it"
    if journey.decided:
        return f"{kind_name(journey.decided)} is decided; the checker carries it out"
    if journey.request is not None:
        return f"{journey.request.by} asks for {kind_name(journey.request.decision)}; the checker executes it"
    if not journey.halves:
        return "nothing: its half is gone from the log"
    return f"the checker asks {decider_text(half) if half is not None else 'the listener'}"
