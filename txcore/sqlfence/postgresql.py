"""The fence on PostgreSQL.

Source: PostgreSQL manual, "System Columns" (xmin), "Transaction Isolation", "Asynchronous Commit", "INSERT"
(ON CONFLICT waits for an uncommitted row of the same key).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from txcore.errors import FenceMisuseError
from txcore.ids import id_text
from txcore.sqlfence.border import POSTGRESQL, Border, Writer
from txcore.sqlfence.dialects import (
    FOREIGN_TEXT,
    GONE_TEXT,
    SAVEPOINT_TEXT,
    UPGRADE_WAIT_S,
    Dialect,
    RowRefused,
    Rows,
    rows_of,
    states_of,
)
from txcore.sqlfence.schema import COMMITTED, TOMBSTONE, VIA_TABLE, Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The statements' result, in one column: a word for a row that must not stay; otherwise the durability that is set.
_FOREIGN = "foreign"
_LATE = "late"
# The row was written by the top-level transaction itself: a savepoint writes with an id of its own.
_IS_TOP_LEVEL = "CAST(CAST(f.xmin AS text) AS bigint) = mod(txid_current(), 4294967296)"
# Weaker levels lose commits in a crash; `remote_apply` is stronger than `on` and stays.
_DURABLE = (
    "set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'remote_apply' "
    "THEN 'remote_apply' ELSE 'on' END, true)"
)
# The oids of this table: a copy with the same meta row, in another schema or database, has others.
_OIDS = "concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()), m.tableoid)"


class PostgreSQL(Dialect):
    """PostgreSQL 12 and later; any driver of SQLAlchemy."""

    family: ClassVar[str] = POSTGRESQL
    as_ms: ClassVar[str] = "CAST(extract(epoch FROM {}) * 1000 AS bigint)"
    own_isolation: ClassVar[str | None] = "READ COMMITTED"
    share_suffix: ClassVar[str] = " FOR SHARE"
    # Through jsonb, which accepts missing columns, and whose plan outlives new columns.
    meta_columns: ClassVar[str] = (
        "1, m.schema_version, CAST(m.pruned_below AS text), to_jsonb(m) ->> 'identity', to_jsonb(m) ->> 'server', "
        f"to_jsonb(m) ->> 'adopted', {_OIDS}"
    )
    has_digest: ClassVar[str] = (
        "EXISTS (SELECT FROM pg_attribute WHERE attrelid = CAST('{fence}' AS regclass) AND attname = 'digest')"
    )
    digest_place: ClassVar[str] = "decode(CAST(:digest AS text), 'hex')"
    sets_durability: ClassVar[bool] = True

    def __init__(self, tables: Tables, statement_timeout_s: float) -> None:
        super().__init__(tables)
        # At READ COMMITTED the statement reads the horizon of its own start; a prune waits longer than the time
        # that RETURNING allows from there. A level with one snapshot per transaction may have read long ago, so
        # there the row is locked: if it has changed since, the database raises 40001.
        horizon = (
            "CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') "  # noqa: S608
            f"THEN (SELECT pruned_below FROM {tables.meta} AS m{{where}}) "
            f"ELSE (SELECT pruned_below FROM {tables.meta} AS m{{where}} FOR SHARE) END"
        )
        self.current_horizon = f"SELECT {horizon.format(where='')}"
        insert = (
            f"INSERT INTO {tables.fence} AS f (transaction_id, state, producer_group, digest) "
            f"SELECT CAST(:id AS uuid), {{state}}, CAST(:producer_group AS varchar), {self.digest_place} "
            f"WHERE CAST(:id AS uuid) >= {horizon} "
            f"RETURNING CASE WHEN {_IS_TOP_LEVEL} IS NOT TRUE THEN '{_FOREIGN}' "
            "WHEN clock_timestamp() - statement_timestamp() >= "
            f"interval '{int(statement_timeout_s * 1000)} milliseconds' THEN '{_LATE}' ELSE {_DURABLE} END AS word"
        )
        # Without a meta row of that identity in that table there is no horizon, and no row is inserted. One connection
        # may meet several tables of that name: a tenant's schema in the search path, a pooler that is sent elsewhere.
        bound = f" WHERE identity = CAST(:identity AS uuid) AND {_OIDS} = CAST(:oids AS text)"
        plain = insert.replace(", digest)", ")").replace(f", {self.digest_place}", "")
        self._inserts = {
            (state, is_bound, has_digest): (insert if has_digest else plain).format(
                state=state, where=bound if is_bound else ""
            )
            for state in (COMMITTED, VIA_TABLE)
            for is_bound in (False, True)
            for has_digest in (False, True)
        }
        late = (
            f"WHEN (f.transaction_id >= (SELECT pruned_below FROM {tables.meta})) IS NOT TRUE THEN '{_LATE}' "  # noqa: S608
            f"ELSE {_DURABLE} END"
        )
        self._verify = (
            f"SELECT CASE WHEN {_IS_TOP_LEVEL} IS NOT TRUE THEN '{_FOREIGN}' {late} "  # noqa: S608
            f"FROM {tables.fence} AS f WHERE f.transaction_id = CAST(:id AS uuid)"
        )
        # The condition is about the row as it was inserted; the update itself may be inside a savepoint.
        self._complete = (
            f"UPDATE {tables.fence} AS f SET digest = {self.digest_place} "  # noqa: S608
            f"WHERE f.transaction_id = CAST(:id AS uuid) AND {_IS_TOP_LEVEL} RETURNING CASE {late}"
        )
        self._settled = (
            f"SELECT CAST(transaction_id AS text), CAST(state AS text) FROM {tables.fence} "  # noqa: S608
            "WHERE transaction_id = ANY (CAST(CAST(:ids AS text) AS uuid[]))"
        )

    def place(self, name: str) -> str:
        """Return a cast placeholder, so that any driver may send text."""
        return f"CAST(:{name} AS uuid)"

    def encode(self, transaction_id: bytes) -> Any:
        """Return the canonical text, which every driver sends to a uuid column."""
        return id_text(transaction_id)

    def encode_digest(self, digest: bytes) -> Any:
        """Return its hexadecimal text, which any driver sends."""
        return digest.hex()

    def create(self, border: Border, statements: Sequence[str], *, has_identity: bool = True) -> None:
        """Create under an advisory lock, because two CREATE TABLE IF NOT EXISTS at once can collide."""
        border.rows("SELECT pg_advisory_xact_lock(hashtext(:name))", {"name": f"txcore:{self.tables.fence}"})
        super().create(border, statements, has_identity=has_identity)

    def add_columns(self, border: Border, table: str, columns: Mapping[str, str]) -> None:
        """Add them in one statement; the shorter wait holds for the rest of this transaction."""
        added = ", ".join(f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in columns.items())
        border.rows(f"SELECT set_config('lock_timeout', '{UPGRADE_WAIT_S}s', true)", {})
        border.change(f"ALTER TABLE {table} {added}", {})

    def server(self, border: Border, oids: str) -> str:
        """Return the system identifier and the oids of database and table; empty if this role may not read them."""
        may_ask = border.rows(
            "SELECT COALESCE(has_function_privilege(CAST(to_regprocedure('pg_control_system()') AS oid), 'EXECUTE'), "
            "false)",
            {},
        )[0][0]
        if not may_ask:
            return ""
        system = border.rows("SELECT system_identifier FROM pg_control_system()", {})[0][0]
        return f"{system}/{oids}"

    def insert(
        self,
        writer: Writer,
        transaction_id: bytes,
        group: str,
        identity: bytes = b"",
        oids: str = "",
        digest: bytes = b"",
    ) -> None:
        """Insert, set synchronous_commit, and find out from xmin whether a savepoint is open: one round trip."""
        values = {"id": transaction_id.hex(), "producer_group": group, **_bound(identity, oids, digest)}
        rows = writer.quick_rows(self._inserts[COMMITTED, bool(identity), bool(digest)], values)
        _require_own(rows[0][0] if rows else "")

    def insert_via_table(
        self,
        writer: Writer,
        transaction_id: bytes,
        put: str,
        column: str,
        values: Mapping[str, str],
        identity: bytes,
        oids: str,
        digest: bytes,
    ) -> None:
        """Insert the producer's row with state 3, in one round trip with another statement.

        Args:
            put: The other statement.
            column: The column that is selected after both.
            values: The values of *put* and *column*, and the `producer_group`.
            identity: As *oids* and *digest*, see `insert`.

        Raises: as `insert`.
        """
        sql = _joined(self._inserts[VIA_TABLE, bool(identity), bool(digest)], put, column)
        named = {"id": transaction_id.hex(), **values, **_bound(identity, oids, digest)}
        _require_own(writer.quick_rows(sql, named)[0][0])

    def verify(self, writer: Writer, transaction_id: bytes, digest: bytes = b"") -> None:
        """Check xmin again; it differs for a row that was committed by itself or written inside a savepoint.

        A digest is written by the same statement. If that finds no such row, another one says why.
        """
        values, rows = {"id": transaction_id.hex()}, []
        if digest:
            rows = writer.quick_rows(self._complete, values | {"digest": digest.hex()})
        rows = rows or writer.quick_rows(self._verify, values)
        if not rows:
            raise FenceMisuseError(GONE_TEXT)
        if rows[0][0] == _FOREIGN:
            raise FenceMisuseError(FOREIGN_TEXT)
        if rows[0][0] == _LATE:
            raise RowRefused("it lies below the prune horizon by now")

    def settled(self, border: Border, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Read: every level shows only committed rows, and a fenced commit is durable before it is visible."""
        values = {"ids": f"{{{','.join(map(id_text, ids))}}}"}
        return states_of(border.writer().quick_rows(self._settled, values))

    def begin_work(self, border: Border, lock_timeout_s: float) -> str:
        """Bound the wait for locks and nothing else.

        A statement timeout would also cut COMMIT's wait for a synchronous standby, which PostgreSQL reports as a
        success with a warning.
        """
        border.rows(
            f"SELECT set_config('lock_timeout', '{max(1, int(lock_timeout_s * 1000))}ms', true), "
            f"set_config('statement_timeout', '0', true), {_DURABLE}",
            {},
        )
        return ""

    def leave_tombstones(self, border: Border, ids: Sequence[bytes], group: str) -> Rows:
        """Upsert, in order; the writing update also flushes a commit that was read before it was durable.

        All ids are one parameter, a text that any driver sends: hundreds of parameters cost a program more than the
        statement costs the database.
        """
        sql = (
            f"INSERT INTO {self.tables.fence} AS f (transaction_id, state, producer_group) "  # noqa: S608
            f"SELECT each, {TOMBSTONE}, CAST(:producer_group AS varchar) "
            "FROM unnest(CAST(CAST(:ids AS text) AS uuid[])) AS each "
            "ON CONFLICT (transaction_id) DO UPDATE SET checks = mod(f.checks + 1, 1000) "
            "RETURNING f.transaction_id, f.state, f.producer_group"
        )
        return rows_of(border.rows(sql, {"ids": f"{{{','.join(map(id_text, ids))}}}", "producer_group": group}))

    def touch(self, border: Border, ids: Sequence[bytes]) -> Rows:
        """Update one by one, in order, so that two checks cannot wait for each other."""
        found: Rows = {}
        for transaction_id in ids:
            sql = (
                f"UPDATE {self.tables.fence} AS f SET checks = mod(f.checks + 1, 1000) "  # noqa: S608
                "WHERE f.transaction_id = CAST(:id AS uuid) RETURNING f.transaction_id, f.state, f.producer_group"
            )
            found |= rows_of(border.rows(sql, {"id": self.encode(transaction_id)}))
        return found


def _bound(identity: bytes, oids: str, digest: bytes) -> dict[str, str]:
    """Return the values with which an insert requires this database, if it has an identity, and a digest's, if any."""
    values = {"identity": identity.hex(), "oids": oids} if identity else {}
    return values | {"digest": digest.hex()} if digest else values


@functools.lru_cache(maxsize=16)
def _joined(insert: str, put: str, column: str) -> str:
    return f"WITH fence AS ({insert}), put AS ({put}) SELECT COALESCE((SELECT word FROM fence), ''), {column}"  # noqa: S608


def _require_own(word: str) -> None:
    """Refuse a row that was not inserted, or must not stay, by the statement's result."""
    if not word:
        raise RowRefused("it lies below the prune horizon")
    if word == _FOREIGN:
        raise FenceMisuseError(SAVEPOINT_TEXT)
    if word == _LATE:
        raise RowRefused("the insert took longer than statement_timeout_s")
