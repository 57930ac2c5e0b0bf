"""The producer's flows, run step by step: each command that they yield, and each answer to it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from txcore import wire
from txcore.digest import digest_of
from txcore.errors import (
    BackendTimeoutError,
    CommitUnknownError,
    FencedError,
    FenceMisuseError,
    HalfRefusedError,
    HalfUnknownError,
    MessageRejectedError,
    TransactionStateError,
)
from txcore.fence import NO_DATABASE, FenceAnswer, FenceReading
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.producer import transaction as transactions
from txcore.producer import transaction_flow as flow
from txcore.producer.finish import end
from txcore.producer.listener_style import send_in_transaction
from txcore.producer.transaction import Phase
from txcore.records import DURABLE, HalfRecord, OpKind, Outcome, Resolution, Status
from txcore.results import EndState
from txcore.runtime.commands import Call

REFUSED = Outcome(Status.REFUSED, BackendTimeoutError("full"))
UNKNOWN = Outcome(Status.UNKNOWN, BackendTimeoutError("silence"))
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


@pytest.fixture
def transaction(context):
    """An open transaction with two messages."""
    made = transactions.begin(context)
    transactions.publish(made, Message("a", b"1", key=b"k"))
    transactions.publish(made, Message("b", b"2"))
    return made


@pytest.fixture
def prepared(transaction, by_hand):
    """A prepared transaction without a connection."""
    steps = flow.prepare(transaction)
    next(steps)
    by_hand.run_to_end(steps, DURABLE)
    return transaction


def called(command):
    """Return the name of the method that a Call names."""
    assert isinstance(command, Call)
    return command.function.__name__


class TestPrepare:
    def test_a_durable_half_makes_it_prepared(self, transaction, context, by_hand):
        """The half holds all messages and the policy; the time to give way counts from before the append."""
        steps = flow.prepare(transaction)
        half = next(steps)
        began_s = context.clock.elapsed_s()
        context.clock.advance(1)
        by_hand.run_to_end(steps, DURABLE)
        assert isinstance(half, HalfRecord)
        decoded = wire.decode_half(half.body)
        assert transaction.messages == decoded.messages
        assert (6_000, 0, 0, False, 0) == (
            decoded.immunity_ms,
            decoded.interval_ms,
            decoded.check_max,
            decoded.fenced,
            decoded.generation,
        )
        assert transaction.partition == half.partition == decoded.partition
        assert Phase.PREPARED is transaction.phase
        assert began_s + 6 - 2 == transaction.give_way_s

    @pytest.mark.parametrize(("outcome", "error"), [(REFUSED, HalfRefusedError), (UNKNOWN, HalfUnknownError)])
    def test_a_half_that_is_not_certain_raises(self, transaction, outcome, error):
        """Refused and unknown are different errors; both name the transaction and end it."""
        steps = flow.prepare(transaction)
        next(steps)
        with pytest.raises(error) as caught:
            steps.send(outcome)
        assert transaction.transaction_id == caught.value.transaction_id
        assert Phase.FAILED is transaction.phase

    def test_nothing_published_is_a_mistake(self, context):
        """Preparing a transaction without messages raises an error."""
        with pytest.raises(TransactionStateError, match="nothing was published"):
            next(flow.prepare(transactions.begin(context)))

    def test_a_second_prepare_raises(self, prepared):
        """A second prepare raises an error, because each attempt in the database has its own id (R1)."""
        with pytest.raises(TransactionStateError, match="is prepared, not open"):
            next(flow.prepare(prepared))

    def test_with_a_connection_the_fence_row_comes_first(self, transaction, by_hand):
        """With a connection, the fence row is inserted before the half, which is marked as fenced."""
        connection = object()
        steps = flow.prepare(transaction, connection)
        insert = next(steps)
        half = steps.send(None)
        by_hand.run_to_end(steps, DURABLE)
        row = (connection, transaction.transaction_id, "orders")
        assert (*row, (), b"", digest_of(transaction.messages)) == insert.args
        assert wire.decode_half(half.body).fenced

    @pytest.mark.parametrize("error", [FencedError("decided"), FenceMisuseError("autocommit")])
    def test_a_refused_fence_row_sends_nothing(self, transaction, context, error):
        """A refused fence row sends no half, and the connection is rolled back, even for the second time."""
        steps = flow.prepare(transaction, object())
        next(steps)
        assert context.fence.rollback == steps.throw(error).function
        with pytest.raises(type(error)):
            steps.send(None)
        assert Phase.FAILED is transaction.phase

    @pytest.mark.parametrize(("outcome", "error"), [(REFUSED, HalfRefusedError), (UNKNOWN, HalfUnknownError)])
    def test_a_half_that_is_not_certain_rolls_the_connection_back(self, transaction, outcome, error):
        """Nothing is committed before a certain half ack (R2)."""
        connection = object()
        steps = flow.prepare(transaction, connection)
        for _ in range(2):
            next(steps)
        rollback = steps.send(outcome)
        assert (connection,) == rollback.args
        with pytest.raises(error):
            steps.send(None)

    def test_a_cancelled_append_rolls_the_connection_back(self, transaction, context):
        """Cancellation while the half is under way leaves no open transaction."""
        steps = flow.prepare(transaction, object())
        for _ in range(2):
            next(steps)
        rollback = steps.throw(asyncio.CancelledError())
        assert context.fence.rollback == rollback.function
        with pytest.raises(asyncio.CancelledError):
            steps.send(None)
        assert Phase.FAILED is transaction.phase

    def test_messages_too_large_together_roll_back_before_anything_is_sent(self, context):
        """Messages whose sum is too large are refused and rolled back before the half is sent."""
        transaction = transactions.begin(context)
        for _ in range(3):
            transactions.publish(transaction, Message("big", bytes(40_000)))
        steps = flow.prepare(transaction, object())
        next(steps)
        rollback = steps.send(None)
        assert context.fence.rollback == rollback.function
        with pytest.raises(MessageRejectedError, match="this backend takes 100000") as caught:
            steps.send(None)
        assert "size" == caught.value.reason

    def test_a_connection_without_a_fence_is_refused_and_may_be_tried_again(self, transaction, context):
        """A connection without a fence is refused, and the transaction stays open."""
        context.fence = None
        with pytest.raises(TransactionStateError, match="with fence=SqlFence"):
            next(flow.prepare(transaction, object()))
        assert Phase.OPEN is transaction.phase


class TestEnd:
    def test_commit_releases_every_target_with_its_op(self, prepared, by_hand):
        """A commit is one resolution with all targets, the op COMMIT and the attempt's name."""
        steps = end(prepared, OpKind.COMMIT)
        resolution = next(steps)
        assert isinstance(resolution, Resolution)
        assert [0, 1] == list(resolution.targets)
        assert (OpKind.COMMIT, prepared.transaction_id, "p:test") == (
            resolution.op.kind,
            resolution.op.transaction_id,
            resolution.op.by,
        )
        assert "p:test" == resolution.by
        assert EndState.ACCEPTED is by_hand.run_to_end(steps, DURABLE).state

    def test_rollback_releases_no_target(self, prepared, by_hand):
        """A rollback writes only the op."""
        steps = end(prepared, OpKind.ROLLBACK)
        resolution = next(steps)
        assert (OpKind.ROLLBACK, []) == (resolution.op.kind, list(resolution.targets))
        assert EndState.ACCEPTED is by_hand.run_to_end(steps, DURABLE).state

    @pytest.mark.parametrize(
        ("outcome", "state"),
        [
            (Outcome(Status.SUPERSEDED, decision=OpKind.COMMIT), EndState.ALREADY_DONE),
            (Outcome(Status.SUPERSEDED, decision=OpKind.ROLLBACK), EndState.CONFLICT),
            (Outcome(Status.SUPERSEDED, decision=OpKind.DISCARD), EndState.TOO_LATE),
            (REFUSED, EndState.UNKNOWN),
            (UNKNOWN, EndState.UNKNOWN),
        ],
    )
    def test_each_outcome_has_its_state(self, prepared, by_hand, outcome, state):
        """Only the outcome DURABLE is ACCEPTED, and the error of an outcome is passed on."""
        steps = end(prepared, OpKind.COMMIT)
        next(steps)
        result = by_hand.run_to_end(steps, outcome)
        assert (state, outcome.error) == (result.state, result.error)
        assert result == prepared.result

    @pytest.mark.parametrize(
        ("first", "again", "state"),
        [
            (DURABLE, OpKind.COMMIT, EndState.ALREADY_DONE),
            (DURABLE, OpKind.ROLLBACK, EndState.CONFLICT),
            (UNKNOWN, OpKind.COMMIT, EndState.UNKNOWN),
            (UNKNOWN, OpKind.ROLLBACK, EndState.UNKNOWN),
            (Outcome(Status.SUPERSEDED, decision=OpKind.COMMIT), OpKind.ROLLBACK, EndState.CONFLICT),
        ],
    )
    def test_an_end_is_idempotent(self, prepared, by_hand, first, again, state):
        """A second end sends nothing and returns the known result."""
        steps = end(prepared, OpKind.COMMIT)
        next(steps)
        by_hand.run_to_end(steps, first)
        assert state is by_hand.run_to_end(end(prepared, again)).state

    def test_an_end_that_was_cancelled_is_unknown(self, prepared, by_hand):
        """A cancelled end is UNKNOWN, also for a caller that asks again, because the release may be under way."""
        steps = end(prepared, OpKind.COMMIT)
        next(steps)
        with pytest.raises(asyncio.CancelledError):
            steps.throw(asyncio.CancelledError())
        assert EndState.UNKNOWN is prepared.result.state
        assert EndState.UNKNOWN is by_hand.run_to_end(end(prepared, OpKind.COMMIT)).state

    def test_a_late_producer_gives_way_and_asks_for_a_check(self, prepared, context, by_hand):
        """After immunity minus margin, a producer publishes nothing and asks for a check (R6)."""
        context.clock.advance(4.001)
        steps = end(prepared, OpKind.COMMIT)
        resolution = next(steps)
        assert (OpKind.NUDGE, []) == (resolution.op.kind, list(resolution.targets))
        assert EndState.TOO_LATE is by_hand.run_to_end(steps, DURABLE).state

    def test_the_last_moment_is_not_late(self, prepared, context):
        """Exactly at immunity minus margin, a producer still publishes."""
        context.clock.advance(4)
        assert OpKind.COMMIT == next(end(prepared, OpKind.COMMIT)).op.kind

    def test_a_producer_without_a_reading_gives_way(self, prepared):
        """A producer gives way for a handle from another boot, because the clocks do not compare."""
        prepared.give_way_s = None
        assert OpKind.NUDGE == next(end(prepared, OpKind.COMMIT)).op.kind

    def test_a_store_that_remembers_for_ever_is_asked_however_late(self, prepared, context):
        """A store that remembers for ever is always asked, because it refuses a second end before delivery."""
        context.store_arbitrates = True
        context.clock.advance(1e9)
        assert OpKind.COMMIT == next(end(prepared, OpKind.COMMIT)).op.kind

    def test_a_store_that_forgets_resolutions_is_asked_only_while_it_remembers(self, prepared, context):
        """A store is asked only while it still remembers a resolution that came just after the half."""
        context.store_arbitrates, context.arbitrates_s = True, 60.0
        context.clock.advance(60 - 2)
        steps = end(prepared, OpKind.COMMIT)
        assert OpKind.COMMIT == next(steps).op.kind

    @pytest.mark.parametrize(("kept_s", "late_s"), [(60.0, 58.001), (1.0, 4.001)])
    def test_it_gives_way_once_the_store_may_have_forgotten(self, prepared, context, kept_s, late_s):
        """A producer gives way when the store may have forgotten a resolution, but not within immunity minus margin."""
        context.store_arbitrates, context.arbitrates_s = True, kept_s
        context.clock.advance(late_s)
        assert OpKind.NUDGE == next(end(prepared, OpKind.COMMIT)).op.kind

    def test_without_a_reading_it_gives_way_to_a_store_that_forgets(self, prepared, context):
        """A producer gives way for a handle from another boot if the store forgets resolutions."""
        context.store_arbitrates, context.arbitrates_s, prepared.give_way_s = True, 60.0, None
        assert OpKind.NUDGE == next(end(prepared, OpKind.COMMIT)).op.kind

    def test_an_open_fenced_connection_must_end_first(self, prepared, fence):
        """Publishing before the database's COMMIT is refused."""
        prepared.connection, prepared.fenced, fence.open = object(), True, True
        with pytest.raises(TransactionStateError, match="still open"):
            next(end(prepared, OpKind.COMMIT))
        assert Phase.PREPARED is prepared.phase

    def test_an_end_before_prepare_is_refused(self, transaction):
        """An end before prepare raises an error that names the transaction's state."""
        with pytest.raises(TransactionStateError, match="is open, not prepared: its messages are stored nowhere"):
            next(end(transaction, OpKind.COMMIT))

    @pytest.mark.parametrize(
        ("answer", "state"), [(FenceAnswer.COMMIT, EndState.CONFLICT), (FenceAnswer.NO_ANSWER, EndState.UNKNOWN)]
    )
    def test_a_fenced_rollback_needs_the_tombstone(self, prepared, by_hand, answer, state):
        """No op is written unless the fence answered ROLLBACK (R5)."""
        prepared.fenced = True
        steps = end(prepared, OpKind.ROLLBACK)
        check = next(steps)
        assert ([prepared.transaction_id], "orders") == check.args
        assert state is by_hand.run_to_end(steps, {prepared.transaction_id: FenceReading(answer)}).state

    def test_a_fenced_rollback_with_its_tombstone_is_written(self, prepared, context, by_hand):
        """A rollback with its tombstone is written even after immunity, because the fence has decided already."""
        prepared.fenced = True
        context.clock.advance(100)
        steps = end(prepared, OpKind.ROLLBACK)
        next(steps)
        resolution = steps.send({prepared.transaction_id: FenceReading(FenceAnswer.ROLLBACK)})
        assert OpKind.ROLLBACK == resolution.op.kind
        assert EndState.ACCEPTED is by_hand.run_to_end(steps, DURABLE).state

    def test_a_fence_that_raises_is_no_rollback(self, prepared, by_hand):
        """A rollback whose fence raises is UNKNOWN with that error, and the check decides."""
        prepared.fenced = True
        steps = end(prepared, OpKind.ROLLBACK)
        next(steps)
        error = OSError("no database")
        result = by_hand.throw_to_end(steps, error)
        assert (EndState.UNKNOWN, error) == (result.state, result.error)


