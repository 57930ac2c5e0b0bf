"""The fence on SQLite: one writer per file, so every lock covers the whole file.

Source: SQLite documentation of PRAGMA synchronous and journal_mode, "Transaction" (BEGIN IMMEDIATE) and
"Savepoints".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from txcore.errors import ConfigError, FenceMisuseError
from txcore.sqlfence.border import SQLITE, Border
from txcore.sqlfence.definitions import added_to_meta
from txcore.sqlfence.dialects import GONE_TEXT, Dialect, RowRefused, Rows, states_of
from txcore.sqlfence.failures import failure_of
from txcore.sqlfence.schema import Tables
from txcore.sqlfence.transaction_state import anchor_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_FULL: Final = 2


class SQLite(Dialect):
    """SQLite 3.24 and later, through sqlite3 or aiosqlite."""

    family: ClassVar[str] = SQLITE
    created_ms = "CAST(round((julianday(created) - 2440587.5) * 86400000) AS INTEGER)"
    locks_whole_file: ClassVar[bool] = True

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        if "." in tables.fence:
            raise ConfigError(
                f"table={tables.fence!r}: on SQLite the fence must be in the main file, because a transaction over "
                "attached files is not atomic in WAL mode",
                key="table",
            )
        self._inserts = self._bound_inserts()

    def add_meta_columns(self, border: Border) -> None:
        """Add them under the file's lock."""
        names = {row[0] for row in border.rows("SELECT name FROM pragma_table_info(:name)", {"name": self.tables.meta})}
        for name, kind in added_to_meta(SQLITE).items():
            if name not in names:
                border.change(f"ALTER TABLE {self.tables.meta} ADD COLUMN {name} {kind}", {})

    def begin(self, border: Border) -> None:
        """Take the write lock at once: a transaction that reads first can fail at its first write.

        Durability can be set only outside a transaction. A program that has its own begin hook keeps it.
        """
        if border.open_at_driver():
            return
        if int(border.outside("PRAGMA synchronous")[0][0]) < _FULL:
            border.outside("PRAGMA synchronous = FULL")
        border.begin()  # a begin hook of the program runs here
        if not border.open_at_driver():
            border.quick_change("BEGIN IMMEDIATE", {})

    def require_durable(self, border: Border) -> None:
        """Refuse settings that cannot be changed inside a transaction."""
        synchronous, journal, path = border.quick_rows(
            "SELECT s.synchronous, j.journal_mode, d.file FROM pragma_synchronous AS s, "
            "pragma_journal_mode AS j, pragma_database_list AS d WHERE d.name = 'main'",
            {},
        )[0]
        if not path:
            raise FenceMisuseError(
                "an in-memory SQLite database cannot carry a fence: no other connection can read it; use a file"
            )
        if str(journal).lower() in {"off", "memory"}:
            raise FenceMisuseError(f"PRAGMA journal_mode is {journal}: a crash would break the file; use WAL or DELETE")
        if int(synchronous) < _FULL:
            raise FenceMisuseError(
                "PRAGMA synchronous is below FULL and cannot be changed inside a transaction: run "
                "PRAGMA synchronous=FULL when you connect, or a crash undoes commits that were already announced"
            )

    def insert(self, border: Border, transaction_id: bytes, group: str, identity: bytes = b"", oids: str = "") -> None:  # noqa: ARG002 - only PostgreSQL has oids
        """Insert, and set a savepoint as an anchor."""
        values = {"id": transaction_id, "producer_group": group}
        if identity:
            values["identity"] = identity
        if border.quick_change(self._inserts[bool(identity)], values) != 1:
            raise RowRefused("it lies below the prune horizon")
        if not border.is_surely_open():  # the savepoint itself would begin a transaction
            raise FenceMisuseError(GONE_TEXT)
        border.quick_change(f"SAVEPOINT {anchor_name(transaction_id)}", {})

    def verify(self, border: Border, transaction_id: bytes) -> None:
        """Release the anchor, which works only in the transaction that wrote the row, and set it again.

        Releasing ends savepoints opened after it as well: they could not stay open over the COMMIT either.
        """
        try:
            border.quick_change(f"RELEASE SAVEPOINT {anchor_name(transaction_id)}", {})
        except Exception as error:
            if failure_of(error).text.startswith("no such savepoint"):
                raise FenceMisuseError(GONE_TEXT) from error
            raise
        if not border.open_at_driver():  # a savepoint was the transaction, and releasing it was its commit
            raise FenceMisuseError(GONE_TEXT)
        border.quick_change(f"SAVEPOINT {anchor_name(transaction_id)}", {})

    def settled(self, border: Border, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Read, unless this connection sees uncommitted rows of others (a shared cache, read_uncommitted)."""
        names, values = self.named(ids)
        sql = (
            f"SELECT transaction_id, state FROM {self.tables.fence} WHERE transaction_id IN ({names}) "  # noqa: S608
            "AND NOT (SELECT read_uncommitted FROM pragma_read_uncommitted)"
        )
        return states_of(border.quick_rows(sql, values))

    def begin_work(self, border: Border, lock_timeout_s: float) -> str:
        """Lock out every other writer; the wait for the file is bounded by *lock_timeout_s*."""
        before = int(border.outside("PRAGMA busy_timeout")[0][0])
        undo = f"PRAGMA busy_timeout = {before}"
        border.outside(f"PRAGMA busy_timeout = {max(0, int(lock_timeout_s * 1000))}")
        try:
            self.begin(border)
        except BaseException:
            border.outside(undo)  # the connection may belong to a pool, and its next holder would not wait
            raise
        return undo

    def leave_tombstones(self, border: Border, ids: Sequence[bytes], group: str) -> Rows:
        """Insert the missing rows and read the winners."""
        rows, values = self._tombstone_rows(ids, group)
        border.change(
            f"INSERT INTO {self.tables.fence} (transaction_id, state, producer_group) VALUES {rows} "  # noqa: S608
            "ON CONFLICT (transaction_id) DO UPDATE SET checks = (checks + 1) % 1000",
            values,
        )
        return self.read(border, ids)

    def touch(self, border: Border, ids: Sequence[bytes]) -> Rows:
        """Read; the file is locked and its commits are flushed before they are visible."""
        return self.read(border, ids)
