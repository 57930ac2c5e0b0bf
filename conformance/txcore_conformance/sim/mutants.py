"""The rules, switched off one by one: a simulator that does not find these mutants proves nothing.

A mutant patches the real core while it is on, or the broker or the fence if the rule is theirs. `needed_in` names the
profiles in which a run must find the mutant. For the others `elsewhere` has the reason, mostly that the store itself
makes the fault harmless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from txcore.checker import (
    check_steps,
    checkpoint,
    fence_check,
    finish,
    log_reader,
    newer_records,
    parking,
    retry_backoff,
)
from txcore.checker.copy_proofs import CopyProofs
from txcore.checker.coverage_gap import CoverageGap
from txcore.checker.decide import Pending
from txcore.checker.log_reader import LogReader
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.errors import CommitUnknownError
from txcore.memory import MemoryBackend
from txcore.message import LocalTransactionState
from txcore.outbox import relay_steps as relaying
from txcore.producer import finish as ending
from txcore.producer import listener_style as sending
from txcore.producer import transaction as transactions
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import LocalTransaction
from txcore.records import Checkpoint, Op, OpKind, Outcome, Position, Resolution, Status
from txcore.results import TransactionSendResult
from txcore.runtime.commands import Flow
from txcore_conformance.sim import cast as cast_module
from txcore_conformance.sim import (
    fence_mutants,
    log_mutants,
    operators,
    order_mutants,
    owner_mutants,
    producers,
    table_mutants,
)
from txcore_conformance.sim.cast import Cast
from txcore_conformance.sim.database import SimDatabase, SimFence
from txcore_conformance.sim.later import LaterRows
from txcore_conformance.sim.mutant import (
    ARBITRATED,
    KAFKA,
    NATS,
    RABBITMQ,
    RARE,
    RARER,
    STEPPED,
    STRONG,
    Mutant,
    op_first,
    replace,
)
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.table import SimRelayTable, SimTable

# -- fence and local transaction ---


_appended = flow.appended


def _appended_uncertainly(transaction: LocalTransaction, outcome: Outcome, began_s: float) -> None:
    """Continue after an unknown answer as if it were an ack."""
    _appended(transaction, Outcome(Status.DURABLE) if outcome.status is Status.UNKNOWN else outcome, began_s)


_finish = flow.database_finish
_judged = sending.judged


def _exception_rolls_back(transaction: LocalTransaction) -> Flow[Any]:
    try:
        return (yield from _finish(transaction))
    except CommitUnknownError:
        yield ending.resolution_of(transaction, OpKind.ROLLBACK, transaction.context.clock.wall_ms())
        raise


def _raising_listener_rolls_back(transaction: LocalTransaction, state: Any, error: Any, began_s: float) -> Any:
    judged = _judged(transaction, state, error, began_s)
    if not isinstance(judged, TransactionSendResult) or judged.error is None:
        return judged
    return LocalTransactionState.ROLLBACK


@contextlib.contextmanager
def _exception_is_rollback() -> Iterator[None]:
    with (
        mock.patch.object(flow, "database_finish", _exception_rolls_back),
        mock.patch.object(sending, "judged", _raising_listener_rolls_back),
    ):
        yield


# -- checks ------------------------------------------------------------------------------------------------------------


_schedule = PartitionState.schedule


@contextlib.contextmanager
def _immunity_counts_as_check() -> Iterator[None]:
    def judge(tenure: Tenure, due: list[Pending]) -> Any:
        for pending in due:
            if tenure.now_ms() < pending.immune_until_ms:
                pending.count += not pending.terms.fenced
        return _judge(tenure, due)

    def schedule(self: PartitionState, pending: Pending, due_ms: float) -> None:
        is_early = due_ms == pending.immune_until_ms and not pending.terms.fenced
        _schedule(
            self, pending, due_ms - 0.8 * (due_ms - pending.start_ms) if is_early and pending.count < 2 else due_ms
        )

    with (
        mock.patch.object(check_steps, "judge", judge),
        mock.patch.object(PartitionState, "schedule", schedule),
    ):
        yield


_judge = check_steps.judge
_put_off = retry_backoff.put_off


def _unanswered_counts(tenure: Tenure, pending: Pending, *rest: Any) -> None:
    _put_off(tenure, pending, *rest)
    pending.count += 1


_take_due = PartitionState.take_due


def _only_the_oldest(self: PartitionState, now_ms: float, count_max: int) -> list[Pending]:
    """Judge only the oldest undecided half; the next one when it is done."""
    due = _take_due(self, now_ms, count_max)
    oldest = next((pending for _, pending in self.oldest_open()), None)
    for pending in due:
        if pending is not oldest:
            self.schedule(pending, now_ms + 50)
    return [pending for pending in due if pending is oldest]


# -- logs and checkpoints ---


def _checkpoint_at_read(state: PartitionState, *_: object, **__: object) -> Checkpoint:
    half, op = state.half_read, state.op_read
    return Checkpoint(
        None if half is None else Position(half),
        None if op is None else Position(op),
        state.pass_ops(op),
    )


_went = finish.finish


def _closed_on_ack(tenure: Tenure, pending: Pending) -> Any:
    yield from _went(tenure, pending)
    if pending.extras.missing == () and pending.decision:
        tenure.state.close(pending, pending.decision)


def _last_final_wins(self: PartitionState, first: int, op: Op) -> None:
    del first
    seen = self._known(op.transaction_id)
    if seen is not None:
        seen.closed_by = op.kind


def _resume_by_op(cast: Cast, process: Process, command: Any, *rest: Any) -> None:
    """Write a NUDGE for the discarded generation where a resume would append the next one."""
    if process.name == "operator" and not isinstance(command, Resolution):
        op = Op(OpKind.NUDGE, command.transaction_id, command.generation - 1, "operator", 0)
        command = Resolution(command, op, (), b"", "operator", flush=True)
    _send(cast, process, command, *rest)


_send = cast_module.send
_read_op = PartitionState.read_op
_close = PartitionState.close


def _reopening_read_op(self: PartitionState, position: Position, op: Op) -> bool:
    seen = self._newest.get(op.transaction_id)
    if op.kind == OpKind.NUDGE and seen is not None and seen.closed_by == OpKind.DISCARD:
        pending: Pending | None = self.parked_before.get(op.transaction_id)  # type: ignore[attr-defined]
        if pending is not None:
            seen.closed_by, pending.is_closed, pending.count = 0, False, 0
            pending.note(park=None)
            self._open(seen, pending)
            self.schedule(pending, 0.0)
    return _read_op(self, position, op)


def _remembering_close(self: PartitionState, pending: Pending, kind: int) -> None:
    if not hasattr(self, "parked_before"):
        self.parked_before = {}  # type: ignore[attr-defined]
    self.parked_before[pending.transaction_id] = pending  # type: ignore[attr-defined]
    _close(self, pending, kind)


@contextlib.contextmanager
def _resume_as_op() -> Iterator[None]:
    def read_op(self: PartitionState, position: Position, op: Op) -> bool:
        if not hasattr(self, "parked_before"):
            self.parked_before = {}  # type: ignore[attr-defined]
        return _reopening_read_op(self, position, op)

    with (
        mock.patch.object(operators, "send", _resume_by_op),
        mock.patch.object(PartitionState, "read_op", read_op),
        mock.patch.object(PartitionState, "close", _remembering_close),
    ):
        yield


@contextlib.contextmanager
def _stale_epoch_goes_on() -> Iterator[None]:
    """Let an owner neither stop at a foreign CLAIM nor count it; its checkpoint is accepted unchanged."""

    def read_op(self: PartitionState, position: Position, op: Op) -> bool:
        if op.kind == OpKind.CLAIM and self._claims:
            self.op_read = position
            return True
        return _read_op(self, position, op)

    with (
        mock.patch.object(LogReader, "_is_foreign", return_value=False),
        mock.patch.object(PartitionState, "read_op", read_op),
    ):
        yield


def _single_bound(state: PartitionState, *rest: Any, **tells_ages: Any) -> Checkpoint:
    """Return the oldest undecided half with the op log's read position: ops of later decided halves are lost."""
    right = _checkpoint_of(state, *rest, **tells_ages)
    op = state.op_read
    return Checkpoint(right.half, None if op is None else Position(op), state.pass_ops(op), right.note)


