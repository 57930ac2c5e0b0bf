"""Rules of the SQL fence, switched off one by one."""

from __future__ import annotations

from unittest import mock

from mutant import Mutant

from txcore import digest
from txcore.fence import FenceAnswer, FenceReading
from txcore.producer import transaction_flow
from txcore.sqlfence import checks, failures, fence_row, identity
from txcore.sqlfence.connections import SqlAlchemyBorder
from txcore.sqlfence.dialects import Dialect
from txcore.sqlfence.mysql import MySQL
from txcore.sqlfence.postgresql import PostgreSQL
from txcore.sqlfence.sqlite import SQLite

CHECK, PRUNE, MISUSE, DIGEST = (f"tests/fence/test_{name}.py::" for name in ("check", "prune", "misuse", "digest"))
_joined = digest.joined
_meta, _transact, _make, _begin = Dialect.meta, checks.Check._transact, SQLite.__init__, SQLite.begin


def unlocked_horizon(self, border, *, locked=False):
    """Read the horizon without a lock on it."""
    del locked
    return _meta(self, border)


def undo_tombstones(self, border, ids):
    """Answer, and roll the tombstones back."""
    readings = _transact(self, border, ids)
    border.rollback()
    return readings


def insert_anywhere(self, tables):
    """Accept a row below the horizon."""
    _make(self, tables)
    self._inserts = {each: sql.replace("pruned_below <= :id", "1") for each, sql in self._inserts.items()}


def rollback_when_locked(ids, reason):
    """Answer ROLLBACK where there is no answer."""
    return dict.fromkeys(ids, FenceReading(FenceAnswer.ROLLBACK, reason))


def wait_on(self, border, lock_timeout_s):
    """Bound the wait for the file, and keep that bound even if no transaction begins."""
    writer = border.writer()
    before = int(writer.quick_rows("PRAGMA busy_timeout", {})[0][0])
    writer.quick_change(f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}", {})
    _begin(self, border, writer)
    return f"PRAGMA busy_timeout = {before}"


def verify_nothing(self, writer, transaction_id, digest=b""):
    """Let every verify pass."""


def complete_any(self, writer, transaction_id, digest=b""):
    """Write the digest into the row, of whichever transaction it is."""
    update = f"UPDATE {self.tables.fence} SET digest = {self.digest_place} WHERE transaction_id = {self.place('id')}"
    writer.quick_change(update, {"id": transaction_id.hex(), "digest": digest.hex()})


def read_plainly(self, border, ids):
    """Accept each row that a read shows, even if it is not committed."""
    return {each: row.state for each, row in self.read(border, ids).items()}


def answers(state, answer):
    """Return a patch that reads a state of the row as *answer*."""
    return lambda: mock.patch.dict(checks.ANSWERS, {state: answer})


def replaced(owner, name, new):
    """Return a patch of one function."""
    return lambda: mock.patch.object(owner, name, new)


MUTANTS = [
    Mutant(
        "fence-abort-is-unknown",
        "A COMMIT that the database reports as aborted has certainly sent nothing.",
        replaced(failures, "_UNDONE", frozenset()),
        "tests/fence/test_ends.py::test_serialization_failure_at_commit_says_that_nothing_was_sent",
    ),
    Mutant(
        "fence-any-database-decides",
        "A check writes no tombstone for a half of another database.",
        replaced(identity.Database, "decides", lambda self, identity: True),
        "tests/fence/test_identity.py::test_override_against_another_database_is_refused[sqlite]",
    ),
    Mutant(
        "fence-horizon-unlocked",
        "A check holds the prune horizon that it has read until it ends.",
        replaced(Dialect, "meta", unlocked_horizon),
        PRUNE + "test_check_of_the_fence_holds_the_horizon_that_it_read[postgresql]",
    ),
    Mutant(
        "fence-tombstone-not-durable",
        "A check answers ROLLBACK only after a tombstone that is committed.",
        replaced(checks.Check, "_transact", undo_tombstones),
        CHECK + "test_check_before_the_producer_leaves_a_tombstone_and_the_late_producer_is_refused[sqlite]",
    ),
    Mutant(
        "fence-insert-below-horizon",
        "No row is inserted below the prune horizon.",
        replaced(SQLite, "__init__", insert_anywhere),
        PRUNE + "test_producer_below_the_horizon_is_refused[sqlite]",
    ),
    Mutant(
        "fence-verify-skipped",
        "Before its commit a producer makes sure that its row is in the transaction.",
        replaced(SQLite, "verify", verify_nothing),
        MISUSE + "test_row_rolled_back_to_an_earlier_savepoint_is_found_by_verify[sqlite]",
    ),
    Mutant(
        "fence-savepoint-accepted",
        "No row is written inside a savepoint, which can be rolled back alone.",
        replaced(SqlAlchemyBorder, "has_known_savepoint", lambda self: False),
        MISUSE + "test_nested_transaction_is_refused_and_the_outer_one_rolled_back[sqlite]",
    ),
    Mutant(
        "fence-locked-is-rollback",
        "A lock that is not free in time is no answer.",
        replaced(checks, "no_answers", rollback_when_locked),
        CHECK + "test_check_during_an_open_transaction_is_no_answer[sqlite]",
    ),
    Mutant(
        "fence-settled-dirty",
        "A row is settled only when it is committed.",
        replaced(MySQL, "settled", read_plainly),
        "tests/fence/test_settled.py::test_row_of_an_open_transaction_is_not_settled[mariadb]",
    ),
    Mutant(
        "fence-table-is-commit",
        "A half whose messages went into the table is not published again.",
        answers(3, FenceAnswer.COMMIT),
        CHECK + "test_row_of_the_message_table_is_sent_once_nothing_of_it_waits[sqlite]",
    ),
    Mutant(
        "fence-row-without-digest",
        "The fence row of a block gets the digest of its messages.",
        replaced(transaction_flow, "row_digest", lambda transaction: b""),
        DIGEST + "test_block_writes_the_digest_of_its_messages[sqlite-half]",
    ),
    Mutant(
        "fence-digest-on-gone-row",
        "A digest is written into a row of this transaction only.",
        replaced(PostgreSQL, "verify", complete_any),
        DIGEST + "test_row_of_another_transaction_gets_no_digest",
    ),
    Mutant(
        "digest-without-order",
        "A digest of messages covers their order.",
        replaced(digest, "joined", lambda digests: _joined(sorted(digests))),
        "tests/core/vocabulary/test_wire_vectors.py::test_digests_of_messages[two messages]",
    ),
    Mutant(
        "fence-begin-tried-once",
        "A row that is a transaction's first statement is tried again when the database aborts it.",
        replaced(fence_row, "_OWNED_ATTEMPTS_MAX", 1),
        "tests/fence/test_race.py::test_producers_that_wait_for_a_check_that_rolls_back_begin",
    ),
    Mutant(
        "fence-lock-wait-kept",
        "A connection goes back to its pool with the wait for locks that it had.",
        replaced(SQLite, "begin_work", wait_on),
        CHECK + "test_check_leaves_the_pooled_connection_as_it_was[sqlite]",
    ),
]
