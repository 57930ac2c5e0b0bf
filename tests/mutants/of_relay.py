"""The relay's rules, switched off one by one."""

from __future__ import annotations

from unittest import mock

from mutant import Mutant

from txcore.outbox import relay_steps as relaying
from txcore.records import Status

TESTS = "tests/fence/test_relay.py::"
_is_through = relaying._is_through


def go_on_after_an_uncertain_message(context, work, row, outcome):
    """Send the next message of a lane although the one before may not be stored."""
    return _is_through(context, work, row, outcome) or outcome.status is Status.UNKNOWN


def delete_an_uncertain_message(context, work, row, outcome):
    """Take a message without an answer for sent, and delete its row."""
    if outcome.status is Status.UNKNOWN:
        work.sent.append(row)
        return False
    return _is_through(context, work, row, outcome)


def replaced(name, new):
    """Return a patch of the module `relaying`."""
    return lambda: mock.patch.object(relaying, name, new)


MUTANTS = [
    Mutant(
        "relay-goes-on-after-uncertain",
        "A lane stops at a message without a certain answer.",
        replaced("_is_through", go_on_after_an_uncertain_message),
        TESTS + "test_lane_stops_at_a_message_without_a_certain_answer",
    ),
    Mutant(
        "relay-deletes-uncertain",
        "A row is deleted only after the broker's confirmation.",
        replaced("_is_through", delete_an_uncertain_message),
        TESTS + "test_outage_of_the_broker_uses_up_no_try[sqlite]",
    ),
    Mutant(
        "relay-counts-outages",
        "Only a target's own refusal counts as a try.",
        replaced("_is_verdict", lambda _: True),
        TESTS + "test_backend_that_did_not_take_it_for_an_outage_is_an_outage[down]",
    ),
    Mutant(
        "relay-never-rests",
        "A lane whose oldest message was refused rests before it is tried again.",
        replaced("_rest", lambda context, lane: None),
        TESTS + "test_refused_message_holds_up_its_key_and_nothing_else[sqlite]",
    ),
]
