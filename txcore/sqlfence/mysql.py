"""The fence on MariaDB and MySQL (InnoDB).

Source: MariaDB documentation of InnoDB lock modes, `innodb_lock_wait_timeout` (0 does not wait), statements that
cause an implicit commit, and SAVEPOINT (all savepoints of a transaction are deleted when it ends).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from txcore.errors import FenceMisuseError
from txcore.sqlfence.anchored import AnchoredDialect
from txcore.sqlfence.border import MYSQL, Border, Writer
from txcore.sqlfence.dialects import UPGRADE_WAIT_S, Rows, states_of
from txcore.sqlfence.failures import Cause, Failure, unless

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NO_SAVEPOINT: Final = "1305"


class MySQL(AnchoredDialect):
    """MariaDB 10.6 and later, MySQL 8; any synchronous or asynchronous driver of SQLAlchemy."""

    family: ClassVar[str] = MYSQL
    as_ms: ClassVar[str] = "CAST(UNIX_TIMESTAMP({}) * 1000 AS SIGNED)"
    # Two waiters on one key deadlock when the holder rolls back and both have inherited its gap lock.
    check_waits: ClassVar[bool] = False
    # It makes the horizon a current read at every isolation level: REPEATABLE READ, the default, would otherwise show
    # the horizon of the transaction's first read. A prune waits for it.
    share_suffix: ClassVar[str] = " LOCK IN SHARE MODE"
    lock_suffix: ClassVar[str] = " FOR UPDATE"
    has_digest: ClassVar[str] = (
        "(SELECT COUNT(*) FROM information_schema.columns WHERE table_name = '{name}' AND column_name = 'digest' "
        "AND table_schema = COALESCE(NULLIF('{schema}', ''), DATABASE()))"
    )
    check_counted: ClassVar[str] = "ON DUPLICATE KEY UPDATE checks = MOD(checks + 1, 1000)"

    def create(self, border: Border, statements: Sequence[str], *, has_identity: bool = True) -> None:
        """Create, and end the transaction: at REPEATABLE READ it would not see the row of a faster process.

        Each CREATE commits by itself, and no lock is held.
        """
        super().create(border, statements, has_identity=has_identity)
        border.commit()

    def add_columns(self, border: Border, table: str, columns: Mapping[str, str]) -> None:
        """Add them in one statement, unless another process adds one meanwhile; then look again.

        The server would wait for a day for the table, and hold up every other statement on it as long.
        """
        border.change(f"SET SESSION lock_wait_timeout = {UPGRADE_WAIT_S}", {})  # reset with those of `begin_work`
        while True:
            there = {str(row[0]) for row in border.rows(f"SHOW COLUMNS FROM {table}", {})}
            missing = [f"ADD COLUMN {name} {kind}" for name, kind in columns.items() if name not in there]
            if not missing:
                return
            sql = f"ALTER TABLE {table} {', '.join(missing)}"
            unless(Cause.COLUMN_THERE, partial(border.change, sql, {}))

    def require_durable(self, writer: Writer) -> None:
        """Refuse a server that does not flush at commit: no client can change that for one transaction."""
        flushed = writer.quick_rows("SELECT @@innodb_flush_log_at_trx_commit", {})[0][0]
        if int(flushed) != 1:
            raise FenceMisuseError(
                f"innodb_flush_log_at_trx_commit is {flushed}: a crash would undo commits that were already "
                "announced; set it to 1"
            )

    def is_anchor_gone(self, failure: Failure) -> bool:
        """Return whether the server's number names that."""
        return failure.code == _NO_SAVEPOINT

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
            # The connection may belong to a pool, and its next holder would not wait.
            border.writer().quick_change(undo, {})
            raise
        return undo

    def touch(self, border: Border, ids: Sequence[bytes]) -> Rows:
        """Update the existing rows, then read them under their lock."""
        self._count_check(border, ids)
        return self.read(border, ids, self.lock_suffix)

    def _count_check(self, border: Border, ids: Iterable[bytes]) -> None:
        names, values = self.named(ids)
        sql = f"UPDATE {self.tables.fence} SET checks = MOD(checks + 1, 1000) WHERE transaction_id IN ({names})"  # noqa: S608
        border.change(sql, values)
