"""The code that MariaDB, MySQL and SQLite share: there a transaction is known only by a savepoint set in it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from txcore.errors import FenceMisuseError
from txcore.sqlfence.dialects import GONE_TEXT, Dialect, RowRefused, Rows
from txcore.sqlfence.failures import Failure, failure_of
from txcore.sqlfence.savepoints import ANCHOR_PREFIX
from txcore.sqlfence.schema import COMMITTED, TOMBSTONE, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txcore.sqlfence.border import Border, Writer


class AnchoredDialect(Dialect):
    """The statements of the databases that know a transaction only by a savepoint set in it, as an anchor."""

    check_counted: ClassVar[str]  #: the clause by which a tombstone for an existing row counts a check there instead
    lock_suffix: ClassVar[str] = ""  #: of a query, to lock its rows against every other writer

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        #: The statements of `insert`, for a database with and without an identity, and a row with and without a digest.
        self._inserts = {
            (is_bound, has_digest): f"INSERT INTO {tables.fence} "  # noqa: S608
            f"(transaction_id, state, producer_group{', digest' if has_digest else ''}) "
            f"SELECT :id, {COMMITTED}, :producer_group{', :digest' if has_digest else ''} "
            f"FROM {tables.meta} WHERE pruned_below <= :id"
            f"{' AND identity = :identity' if is_bound else ''}{self.share_suffix}"
            for is_bound in (False, True)
            for has_digest in (False, True)
        }
        self._complete = f"UPDATE {tables.fence} SET digest = :digest WHERE transaction_id = :id"  # noqa: S608

    def insert(
        self,
        writer: Writer,
        transaction_id: bytes,
        group: str,
        identity: bytes = b"",
        oids: str = "",  # noqa: ARG002 - only PostgreSQL has them
        digest: bytes = b"",
    ) -> None:
        """Insert, and set a savepoint as an anchor: some statements of MariaDB and MySQL commit implicitly."""
        values = {"id": bytes(transaction_id), "producer_group": group, "identity": identity, "digest": digest}
        if writer.quick_change(self._inserts[bool(identity), bool(digest)], values) != 1:
            raise RowRefused("it lies below the prune horizon")
        self.set_anchor(writer, anchor_of(transaction_id))

    def verify(self, writer: Writer, transaction_id: bytes, digest: bytes = b"") -> None:
        """Release the anchor, which works only in the transaction that wrote the row.

        It is set again, unless a digest makes this the last call. Releasing ends savepoints opened after it as well:
        they could not stay open over the COMMIT either.
        """
        anchor = anchor_of(transaction_id)
        try:
            writer.quick_change(f"RELEASE {anchor}", {})
        except Exception as error:
            if self.is_anchor_gone(failure_of(error)):
                raise FenceMisuseError(GONE_TEXT) from error
            raise
        if digest:
            writer.quick_change(self._complete, {"id": bytes(transaction_id), "digest": digest})
        else:
            self.set_anchor(writer, anchor)

    def set_anchor(self, writer: Writer, anchor: str) -> None:
        """Set the savepoint in the open transaction."""
        writer.quick_change(anchor, {})

    @abstractmethod
    def is_anchor_gone(self, failure: Failure) -> bool:
        """Return whether the release failed because there is no such savepoint."""

    def leave_tombstones(self, border: Border, ids: Sequence[bytes], group: str) -> Rows:
        """Insert the missing rows, count a check in the others, and read the winners."""
        _, values = self.named(ids)
        rows = ", ".join(f"({self.place(name)}, {TOMBSTONE}, :producer_group)" for name in values)
        sql = (
            f"INSERT INTO {self.tables.fence} (transaction_id, state, producer_group) VALUES {rows} "  # noqa: S608
            f"{self.check_counted}"
        )
        border.change(sql, values | {"producer_group": group})
        return self.read(border, ids, self.lock_suffix)


def anchor_of(transaction_id: bytes) -> str:
    """Return the statement that sets the savepoint right after the row; `RELEASE` before it makes the one that ends it.

    The savepoint is gone when its transaction has ended (also by a statement that commits unnoticed by the program)
    and after a rollback to a savepoint set before it.
    """
    return f"SAVEPOINT {ANCHOR_PREFIX}{transaction_id.hex()}"
