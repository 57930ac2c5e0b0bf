"""The identity of a fence's database, which halves carry so that no check asks another database.

The meta row holds a random identity, made with the tables. On PostgreSQL it also names the server, the database and
the table that it was made for. A copy in another server, database or schema differs in these, and has an identity of
its own, made of both, until an operator adopts it. A promoted standby has the same identity.

A connection may reach a copy without a reconnect: a search path for each tenant, a pooler that is redirected. So on
PostgreSQL the oids of database and table are compared at each write of a row, and at each check.

Not distinguished: a physical copy (pg_basebackup, a snapshot, recovery to a point in time) that is promoted beside
its original, as it looks like a failover; on MariaDB, MySQL and SQLite, and where the role may not call
`pg_control_system()`, any copy that keeps the meta row.

Source: PostgreSQL manual, "Control Data Functions" (`pg_control_system`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from txcore.errors import UsageError, WrongDatabaseError
from txcore.fence import NO_DATABASE
from txcore.sqlfence.border import SQLITE
from txcore.sqlfence.schema import IDENTITY_BYTES, Meta

if TYPE_CHECKING:
    from txcore.sqlfence.border import Border, Writer
    from txcore.sqlfence.dialects import Dialect


class Adoption(msgspec.Struct, frozen=True):
    """One former identity whose transactions this database decides: its hex text, time, name and reason."""

    identity: str
    at: str
    by: str
    reason: str


class Database(msgspec.Struct, frozen=True):
    """The database of one connection.

    Attributes:
        stored: The identity in its meta row; empty before schema version 2.
        current: The identity that halves carry: the stored one, or another one in a copy that was not adopted.
        server: The server's own name for itself; empty where it is not known.
        adopted: Former identities, oldest first.
        oids: The oids of database and table on this server, which `server` also contains; see `Meta`.
        has_digest: Whether its fence table has a column for digests.
    """

    stored: bytes
    current: bytes
    server: str
    adopted: tuple[Adoption, ...] = ()
    oids: str = ""
    has_digest: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether the tables were made in another server or database, and are not adopted here."""
        return self.current != self.stored

    def is_at(self, identity: bytes, oids: str) -> bool:
        """Return whether the meta row of *identity* in the table *oids* is the one that was read here."""
        return self.stored == identity and self.oids == oids

    def decides(self, identity: bytes) -> bool:
        """Return whether halves that carry *identity* are decided here; halves without identity always are."""
        if identity in {b"", NO_DATABASE, self.current}:
            return True
        return not self.is_copy and any(each.identity == identity.hex() for each in self.adopted)


def database_of(meta: Meta, server: str) -> Database:
    """Return the database with this meta row and server."""
    adopted = tuple(msgspec.json.decode(meta.adopted, type=list[Adoption])) if meta.adopted else ()
    current = meta.identity
    if meta.identity and server and meta.server and server != meta.server:
        current = hashlib.blake2b(meta.identity + server.encode(), digest_size=IDENTITY_BYTES).digest()
    return Database(meta.identity, current, server, adopted, meta.oids, meta.has_digest)


def look(dialect: Dialect, border: Border, writer: Writer) -> Database:
    """Return the database of *border*; with an identity, it is read once for each connection to the server."""
    found = writer.memory.get(dialect.tables.meta)
    return look_anew(dialect, border) if found is None else found


def look_anew(dialect: Dialect, border: Border, meta: Meta | None = None) -> Database:
    """Read the database again, which may have been adopted or replaced since, unless *meta* equals the cached row.

    Tables without an identity are not cached: the next transaction finds the identity that an upgrade has added.
    """
    meta = meta or dialect.meta(border)
    memory = border.writer().memory
    if not meta.identity:
        memory.pop(dialect.tables.meta, None)
        return database_of(meta, "")
    known: Database | None = memory.get(dialect.tables.meta)
    is_known = known is not None and known.is_at(meta.identity, meta.oids)
    server = known.server if known is not None and is_known else dialect.server(border, meta.oids)
    found = memory[dialect.tables.meta] = database_of(meta, server)
    return found


def recall(dialect: Dialect, border: Border) -> Database | None:
    """Return the database that was last read through *border*, unless it has no identity; queries only a file."""
    writer = border.writer()
    found: Database | None = writer.memory.get(dialect.tables.meta)
    return look(dialect, border, writer) if found is None and writer.family == SQLITE else found


def wrong_database_text(database: Database, identity: bytes) -> str:
    """Return the reason why this database does not decide a half that carries *identity*."""
    here = database.current.hex() or "none (its tables have schema version 1)"
    return (
        f"another database: the transaction was fenced in database {identity.hex()}, and the fence uses {here}; "
        "nothing was written. Give the fence the producer's database; if this database replaces it for good, run "
        "`txcore fence adopt`"
    )


def adopt(dialect: Dialect, border: Border, adoption: Adoption) -> Database:
    """Make this database decide for its former identity, or for the one in *adoption*; the meta row is locked.

    Raises:
        UsageError: there is nothing to adopt, or the tables have no identity yet.
    """
    dialect.lock_meta(border)
    meta = dialect.meta(border)
    database = look_anew(dialect, border, meta)
    if not database.stored:
        raise UsageError("the fence's tables have no identity yet (schema version 1): run `txcore fence create` first")
    if not adoption.identity and not database.is_copy:
        if meta.server and not database.server:
            raise UsageError(
                "this role may not call pg_control_system(), so it cannot find out whether the tables are a copy; "
                "nothing was changed. Adopt with a role that may call it, or name the identity of another database"
            )
        raise UsageError(
            "there is nothing to adopt: this database has the identity that was made with its tables; "
            "name the identity of another database whose transactions this one must decide from now on"
        )
    former = [each for each in (adoption.identity, database.stored.hex() if database.is_copy else "") if each]
    kept = [each for each in database.adopted if each.identity not in former]
    added = [msgspec.structs.replace(adoption, identity=each) for each in former if each != database.current.hex()]
    text = msgspec.json.encode((*kept, *added)).decode()
    # A role that may not read the server keeps the stored one; without it, a copy would not be recognized any more.
    dialect.write_identity(border, Meta(b"", database.current, database.server or meta.server, text))
    return look_anew(dialect, border)


def require(database: Database, identity: bytes) -> None:
    """Refuse a half with an *identity* that this database does not decide.

    Raises:
        WrongDatabaseError: the identity is another database's.
    """
    if not database.decides(identity):
        raise WrongDatabaseError(wrong_database_text(database, identity))
