"""The code that the three databases share: the portable statements, built once per table name.

`postgresql`, `mysql` and `sqlite` add the statements on which correctness depends: the conditional insert, its
verification, and the check. Statements run on a `Border` with `:name` parameters; nothing here begins or ends a
transaction unless its docstring says so.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from txcore.errors import BackendUnavailableError, UsageError
from txcore.sqlfence.definitions import added_columns
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.schema import (
    COMMITTED,
    FORCED,
    LOWEST_ID,
    Meta,
    Tables,
    check_version,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from txcore.sqlfence.border import Border, Writer

UPGRADE_WAIT_S: Final = 3
"""Longest wait, in seconds, of an upgrade for open transactions; producers and checks after it wait as long."""
ROWS_MAX: Final = 500
"""Most ids in one statement."""


SAVEPOINT_TEXT: Final = (
    "a savepoint is open: its rollback would remove the fence row and keep the rest; "
    "prepare in the top-level transaction"
)
FOREIGN_TEXT: Final = (
    "the fence row does not belong to the open top-level transaction: it was committed by itself, or written inside a "
    "savepoint"
)
GONE_TEXT: Final = (
    "the fence row is gone: the transaction was ended or rolled back to a savepoint after the row was written. "
    "No message is sent, and what was committed stays: end the transaction by leaving its block, or after prepare"
)


class RowRefused(Exception):  # noqa: N818 - a signal between the dialects and the fence, never seen outside
    """The insert succeeded without a row, or wrote one that must not stay."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A fence row as read."""

    state: int
    group: str


@dataclass(frozen=True, slots=True)
class FenceRow:
    """One stored row, for operators: its state, its group, its time of insert, and the number of checks of it."""

    state: int
    group: str
    created_ms: int
    checks: int


Rows = dict[bytes, StoredRow]


