"""The fence on SQLite: one writer per file, so every lock covers the whole file.

Source: SQLite documentation of PRAGMA synchronous and journal_mode, "Transaction" (BEGIN IMMEDIATE) and
"Savepoints".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from txcore.errors import ConfigError, FenceMisuseError
from txcore.sqlfence.anchored import AnchoredDialect
from txcore.sqlfence.border import SQLITE, Border, Writer
from txcore.sqlfence.dialects import GONE_TEXT, Rows, states_of
from txcore.sqlfence.failures import Failure
from txcore.sqlfence.schema import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FULL: Final = 2


class SQLite(AnchoredDialect):
    """SQLite 3.24 and later, through sqlite3 or aiosqlite."""

    family: ClassVar[str] = SQLITE
    as_ms: ClassVar[str] = "CAST(round((julianday({}) - 2440587.5) * 86400000) AS INTEGER)"
    has_digest: ClassVar[str] = "(SELECT count(*) FROM pragma_table_info('{name}') WHERE name = 'digest')"
    locks_whole_file: ClassVar[bool] = True
    check_counted: ClassVar[str] = "ON CONFLICT (transaction_id) DO UPDATE SET checks = (checks + 1) % 1000"

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        if "." in tables.fence:
            raise ConfigError(
                f"table={tables.fence!r}: on SQLite the fence must be in the main file, because a transaction over "
                "attached files is not atomic in WAL mode",
                key="table",
            )

    def add_columns(self, border: Border, table: str, columns: Mapping[str, str]) -> None:
        """Add them under the file's lock."""
        names = {row[0] for row in border.rows("SELECT name FROM pragma_table_info(:name)", {"name": table})}
        for name, kind in columns.items():
            if name not in names:
                border.change(f"ALTER TABLE {table} ADD COLUMN {name} {kind}", {})

    def begin(self, border: Border, writer: Writer) -> None:
        """Take the write lock at once: a transaction that reads first can fail at its first write.

        Durability can be set only outside a transaction. A program that has its own begin hook keeps it.
        """
        is_open = writer.open_at_driver()
        if not is_open and int(writer.quick_rows("PRAGMA synchronous", {})[0][0]) < _FULL:
            writer.quick_change("PRAGMA synchronous = FULL", {})
        border.begin()  # a begin hook of the program runs here
        if not is_open and not writer.open_at_driver():
            writer.quick_change("BEGIN IMMEDIATE", {})

    def require_durable(self, writer: Writer) -> None:
        """Refuse settings that cannot be changed inside a transaction."""
        synchronous, journal, path = writer.quick_rows(
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

    def set_anchor(self, writer: Writer, anchor: str) -> None:
        """Set the savepoint, unless the transaction is over: on SQLite a savepoint would begin one."""
        if not writer.open_at_driver():
            raise FenceMisuseError(GONE_TEXT)
        writer.quick_change(anchor, {})

    def is_anchor_gone(self, failure: Failure) -> bool:
        """Return whether SQLite's text names that; it has no code of its own."""
        return failure.text.startswith("no such savepoint")

    def settled(self, border: Border, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Read, unless this connection sees uncommitted rows of others (a shared cache, read_uncommitted)."""
        names, values = self.named(ids)
        sql = (
            f"SELECT transaction_id, state FROM {self.tables.fence} WHERE transaction_id IN ({names}) "  # noqa: S608
            "AND NOT (SELECT read_uncommitted FROM pragma_read_uncommitted)"
        )
        return states_of(border.writer().quick_rows(sql, values))

    def begin_work(self, border: Border, lock_timeout_s: float) -> str:
        """Lock out every other writer; the wait for the file is bounded by *lock_timeout_s*."""
        writer = border.writer()
        undo = f"PRAGMA busy_timeout = {int(writer.quick_rows('PRAGMA busy_timeout', {})[0][0])}"
        writer.quick_change(f"PRAGMA busy_timeout = {max(0, int(lock_timeout_s * 1000))}", {})
        try:
            self.begin(border, writer)
        except BaseException:
            writer.quick_change(undo, {})  # the connection may belong to a pool, and its next holder would not wait
            raise
        return undo

    def touch(self, border: Border, ids: Sequence[bytes]) -> Rows:
        """Read; the file is locked and its commits are flushed before they are visible."""
        return self.read(border, ids)