DROPPED = """
import contextvars, gc
import txcore
from txcore.memory import KAFKA_LIKE, MemoryBackend, MemoryBroker
from txcore.records import DURABLE
from txcore.producer.listener_style import send_in_transaction
from txcore.producer.transaction import begin, current

class Listener(txcore.TransactionListener):
    def execute_local_transaction(self, message, arg):
        return txcore.LocalTransactionState.COMMIT

context = txcore.TransactionProducer(MemoryBackend(MemoryBroker(KAFKA_LIKE)), "g", listener=Listener())._context
for number in range(200):  # what is set is a tree, and a tree is changed in several steps
    contextvars.ContextVar(str(number)).set(number)
for number in range(20_000):
    gc.set_threshold(number % 23 + 1)  # at any of the steps, sooner or later
    steps = send_in_transaction(begin(context), Listener(), txcore.Message("t", b""), None)
    next(steps)
    steps.send(DURABLE)
    cycle = [steps]
    cycle.append(cycle)
    del steps, cycle
    current.set(None)
print("done")
"""


class Listener:
    def execute(self, transaction, message, arg):
        raise AssertionError("the driver calls it")


class TestListenerStyle:
    @pytest.fixture
    def unfenced(self, context):
        """A context without a fence."""
        context.fence = None
        return context

    def send(self, context):
        """Return the flow of one message, and its transaction."""
        transaction = transactions.begin(context)
        message = Message("a", b"1", check_policy=CheckPolicy(immunity_s=9, interval_s=4, check_max=2))
        return send_in_transaction(transaction, Listener(), message, "arg"), transaction

    def test_the_listener_runs_between_half_and_end(self, unfenced, by_hand):
        """The local transaction gets message and argument, and runs between the half and the release."""
        steps, transaction = self.send(unfenced)
        half = next(steps)
        call = steps.send(DURABLE)
        assert "execute" == called(call)
        assert (transaction, b"1", "arg") == (call.args[0], call.args[1].body, call.args[2])
        assert transaction is transactions.current_transaction()
        resolution = steps.send(COMMIT)
        result = by_hand.run_to_end(steps, DURABLE)
        assert OpKind.COMMIT == resolution.op.kind
        assert (COMMIT, EndState.ACCEPTED, None) == (result.local_transaction_state, result.end.state, result.error)
        decoded = wire.decode_half(half.body)
        assert (9_000, 4_000, 2, False) == (
            decoded.immunity_ms,
            decoded.interval_ms,
            decoded.check_max,
            decoded.fenced,
        )

    def test_outside_the_listener_there_is_no_current_transaction(self):
        """Outside the listener, `current_transaction` raises an error that names the place where it works."""
        with pytest.raises(TransactionStateError, match="only inside a listener"):
            transactions.current_transaction()

    def test_a_flow_that_is_dropped_takes_no_other_current_transaction(self, unfenced):
        """A dropped flow that is collected during another local transaction leaves that transaction current."""
        dropped, _ = self.send(unfenced)
        next(dropped)
        dropped.send(DURABLE)
        steps, transaction = self.send(unfenced)
        next(steps)
        steps.send(DURABLE)
        del dropped
        assert transaction is transactions.current_transaction()
        steps.send(COMMIT)

    def test_dropped_flows_are_collected_whatever_the_thread_does(self):
        """A flow that Python 3.11 collects within `ContextVar.set` does not call that function again."""
        done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False, timeout=120)
        assert (0, "done\n") == (done.returncode, done.stdout), done.stderr

    @pytest.mark.parametrize(("outcome", "error"), [(REFUSED, HalfRefusedError), (UNKNOWN, HalfUnknownError)])
    def test_the_listener_never_runs_after_an_uncertain_half(self, unfenced, outcome, error):
        """The listener does not run, so nothing is committed, before a certain ack of the half (R2)."""
        steps, _ = self.send(unfenced)
        next(steps)
        with pytest.raises(error):
            steps.send(outcome)

    def test_a_rollback_releases_nothing(self, unfenced, by_hand):
        """A rollback writes only the op."""
        steps, _ = self.send(unfenced)
        next(steps)
        steps.send(DURABLE)
        resolution = steps.send(ROLLBACK)
        assert (OpKind.ROLLBACK, []) == (resolution.op.kind, list(resolution.targets))
        assert EndState.ACCEPTED is by_hand.run_to_end(steps, DURABLE).end.state

    def test_unknown_writes_nothing(self, unfenced, by_hand):
        """A listener's UNKNOWN writes no op, and the check decides the transaction."""
        steps, _ = self.send(unfenced)
        next(steps)
        steps.send(DURABLE)
        result = by_hand.run_to_end(steps, LocalTransactionState.UNKNOWN)
        assert (LocalTransactionState.UNKNOWN, None, None) == (result.local_transaction_state, result.end, result.error)

    def test_an_exception_is_not_a_rollback(self, unfenced, by_hand):
        """A listener's exception is UNKNOWN and writes nothing, because the database may have committed (R5)."""
        steps, _ = self.send(unfenced)
        next(steps)
        steps.send(DURABLE)
        error = ValueError("after the commit")
        result = by_hand.throw_to_end(steps, error)
        assert LocalTransactionState.UNKNOWN is result.local_transaction_state
        assert (None, error) == (result.end, result.error)

    @pytest.mark.parametrize("answer", [None, True, "COMMIT"])
    def test_an_answer_of_another_type_is_unknown(self, unfenced, by_hand, answer):
        """A listener that forgets its return value commits nothing."""
        steps, _ = self.send(unfenced)
        next(steps)
        steps.send(DURABLE)
        result = by_hand.run_to_end(steps, answer)
        assert LocalTransactionState.UNKNOWN is result.local_transaction_state
        assert isinstance(result.error, TransactionStateError)

    def test_a_fenced_listener_that_forgot_its_row_is_vouched_for(self, context, by_hand):
        """A row that the listener forgot is written in its own transaction before publishing; the result reports it."""
        steps, _ = self.send(context)
        half = wire.decode_half(next(steps).body)
        assert (False, True, NO_DATABASE) == (
            half.fence_decides,
            half.asks_fence,
            half.database,
        )  # without a row the listener is asked
        steps.send(DURABLE)
        begin = steps.send(COMMIT)
        assert context.fence.begin == begin.function
        commit = steps.send("connection")
        assert (context.fence.commit, ("connection",)) == (commit.function, commit.args)
        assert OpKind.COMMIT == steps.send(None).op.kind
        result = by_hand.run_to_end(steps, DURABLE)
        assert EndState.ACCEPTED is result.end.state
        assert isinstance(result.error, FenceMisuseError)

    @pytest.mark.parametrize(
        ("error", "is_vowed", "state"),
        [
            (FencedError("tombstone"), True, EndState.CONFLICT),
            (FencedError("tombstone"), False, EndState.TOO_LATE),
            (OSError("down"), False, EndState.UNKNOWN),
        ],
    )
    def test_vouching_that_fails_publishes_nothing(self, context, by_hand, error, is_vowed, state):
        """If the forgotten row cannot be written, nothing is published, and the cause gives the state of the end."""
        context.listener_fences = is_vowed
        steps, _ = self.send(context)
        next(steps)
        steps.send(DURABLE)
        steps.send(COMMIT)
        result = by_hand.throw_to_end(steps, error)
        assert (COMMIT, state) == (result.local_transaction_state, result.end.state)


