"""The fence on MariaDB and MySQL (InnoDB).

Source: MariaDB documentation of InnoDB lock modes, `innodb_lock_wait_timeout` (0 does not wait), statements that
cause an implicit commit, and SAVEPOINT (all savepoints of a transaction are deleted when it ends).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from txcore.errors import FenceMisuseError
from txcore.sqlfence.border import MYSQL, Border
from txcore.sqlfence.definitions import added_to_meta
from txcore.sqlfence.dialects import GONE_TEXT, UPGRADE_WAIT_S, Dialect, RowRefused, Rows, states_of
from txcore.sqlfence.failures import Cause, failure_of, unless
from txcore.sqlfence.schema import Tables
from txcore.sqlfence.transaction_state import anchor_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NO_SAVEPOINT: Final = "1305"


class MySQL(Dialect):
    """MariaDB 10.6 and later, MySQL 8; any synchronous or asynchronous driver of SQLAlchemy."""

    family: ClassVar[str] = MYSQL
    created_ms = "CAST(UNIX_TIMESTAMP(created) * 1000 AS SIGNED)"
    # Two waiters on one key deadlock when the holder rolls back and both have inherited its gap lock.
    check_waits: ClassVar[bool] = False
    share_suffix: ClassVar[str] = " LOCK IN SHARE MODE"

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        # The share lock makes the horizon a current read at every isolation level: REPEATABLE READ, the default,
        # would otherwise show the horizon of the transaction's first read. A prune waits for it.
        self._inserts = self._bound_inserts()

    def create(self, border: Border, statements: Sequence[str], *, has_identity: bool = True) -> None:
        """Create, and end the transaction: at REPEATABLE READ it would not see the row of a faster process.

        Each CREATE commits by itself, and no lock is held.
        """
        super().create(border, statements, has_identity=has_identity)
        border.commit()

    def add_meta_columns(self, border: Border) -> None:
        """Add them in one statement, unless another process adds one meanwhile; then look again.

        The server would wait for a day for the table, and hold up every other statement on it as long.
        """
        border.change(f"SET SESSION lock_wait_timeout = {UPGRADE_WAIT_S}", {})  # reset with those of `begin_work`
        while True:
            there = {str(row[0]) for row in border.rows(f"SHOW COLUMNS FROM {self.tables.meta}", {})}
            missing = [f"ADD COLUMN {name} {kind}" for name, kind in added_to_meta(MYSQL).items() if name not in there]
            if not missing:
                return
            sql = f"ALTER TABLE {self.tables.meta} {', '.join(missing)}"
            unless(Cause.COLUMN_THERE, partial(border.change, sql, {}))

    def require_durable(self, border: Border) -> None:
        """Refuse a server that does not flush at commit: no client can change that for one transaction."""
        flushed = border.rows("SELECT @@innodb_flush_log_at_trx_commit", {})[0][0]
        if int(flushed) != 1:
            raise FenceMisuseError(
                f"innodb_flush_log_at_trx_commit is {flushed}: a crash would undo commits that were already "
                "announced; set it to 1"
            )

    def insert(self, border: Border, transaction_id: bytes, group: str, identity: bytes = b"", oids: str = "") -> None:  # noqa: ARG002 - only PostgreSQL has oids
        """Insert, and set a savepoint as an anchor: only a savepoint's name shows whether it is still this
        transaction, because some statements commit implicitly.
        """
        values: dict[str, Any] = {"id": bytes(transaction_id), "producer_group": group}
        if identity:
            values["identity"] = identity
        if border.quick_change(self._inserts[bool(identity)], values) != 1:
            raise RowRefused("it lies below the prune horizon")
        border.quick_change(f"SAVEPOINT {anchor_name(transaction_id)}", {})

    def verify(self, border: Border, transaction_id: bytes) -> None:
        """Release the anchor, which works only in the transaction that wrote the row, and set it again."""
        try:
            border.quick_change(f"RELEASE SAVEPOINT {anchor_name(transaction_id)}", {})
        except Exception as error:
            if failure_of(error).code == _NO_SAVEPOINT:
                raise FenceMisuseError(GONE_TEXT) from error
            raise
        border.quick_change(f"SAVEPOINT {anchor_name(transaction_id)}", {})

    def settled(self, border: Border, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Lock the committed rows, skip rows that an open transaction holds, and commit an update of them.

        At READ UNCOMMITTED a plain read shows rows that may still be rolled back, and at every level a commit whose
        log is not on disk yet.
        """
        names, values = self.named(ids)
        where = f"{self.tables.fence} WHERE transaction_id IN ({names}) FOR UPDATE SKIP LOCKED"
        states = states_of(border.rows(f"SELECT transaction_id, state FROM {where}", values))  # noqa: S608
        if states:
            self._count_check(border, states)
            border.commit()
        return states

    def begin_work(self, border: Border, lock_timeout_s: float) -> str:
        """Work at READ COMMITTED for this transaction only, and bound the waiting for locks of rows and tables.

        The server counts whole seconds; 0 does not wait for a row, a table needs 1.
        """
        seconds = 0 if lock_timeout_s < 1 else round(lock_timeout_s)
        border.change(
            "SET @txcore_lock_wait = @@SESSION.innodb_lock_wait_timeout, "
            f"SESSION innodb_lock_wait_timeout = {seconds}, "
            f"@txcore_table_wait = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = {max(seconds, 1)}",
            {},
        )
        undo = (
            "SET SESSION innodb_lock_wait_timeout = @txcore_lock_wait, SESSION lock_wait_timeout = @txcore_table_wait"
        )
        try:
            border.change("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", {})
            if border.commits_each_statement():  # an engine in autocommit mode
                border.change("START TRANSACTION", {})
        except BaseException:
            border.outside(undo)  # the connection may belong to a pool, and its next holder would not wait
            raise
        return undo

    def leave_tombstones(self, border: Border, ids: Sequence[bytes], group: str) -> Rows:
        """Upsert with a real change: InnoDB shows a commit before its log is written, and a check that changed
        nothing would answer COMMIT for a commit that a crash then undoes. Its own COMMIT flushes the log up to there.
        """
        rows, values = self._tombstone_rows(ids, group)
        sql = (
            f"INSERT INTO {self.tables.fence} (transaction_id, state, producer_group) VALUES {rows} "  # noqa: S608
            "ON DUPLICATE KEY UPDATE checks = MOD(checks + 1, 1000)"
        )
        border.change(sql, values)
        return self.read(border, ids, " FOR UPDATE")

    def touch(self, border: Border, ids: Sequence[bytes]) -> Rows:
        """Update the existing rows, then read them under their lock."""
        self._count_check(border, ids)
        return self.read(border, ids, " FOR UPDATE")

    def _count_check(self, border: Border, ids: Iterable[bytes]) -> None:
        names, values = self.named(ids)
        sql = f"UPDATE {self.tables.fence} SET checks = MOD(checks + 1, 1000) WHERE transaction_id IN ({names})"  # noqa: S608
        border.change(sql, values)
