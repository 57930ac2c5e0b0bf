"""Rules of the protocol that neither the simulator nor the model can switch off."""

from __future__ import annotations

from unittest import mock

import msgspec
from mutant import Mutant

from txcore import message, wire
from txcore.backends.holdings import Holdings
from txcore.checker import finish, partition_state
from txcore.checker.decide import Pending
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.history.log_survey import Survey
from txcore.ids import IdFactory
from txcore.records import FINAL_KINDS, OpKind, Parked
from txcore.sqlfence.async_fence import AsyncSqlFence

_new = IdFactory.new
_read_half = PartitionState.read_half
_note_discard = PartitionState._note_discard
_enqueue = PartitionState._enqueue
_may_follow = finish.may_follow


def new_of_a_millisecond(self, partition_count=1):
    """Return the same id again within one millisecond."""
    kept = getattr(self, "kept", None)
    if kept is None or kept[:6] != self._clock.wall_ms().to_bytes(6, "big"):
        self.kept = _new(self, partition_count)
    return self.kept


def read_half_without_journal(self, position, pending, *place):
    """Fold a half, and do not look back for the journal of a copy without a proof."""
    _read_half(self, position, pending, *place)
    if pending.extras.is_unproven:
        pending.note(look_back=None)


def parked_of_any_number(body):
    """Decode a parked record, whatever its numbers are."""
    return Parked(*msgspec.msgpack.decode(body)[1:])


def note_discard_as_an_end(self, seen, op):
    """Let a DISCARD that is not in force free the order key of its half."""
    self._pass(op.transaction_id)
    _note_discard(self, seen, op)


def commit_with_request(self, position, at_ms=0.0):
    """Note a COMMITTED, and keep the operator's request."""
    self.decision = OpKind.COMMIT
    self.note(final_at=position, committed_ms=at_ms)


def halves_undecided(self):
    """Keep the held halves out of the notes of checkpoints."""
    return [seen.pending for seen in self.line if seen.pending is not None]


def enqueue_once(self, pending, copy=None):
    """Give a half the place of the record that was read first, whatever a copy knows."""
    if copy is None:
        _enqueue(self, pending)


def follow_from_a_round(tenure, pending):
    """Let a half follow the one before it although it is in a round."""
    with mock.patch.object(tenure, "in_round", ()):
        return _may_follow(tenure, pending)


def follow_again(tenure, pending):
    """Let a half follow the one before it although a release of it may be under way."""
    extras = msgspec.structs.replace(pending.extras, failures=0, refusals=0, missing=None)
    return _may_follow(tenure, msgspec.structs.replace(pending, extras=extras))