_checkpoint_of = checkpoint.checkpoint_of


@contextlib.contextmanager
def _relay_with_a_cursor() -> Iterator[None]:
    with (
        mock.patch.object(SimRelayTable, "visible", table_mutants.skip_gaps),
        mock.patch.object(SimRelayTable, "settle", table_mutants.settle_up_to_a_cursor),
    ):
        yield


MUTANTS: Mapping[str, Mutant] = {
    "no_fence": Mutant("R4", replace(SimFence, "_check_one", fence_mutants.absence_is_rollback)),
    "op_before_target": Mutant(
        "R3",
        replace(MemoryBackend, "_release_in_steps", op_first(frozenset({OpKind.COMMIT}))),
        STEPPED,
        "targets and op are one atomic release there",
    ),
    "local_after_uncertain_ack": Mutant("R2", replace(flow, "appended", _appended_uncertainly)),
    "exception_is_rollback": Mutant("R5", _exception_is_rollback),
    "rollback_without_tombstone": Mutant("R5", replace(ending, "tombstone", fence_mutants.no_tombstone)),
    "peek_decides": Mutant("R4", replace(SimFence, "settled", fence_mutants.peek_decides)),
    "listener_is_believed": Mutant("R4", fence_mutants.believe_the_listener),
    "prune_without_horizon": Mutant("R4", fence_mutants.prune_without_horizon),
    "asynchronous_commit": Mutant("R4", fence_mutants.asynchronous_commit),
    "immunity_counts_as_check": Mutant("R10", _immunity_counts_as_check),
    "unanswered_counts_as_check": Mutant("R10", replace(retry_backoff, "put_off", _unanswered_counts)),
    "head_of_line_stop": Mutant("R9", replace(PartitionState, "take_due", _only_the_oldest)),
    "checkpoint_past_undecided": Mutant("R12", replace(checkpoint, "checkpoint_of", _checkpoint_at_read)),
    "checkpoint_past_unread_op": Mutant(
        "R12",
        replace(finish, "finish", _closed_on_ack),
        (KAFKA, RABBITMQ),
        "where resolutions are unique the store's answer may replace the reading (R12, SUPERSEDED)",
    ),
    "checkpoint_single_bound": Mutant("R12", replace(checkpoint, "checkpoint_of", _single_bound)),
    "late_producer_publishes": Mutant(
        "R6",
        replace(ending, "_must_give_way", lambda *_: False),
        STEPPED,
        "the store refuses a late producer before anything is delivered, so it need not give way",
    ),
    "last_op_wins": Mutant(
        "R7",
        replace(PartitionState, "_report_conflict", _last_final_wins),
        (KAFKA, RABBITMQ),
        "a store with unique resolutions refuses the second final op",
    ),
    "discard_before_park": Mutant(
        "R3",
        replace(MemoryBackend, "_release_in_steps", op_first(frozenset({OpKind.DISCARD}))),
        STEPPED,
        "parked record and op are one atomic release there",
    ),
    "fallback_without_state_3": Mutant(
        "R4",
        replace(SimDatabase, "_enqueue", table_mutants.fall_back_without_state_3),
    ),
    "relay_cursor_skips_gaps": Mutant("S8", _relay_with_a_cursor),
    "relay_deletes_first": Mutant("S8", replace(SimRelayTable, "take", table_mutants.delete_before_publishing)),
    "relay_goes_on_behind_refusal": Mutant(
        "S12", replace(relaying, "_is_through", table_mutants.go_on_behind_a_refusal)
    ),
    "turned_early": Mutant("R16", replace(SimTable, "turn_due", table_mutants.turn_before_it_is_due)),
    "waiting_row_seen": Mutant("R16", replace(SimRelayTable, "visible", table_mutants.see_waiting_rows)),
    "delayed_by_half": Mutant("R16", replace(transactions, "note_delay", lambda *_: None)),
    "turned_beside_cancel": Mutant("R16", replace(LaterRows, "due", table_mutants.turn_what_a_cancel_holds)),
    "cancel_of_the_rest": Mutant("R16", replace(LaterRows, "lock", table_mutants.cancel_what_is_left)),
    "cancel_by_itself": Mutant("R16", replace(SimFence, "cancel", table_mutants.cancel_at_once)),
    "immunity_ignored": Mutant(
        "R6", replace(LogReader, "_pending", log_mutants.ignore_immunity), (KAFKA, RABBITMQ), ARBITRATED
    ),
    "copy_believed": Mutant("R8", replace(CopyProofs, "is_proven", lambda *_: True)),
    "unproven_copy_replaces": Mutant("R8", replace(LogReader, "_take_unproven", log_mutants.take_unproven_copy)),
    "end_by_silence": Mutant("R12", log_mutants.end_by_silence),
    "orphans_dropped_early": Mutant("R12", replace(LogReader, "drop_orphans", log_mutants.drop_orphans_at_once)),
    "stray_op_ends_tenure": Mutant("R9", log_mutants.stray_op_ends_looking_back, (RABBITMQ,), RARE),
    "newer_half_parked": Mutant(
        "R12", replace(newer_records, "newer_half", log_mutants.park_newer), (STRONG, RABBITMQ, NATS), RARE
    ),
    "undeliverable_undecided": Mutant("R4", replace(parking, "park", log_mutants.park_undeliverable_undecided)),
    "exit_without_flush": Mutant(
        "R3",
        replace(MemoryBackend, "close", log_mutants.close_without_flush),
        (KAFKA, RABBITMQ),
        "ops do not wait to be merged there",
    ),
    "any_database_asked": Mutant("R4", replace(fence_check, "call", fence_mutants.ask_any_database), STEPPED, RARER),
    "digest_of_other_messages": Mutant("R15", replace(transactions, "digest_of", fence_mutants.digest_of_the_rest)),
    "missing_row_is_rollback": Mutant("R4", replace(log_reader, "terms_for", fence_mutants.missing_row_is_rollback)),
    "handle_without_look": Mutant("R4", replace(producers, "attach", fence_mutants.commit_without_a_look)),
    "gap_ignored": Mutant("R12", replace(CoverageGap, "mark", log_mutants.ignore_gap), (KAFKA, RABBITMQ), ARBITRATED),
    "gap_parks_fenced": Mutant("R12", replace(CoverageGap, "may_hide_ops_of", log_mutants.gap_without_fences)),
    "asked_by_each_owner": Mutant("R10", replace(check_steps, "_interval_left_ms", lambda *_: 0.0)),
    "resume_as_op": Mutant("R11", _resume_as_op),
    "stale_checkpoint_accepted": Mutant(
        "R13", _stale_epoch_goes_on, STEPPED, "the store fences a replaced checker, which then stops"
    ),
    **owner_mutants.MUTANTS,
    **order_mutants.MUTANTS,
}