class Dialect(ABC):
    """The statements of one family of databases for one pair of tables. Immutable, thread safe."""

    family: ClassVar[str]
    own_isolation: ClassVar[str | None] = None  #: the level that SQLAlchemy sets on the fence's own connections
    locks_whole_file: ClassVar[bool] = False
    sets_durability: ClassVar[bool] = False  #: whether the insert itself makes the commit durable
    check_waits: ClassVar[bool] = True  #: whether a check may wait for a lock at all
    share_suffix: ClassVar[str] = ""
    digest_place: ClassVar[str] = ":digest"  #: the placeholder of a digest
    meta_columns: ClassVar[str] = "m.*"
    has_digest: ClassVar[str]  #: a template of the expression for whether the fence table has a column for digests
    as_ms: ClassVar[str]  #: a template of the expression for a time of the database in milliseconds since the epoch

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.current_horizon = f"SELECT pruned_below FROM {tables.meta}{self.share_suffix}"  # noqa: S608
        """A statement that reads the horizon, also in a transaction with an older snapshot."""

    # Differences -------------------------------------------------------------------------------------------------

    def place(self, name: str) -> str:
        """Return the placeholder of an id parameter."""
        return f":{name}"

    def encode(self, transaction_id: bytes) -> Any:
        """Return an id in the driver's form."""
        return bytes(transaction_id)  # PyMySQL would send a TransactionId as its text

    def encode_digest(self, digest: bytes) -> Any:
        """Return a digest in the driver's form, for `digest_place`."""
        return digest

    def begin(self, border: Border, writer: Writer) -> None:  # noqa: ARG002 - most drivers begin by themselves
        """Open a producer's transaction if there is none; the library begins its own, even if the driver does not."""
        border.begin()

    def require_durable(self, writer: Writer) -> None:  # noqa: B027 - an insert may set it
        """Refuse settings under which a crash may undo a commit, and that SQL cannot change here.

        Raises:
            FenceMisuseError: a setting is refused; the text names it.
        """

    @abstractmethod
    def insert(
        self,
        writer: Writer,
        transaction_id: bytes,
        group: str,
        identity: bytes = b"",
        oids: str = "",
        digest: bytes = b"",
    ) -> None:
        """Insert the producer's row, conditional on the horizon in the same statement, and make COMMIT durable.

        A *digest* goes into the row. With an *identity*, the statement also requires that it is still the one in the
        meta row, and on PostgreSQL that the table is still the one at *oids*.

        Raises:
            RowRefused: the id lies below the horizon, the database is another one, or the statement took longer than a
                prune would wait.
            FenceMisuseError: a savepoint is open.
        """

    @abstractmethod
    def verify(self, writer: Writer, transaction_id: bytes, digest: bytes = b"") -> None:
        """Check that the row belongs to this still open top-level transaction, and write a *digest* into it.

        Only a call without a digest may be repeated.

        Raises:
            FenceMisuseError: it does not.
            RowRefused: the id lies below the horizon by now.
        """

    @abstractmethod
    def leave_tombstones(self, border: Border, ids: Sequence[bytes], group: str) -> Rows:
        """Write tombstones where there is no row, wait for open producers, return the winners. *ids* ascend."""

    @abstractmethod
    def touch(self, border: Border, ids: Sequence[bytes]) -> Rows:
        """Lock and update the existing rows of *ids*, so that the answer is durable, and return them; insert no row."""

    @abstractmethod
    def settled(self, border: Border, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return the states of the rows that are certainly committed and durable, at any isolation level.

        Rows that another open transaction holds may be missing; the method waits for none.
        """

    @abstractmethod
    def begin_work(self, border: Border, lock_timeout_s: float) -> str:
        """Open a transaction for the fence's own writing, durable at COMMIT, with a bounded wait for locks.

        Returns the statement that restores the pooled connection's own settings, "" for none.
        """

    @contextmanager
    def work(self, border: Border, lock_timeout_s: float) -> Iterator[None]:
        """Bound a block with `begin_work`; the block commits. All else is rolled back at its end.

        A connection that is too broken for that is discarded by its pool.
        """
        undo = ""
        try:
            undo = self.begin_work(border, lock_timeout_s)
            yield
        finally:
            with suppress(Exception):
                border.rollback()
            with suppress(Exception):
                if undo:
                    border.writer().quick_change(undo, {})

    # Common statements ---------------------------------------------------------------------------------------------

    def create(self, border: Border, statements: Sequence[str], *, has_identity: bool = True) -> None:
        """Run *statements*, of which the last one writes the meta row, safe against another process that does the same.

        That one is run only where it is needed: it would wait for transactions that are open. With *has_identity*,
        tables of an older schema version get their missing columns first.

        Raises:
            UsageError: the tables were made by a newer txcore.
            BackendUnavailableError: an open transaction kept the table locked for too long.
        """
        *tables, row = statements
        for statement in tables:
            border.change(statement, {})
        there = border.rows(f"SELECT 1 FROM {self.tables.meta}", {})  # noqa: S608
        meta = self.meta(border) if there else Meta(LOWEST_ID)
        is_old = {self.tables.meta: not meta.identity, self.tables.fence: not meta.has_digest}
        if there and not (has_identity and any(is_old.values())):
            return
        try:
            for table, columns in added_columns(self.family, self.tables).items() if has_identity else ():
                if is_old[table]:
                    self.add_columns(border, table, columns)
            if is_old[self.tables.meta]:
                border.change(row, {})
        except Exception as error:
            if failure_of(error).cause is not Cause.LOCKED:
                raise
            raise BackendUnavailableError(
                f"table {self.tables.fence} or {self.tables.meta} could not be upgraded: an open transaction has "
                "locked it for too long. The fence works as before, with its old schema version; run `txcore fence "
                "create` again after that transaction has ended"
            ) from error

    def horizon(self, border: Border, *, locked: bool = False) -> bytes:
        """Return `pruned_below`; *locked* keeps a prune from raising it before the transaction ends.

        Raises:
            UsageError: no meta row, or a schema newer than this txcore.
        """
        return self.meta(border, locked=locked).pruned_below

    def meta(self, border: Border, *, locked: bool = False) -> Meta:
        """Return the meta row; *locked* as in `horizon`.

        Raises:
            UsageError: no meta row, or a schema newer than this txcore.
        """
        suffix = self.share_suffix if locked else ""
        # Columns come in the order in which they were made; a table of schema version 1 lacks the last ones.
        fence, (schema, _, name) = self.tables.fence, self.tables.fence.rpartition(".")
        columns = f"{self.has_digest.format(fence=fence, schema=schema, name=name)}, {self.meta_columns}"
        rows = border.rows(f"SELECT {columns} FROM {self.tables.meta} AS m{suffix}", {})  # noqa: S608
        if not rows:
            raise UsageError(
                f"table {self.tables.meta} has no row; run `txcore fence create`, or what `txcore fence ddl` prints"
            )
        version, pruned_below, identity, server, adopted, oids = (*rows[0][2:], None, None, None, None)[:6]
        check_version(self.tables.fence, int(version))
        stored = decode_id(identity) if identity is not None else b""
        return Meta(decode_id(pruned_below), stored, server or "", adopted or "", oids or "", bool(rows[0][0]))

    def server(self, border: Border, oids: str) -> str:  # noqa: ARG002 - only PostgreSQL has an answer
        """Return a text that no copy of the tables at *oids* shares, on any server; empty where none exists."""
        return ""

    def lock_meta(self, border: Border) -> None:
        """Lock the meta row against every other writer until the transaction ends."""
        border.change(f"UPDATE {self.tables.meta} SET singleton = singleton", {})  # noqa: S608

    def write_identity(self, border: Border, meta: Meta) -> None:
        """Write identity, server and former identities into the meta row."""
        sql = f"UPDATE {self.tables.meta} SET identity = {self.place('id')}, server = :server, adopted = :adopted"  # noqa: S608
        border.change(sql, {"id": self.encode(meta.identity), "server": meta.server, "adopted": meta.adopted})

    @abstractmethod
    def add_columns(self, border: Border, table: str, columns: Mapping[str, str]) -> None:
        """Add those of *columns*, by name and type, that *table* lacks; wait for open transactions a short time.

        While it waits, every other access to the table waits too.
        """

    def withdraw(self, border: Border, transaction_id: bytes) -> None:
        """Delete the producer's own row."""
        sql = f"DELETE FROM {self.tables.fence} WHERE transaction_id = {self.place('id')} AND state = {COMMITTED}"  # noqa: S608
        border.change(sql, {"id": self.encode(transaction_id)})

    def read(self, border: Border, ids: Sequence[bytes], suffix: str = "") -> Rows:
        """Return the existing rows of *ids*."""
        names, values = self.named(ids)
        sql = (
            f"SELECT transaction_id, state, producer_group FROM {self.tables.fence} "  # noqa: S608
            f"WHERE transaction_id IN ({names}){suffix}"
        )
        return rows_of(border.rows(sql, values))

    def force(self, border: Border, transaction_id: bytes) -> None:
        """Set state 4 in place of any other state of an existing row."""
        sql = f"UPDATE {self.tables.fence} SET state = {FORCED} WHERE transaction_id = {self.place('id')}"  # noqa: S608
        border.change(sql, {"id": self.encode(transaction_id)})

    def raise_horizon(self, border: Border, below: bytes) -> None:
        """Raise `pruned_below` to *below*; it never goes down."""
        place = self.place("id")
        sql = f"UPDATE {self.tables.meta} SET pruned_below = {place} WHERE pruned_below < {place}"  # noqa: S608
        border.change(sql, {"id": self.encode(below)})

    def page(self, border: Border, after: bytes, below: bytes, count: int) -> list[bytes]:
        """Return up to *count* committed ids in (*after*, *below*), ascending."""
        sql = (
            f"SELECT transaction_id FROM {self.tables.fence} "  # noqa: S608
            f"WHERE transaction_id > {self.place('after')} AND transaction_id < {self.place('below')} "
            f"ORDER BY transaction_id LIMIT {int(count)}"
        )
        rows = border.rows(sql, {"after": self.encode(after), "below": self.encode(below)})
        return [decode_id(row[0]) for row in rows]

    def delete(self, border: Border, ids: Sequence[bytes]) -> int:
        """Delete the rows of *ids* and return their number."""
        names, values = self.named(ids)
        return border.change(f"DELETE FROM {self.tables.fence} WHERE transaction_id IN ({names})", values)  # noqa: S608

    def count_groups(self, border: Border) -> dict[str, dict[int, int]]:
        """Return the number of rows of each group in each state."""
        sql = f"SELECT producer_group, state, count(*) FROM {self.tables.fence} GROUP BY producer_group, state"  # noqa: S608
        groups: dict[str, dict[int, int]] = {}
        for group, state, count in border.rows(sql, {}):
            groups.setdefault(str(group), {})[int(state)] = int(count)
        return groups

    def read_whole(self, border: Border, ids: Sequence[bytes]) -> dict[bytes, FenceRow]:
        """Return the existing rows with all of their columns."""
        names, values = self.named(ids)
        sql = (
            f"SELECT transaction_id, state, producer_group, {self.as_ms.format('created')}, checks "  # noqa: S608
            f"FROM {self.tables.fence} WHERE transaction_id IN ({names})"
        )
        return {
            decode_id(row[0]): FenceRow(int(row[1]), str(row[2]), int(row[3]), int(row[4]))
            for row in border.rows(sql, values)
        }

    def oldest(self, border: Border) -> bytes | None:
        """Return the smallest id."""
        rows = border.rows(f"SELECT transaction_id FROM {self.tables.fence} ORDER BY transaction_id LIMIT 1", {})  # noqa: S608
        return decode_id(rows[0][0]) if rows else None

    def named(self, ids: Iterable[bytes]) -> tuple[str, dict[str, Any]]:
        """Return the placeholders of *ids*, and their values."""
        values = {f"i{number}": self.encode(item) for number, item in enumerate(ids)}
        return ", ".join(self.place(name) for name in values), values


def rows_of(rows: Iterable[Sequence[Any]]) -> Rows:
    """Return rows of (transaction_id, state, producer_group) by id."""
    return {decode_id(row[0]): StoredRow(int(row[1]), str(row[2])) for row in rows}


def states_of(rows: Iterable[Sequence[Any]]) -> dict[bytes, int]:
    """Return rows of (transaction_id, state) by id."""
    return {decode_id(row[0]): int(row[1]) for row in rows}


def decode_id(value: Any) -> bytes:
    """Return the 16 bytes of an id in any driver's form."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return uuid.UUID(value).bytes
    return bytes(value)