MUTANTS = [
    Mutant(
        "half-of-a-round-follows",
        "A half whose tick is under way is released after that, and not at once after the one before it.",
        lambda: mock.patch.object(finish, "may_follow", follow_from_a_round),
        "tests/core/checker/test_hand_over.py::test_a_half_of_a_round_does_not_follow",
    ),
    Mutant(
        "tried-half-follows",
        "A half that was tried is released again only after a tick.",
        lambda: mock.patch.object(finish, "may_follow", follow_again),
        "tests/core/checker/test_hand_over.py::test_a_half_that_was_tried_before_is_released_again_after_a_tick",
    ),
    Mutant(
        "rollback-ends-unknown-half",
        "A ROLLBACK of a half of which nothing else is known takes nothing off the operator's list.",
        lambda: mock.patch.object(partition_state, "ENDS_OF_UNKNOWN", FINAL_KINDS),
        "tests/core/checker/test_owner_races.py::"
        "test_a_rollback_after_a_committed_leaves_the_parked_half_on_the_list[kafka-like]",
    ),
    Mutant(
        "void-discard-frees-key",
        "A DISCARD under an outdated claim frees no order key.",
        lambda: mock.patch.object(PartitionState, "_note_discard", note_discard_as_an_end),
        "tests/core/checker/test_key_order.py::test_a_void_discard_frees_no_key",
    ),
    Mutant(
        "later-place-of-an-ordered-half",
        "Of two places of an ordered half the earlier one counts, also when a copy knows it that is read later.",
        lambda: mock.patch.object(PartitionState, "_enqueue", enqueue_once),
        "tests/core/checker/test_key_order.py::test_the_place_of_a_half_is_the_earliest_that_a_copy_knows",
    ),
    Mutant(
        "held-half-not-noted",
        "A checkpoint's note has the age of a held half.",
        lambda: mock.patch.object(PartitionState, "kept", halves_undecided),
        "tests/core/checker/test_key_order.py::test_many_takeovers_do_not_make_a_held_half_young[rabbitmq-like]",
    ),
    Mutant(
        "request-kept-after-committed",
        "An operator's request is void once its half is committed.",
        lambda: mock.patch.object(Pending, "commit", commit_with_request),
        "tests/core/checker/test_key_order.py::test_a_request_is_void_once_its_half_is_committed",
    ),
    Mutant(
        "parked-entry-left-open",
        "The final op of a resumed half closes its entry among the parked ones.",
        lambda: mock.patch.object(finish, "closed_record", return_value=b""),
        "tests/core/history/test_parked_entries.py::"
        "test_a_resumed_half_that_ended_does_not_come_back[kafka-like-LocalTransactionState.COMMIT-1]",
    ),
    Mutant(
        "judged-before-all-was-read",
        "An owner judges nothing before it has read all halves that were stored before its claim.",
        lambda: mock.patch.object(Tenure, "may_judge", property(lambda _: True, lambda *_: None), create=True),
        "tests/core/checker/test_copy_proofs.py::"
        "test_plain_record_that_is_read_before_the_genuine_copy_changes_nothing",
    ),
    Mutant(
        "unproven-copy-without-end",
        "A copy without a proof is closed by an end that the checkpoint has passed.",
        lambda: mock.patch.object(PartitionState, "read_half", read_half_without_journal),
        "tests/core/checker/test_copy_proofs.py::test_unproven_copy_of_a_half_that_has_ended_is_closed_by_its_end",
    ),
    Mutant(
        "operator-believes-copies",
        "An operator's tools leave out copies without a proof.",
        lambda: mock.patch.object(Survey, "_unproven", return_value=()),
        "tests/core/checker/test_copy_proofs.py::test_operator_does_not_see_a_forged_copy[a later generation]",
    ),
    Mutant(
        "audit-believes-copies",
        "The audit leaves out copies without a proof.",
        lambda: mock.patch("txcore_spark.copies.counting", side_effect=lambda rows, *_: rows),
        "tests/audit/test_rules.py::test_every_history_gets_exactly_its_verdicts",
    ),
    Mutant(
        "numbers-without-ranges",
        "A record with a number out of range is damaged.",
        lambda: mock.patch.object(wire, "decode_parked", parked_of_any_number),
        "tests/core/vocabulary/test_wire.py::"
        "test_a_number_out_of_range_is_refused_by_the_name_of_its_field[parked-generation]",
    ),
    Mutant(
        "checker-with-unawaited-fence",
        "A checker takes an asynchronous fence only with the event loop in which it works.",
        lambda: mock.patch.object(AsyncSqlFence, "is_async", new=False),
        "tests/fence/test_identity.py::test_checker_refuses_an_asynchronous_fence_without_its_loop",
    ),
    Mutant(
        "demo-without-causes",
        "The demo's verdict allows a second copy for each attempt that was killed.",
        lambda: mock.patch("txcore_conformance.demo.verdict._header", return_value=""),
        "tests/cli/test_demo_verdict.py::test_each_killed_attempt_may_leave_a_copy[copies1-dead1]",
    ),
    Mutant(
        "stuck-checker-keeps",
        "A checker that does not poll loses its partitions, although its process and connections live.",
        lambda: mock.patch.object(Holdings, "is_stuck", new=False),
        "tests/core/backends/test_holdings.py::test_time_without_a_poll_is_counted",
    ),
    Mutant(
        "identity-repeats",
        "Each transaction has an id of its own.",
        lambda: mock.patch.object(IdFactory, "new", new_of_a_millisecond),
        "tests/core/vocabulary/test_ids.py::test_ids_of_one_factory_ascend_within_a_millisecond",
    ),
    Mutant(
        "message-reserved-header-sent",
        "A header that txcore reserves is refused by name.",
        lambda: mock.patch.object(message, "_validate_headers"),
        "tests/core/vocabulary/test_message.py::test_a_message_is_rejected_with_the_rule_it_breaks[a header of ours]",
    ),
]