class TestDatabaseStyle:
    def test_entering_begins_with_the_fence_row(self, transaction, context, by_hand):
        """Entering the block gets the connection from the fence, with the fence row, in one call."""
        steps = flow.database_begin(transaction, "engine")
        begin = next(steps)
        assert (context.fence.begin, ("engine", transaction.transaction_id, "orders")) == (begin.function, begin.args)
        assert "connection" == by_hand.run_to_end(steps, "connection")
        assert transaction.fenced

    def test_it_needs_a_fence(self, transaction, context):
        """The database style without a fence raises an error that names the parameter."""
        context.fence = None
        with pytest.raises(TransactionStateError, match="fence=SqlFence"):
            next(flow.database_begin(transaction, "engine"))

    @pytest.fixture
    def entered(self, transaction, by_hand):
        """A transaction inside its block."""
        steps = flow.database_begin(transaction, "engine")
        next(steps)
        by_hand.run_to_end(steps, "connection")
        return transaction

    def test_leaving_verifies_appends_commits_and_publishes_in_this_order(self, entered, by_hand):
        """Leaving verifies the fence row, appends the half, commits the database and publishes, in this order."""
        steps = flow.database_finish(entered)
        verify = next(steps)
        half = steps.send(None)
        commit = steps.send(DURABLE)
        resolution = steps.send(None)
        fence = entered.context.fence
        assert (fence.verify, fence.commit) == (verify.function, commit.function)
        assert wire.decode_half(half.body).fenced
        assert OpKind.COMMIT == resolution.op.kind
        assert EndState.ACCEPTED is by_hand.run_to_end(steps, DURABLE).state

    def test_a_block_that_published_nothing_withdraws_its_row(self, context, by_hand):
        """A block that published nothing withdraws its row, writes no half, and commits the database."""
        transaction = transactions.begin(context)
        transaction.connection, transaction.fenced = "connection", True
        steps = flow.database_finish(transaction)
        withdraw = next(steps)
        commit = steps.send(None)
        assert (context.fence.withdraw, context.fence.commit) == (withdraw.function, commit.function)
        assert by_hand.run_to_end(steps, None) is None

    @pytest.mark.parametrize(("outcome", "error"), [(REFUSED, HalfRefusedError), (UNKNOWN, HalfUnknownError)])
    def test_a_half_that_is_not_certain_rolls_back(self, entered, outcome, error):
        """The database is rolled back if the half is not certain."""
        steps = flow.database_finish(entered)
        next(steps)
        steps.send(None)
        rollback = steps.send(outcome)
        assert entered.context.fence.rollback == rollback.function
        with pytest.raises(error):
            steps.send(None)

    def test_an_error_of_the_commit_is_left_to_the_check(self, entered):
        """A failed database COMMIT may have applied (R5): it gives a NUDGE, no end, and CommitUnknownError."""
        steps = flow.database_finish(entered)
        next(steps)
        steps.send(None)
        steps.send(DURABLE)
        cause = OSError("connection reset")
        resolution = steps.throw(cause)
        assert (OpKind.NUDGE, []) == (resolution.op.kind, list(resolution.targets))
        with pytest.raises(CommitUnknownError) as caught:
            steps.send(DURABLE)
        assert cause is caught.value.__cause__

    def test_a_failed_verification_sends_nothing(self, entered):
        """A failed verification of the fence row rolls the connection back and sends no half."""
        steps = flow.database_finish(entered)
        next(steps)
        rollback = steps.throw(FenceMisuseError("savepoint"))
        assert (entered.context.fence.rollback, ("connection",)) == (rollback.function, rollback.args)
        with pytest.raises(FenceMisuseError):
            steps.send(None)
        assert Phase.FAILED is entered.phase

    def test_an_error_in_the_block_rolls_back_once(self, entered, by_hand):
        """An error in the block rolls back once; a second abort does nothing."""
        steps = flow.database_abort(entered)
        rollback = next(steps)
        assert (entered.context.fence.rollback, ("connection",)) == (rollback.function, rollback.args)
        by_hand.run_to_end(steps, None)
        by_hand.run_to_end(flow.database_abort(entered))
