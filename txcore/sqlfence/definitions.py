"""The definition of the tables, as SQLAlchemy's tables, and the statements that are made of it.

`create()`, `ddl()` and `metadata()` all use these, so that they cannot differ. `schema` has the meaning of the columns.

The statement of the meta row lets the database draw the identity, so that a text that is run in two databases gives two
identities. It also completes the row of schema version 1, and changes nothing else.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import (
    BINARY,
    BLOB,
    TIMESTAMP,
    UUID,
    BigInteger,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.elements import quoted_name

from txcore.digest import DIGEST_BYTES
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE
from txcore.sqlfence.schema import FIRST_VERSION, GROUP_LENGTH_MAX, LOWEST_ID, SCHEMA_VERSION

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

    from txcore.sqlfence.schema import Tables


class Types(msgspec.Struct, frozen=True):
    """The types of columns that differ between the families of databases; `now` is the default of a time."""

    id: TypeEngine[Any]
    small: TypeEngine[Any]
    group: TypeEngine[Any]
    body: TypeEngine[Any]
    digest: TypeEngine[Any]
    time: TypeEngine[Any]
    now: str


_PG_DRAWN: Final = """\
CAST(encode(substr(sha256(convert_to(concat_ws('/', random(), random(),
      clock_timestamp(), pg_backend_pid()), 'UTF8')), 1, 16), 'hex') AS uuid)"""
# Only functions whose values a binary log of statements repeats on a replica: UUID() and RANDOM_BYTES() are not.
_MYSQL_DRAWN: Final = """\
UNHEX(LEFT(SHA2(CONCAT_WS('/', RAND(), RAND(), RAND(),
  NOW(6), CONNECTION_ID()), 256), 32))"""


@cache  # a database's package is loaded with its first table: those of three cost a tenth of the import of a fence
def types_of(family: str) -> Types:
    """Return the types of a family of databases."""
    if family == POSTGRESQL:
        return Types(
            id=UUID(),
            small=SmallInteger(),
            group=String(GROUP_LENGTH_MAX),
            body=LargeBinary(),
            digest=LargeBinary(),
            time=TIMESTAMP(timezone=True),
            now="clock_timestamp()",
        )
    if family == SQLITE:
        return Types(
            id=BLOB(),
            small=Integer(),
            group=Text(),
            body=BLOB(),
            digest=BLOB(),
            time=Text(),
            now="(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
        )
    from sqlalchemy.dialects import mysql  # noqa: PLC0415 - see above

    return Types(
        id=BINARY(16),
        small=mysql.TINYINT(),
        group=mysql.VARCHAR(GROUP_LENGTH_MAX, collation="utf8mb4_bin"),
        body=mysql.LONGBLOB(),
        digest=BINARY(DIGEST_BYTES),
        time=mysql.TIMESTAMP(fsp=3),
        now="CURRENT_TIMESTAMP(3)",
    )


def fence_metadata(family: str, tables: Tables) -> MetaData:
    """Return the tables of a fence."""
    made, types = MetaData(), types_of(family)
    length = [CheckConstraint("length(transaction_id) = 16")] if family == SQLITE else []
    fence = (
        Column("transaction_id", types.id, primary_key=True),
        Column("state", types.small, nullable=False),
        Column("producer_group", types.group, nullable=False),
        _time("created", types),
        Column("checks", SmallInteger, nullable=False, server_default=text("0")),
        Column("digest", types.digest),
        CheckConstraint("state BETWEEN 1 AND 4"),  # of the table: Alembic overlooks those of a column
        *length,
    )
    _add(made, tables.fence, *fence, sqlite_with_rowid=False)
    meta = (Column("identity", types.id), Column("server", Text), Column("adopted", Text))
    _add(made, tables.meta, *_meta_columns(types), *meta)
    _add_message(made, family, tables.message)
    slot = (
        Column("producer_group", types.group, primary_key=True),
        Column("slot", SmallInteger, primary_key=True),
        Column("owner", String(64), nullable=False, server_default=""),
        Column("until_ms", BigInteger, nullable=False, server_default=text("0")),
        Column("beats", BigInteger, nullable=False, server_default=text("0")),
    )
    _add(made, tables.slot, *slot)
    _add_later(made, family, tables.later)
    return made


def inbox_metadata(family: str, tables: Tables) -> MetaData:
    """Return the tables of an inbox."""
    made, types = MetaData(), types_of(family)
    inbox = (
        Column("transaction_id", types.id, primary_key=True),
        Column("message_index", Integer, primary_key=True),
        Column("producer_group", types.group, primary_key=True),
        _time("received", types),
    )
    _add(made, tables.fence, *inbox)
    _add(made, tables.meta, *_meta_columns(types))
    return made


def fence_ddl(family: str, tables: Tables) -> list[str]:
    """Return the statements that create a fence, of which the last one writes the meta row."""
    return [*_statements(fence_metadata(family, tables), family), fence_meta_row(family, tables)]


def inbox_ddl(family: str, tables: Tables) -> list[str]:
    """Return the statements that create an inbox, of which the last one writes the meta row."""
    present = "ON DUPLICATE KEY UPDATE singleton = 1" if family == MYSQL else "ON CONFLICT DO NOTHING"
    row = (
        f"INSERT INTO {tables.meta} (singleton, schema_version, pruned_below)\n"
        f"VALUES (1, {FIRST_VERSION}, {_lowest(family)})\n{present}"
    )
    return [*_statements(inbox_metadata(family, tables), family), row]


def added_columns(family: str, tables: Tables) -> dict[str, dict[str, str]]:
    """Return the names and types of the columns that schema version 2 added, by table."""
    types, dialect = types_of(family), _sqlalchemy_dialect(family)
    return {
        tables.meta: {"identity": types.id.compile(dialect=dialect), "server": "text", "adopted": "text"},
        tables.fence: {"digest": types.digest.compile(dialect=dialect)},
    }


def fence_meta_row(family: str, tables: Tables) -> str:
    """Return the statement that inserts the meta row, or brings one without an identity to this schema version."""
    drawn = {POSTGRESQL: _PG_DRAWN, MYSQL: _MYSQL_DRAWN, SQLITE: "randomblob(16)"}[family]
    origin = "origin" if family == POSTGRESQL else "''"
    meta = f"{tables.meta} AS m" if family == POSTGRESQL else tables.meta
    insert = (
        f"INSERT INTO {meta}\n  (singleton, schema_version, pruned_below, identity, server, adopted)\n"
        f"VALUES (1, {SCHEMA_VERSION}, {_lowest(family)},\n  {drawn},\n  {origin}, '[]')\n"
    )
    if family == MYSQL:  # it assigns in this order, and the others look at the identity that was there
        return (
            f"{insert}ON DUPLICATE KEY UPDATE\n"
            f"  schema_version = IF(identity IS NULL, {SCHEMA_VERSION}, schema_version),\n"
            "  server = IF(identity IS NULL, '', server),\n"
            "  adopted = IF(identity IS NULL, '[]', adopted),\n"
            "  identity = COALESCE(identity, VALUES(identity))"
        )
    insert += (
        "ON CONFLICT (singleton) DO UPDATE SET\n"
        "  schema_version = excluded.schema_version, identity = excluded.identity,\n"
        f"  server = excluded.server, adopted = excluded.adopted\n"
        f"WHERE {'m.' if family == POSTGRESQL else ''}identity IS NULL"
    )
    return _pg_block(tables, insert) if family == POSTGRESQL else insert


def _pg_block(tables: Tables, insert: str) -> str:
    """Return *insert* after a look at the server, in a block: only there may the function that it names be forbidden.

    `origin` is the text of `PostgreSQL.server`.
    """
    return f"""\
DO $$
DECLARE origin text DEFAULT '';
BEGIN
IF COALESCE(has_function_privilege(CAST(to_regprocedure(
    'pg_control_system()') AS oid), 'EXECUTE'), false) THEN
  SELECT concat_ws('/', system_identifier,
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    CAST(CAST('{tables.meta}' AS regclass) AS oid))
  INTO origin FROM pg_control_system();
END IF;
{insert};
END $$"""  # noqa: S608 - a checked name


def _meta_columns(types: Types) -> tuple[Any, ...]:
    return (
        Column("singleton", types.small, primary_key=True, autoincrement=False),
        Column("schema_version", Integer, nullable=False),
        Column("pruned_below", types.id, nullable=False),
        CheckConstraint("singleton = 1"),
    )


def _number(family: str, *, is_key: bool) -> Column[Any]:
    """Return the column of the order of insertion."""
    number: dict[str, Column[Any]] = {
        POSTGRESQL: Column("number", BigInteger, Identity(always=True), primary_key=is_key, nullable=False),
        MYSQL: Column("number", BigInteger, primary_key=True, autoincrement=True),
        SQLITE: Column("number", Integer, primary_key=True),
    }
    return number[family]


def _add_later(made: MetaData, family: str, name: str) -> None:
    types = types_of(family)
    columns = (
        _number(family, is_key=True),
        Column("transaction_id", types.id, nullable=False),
        Column("message_index", Integer, nullable=False),
        Column("producer_group", types.group, nullable=False),
        Column("lane", BigInteger, nullable=False),
        Column("slot", SmallInteger, nullable=False),
        Column("body", types.body),
        Column("due", BigInteger, nullable=False),
        Column("state", SmallInteger, nullable=False, server_default=text("0")),
        Column("note", Text),
        _time("created", types),
        UniqueConstraint("transaction_id", "message_index"),
    )
    stem = name.rpartition(".")[2].removesuffix("_later")  # a longer suffix would make the longest name too long
    _add(made, name, *columns, Index(quoted_name(f"{stem}_due_ix", quote=False), "producer_group", "state", "due"))


def _add_message(made: MetaData, family: str, name: str) -> None:
    types = types_of(family)
    is_key = family == POSTGRESQL  # there an index less is to be kept: rows are found by their id
    columns = (
        _number(family, is_key=False),
        Column("transaction_id", types.id, primary_key=is_key, nullable=False),
        Column("message_index", Integer, primary_key=is_key, nullable=False),
        Column("producer_group", types.group, nullable=False),
        Column("lane", BigInteger, nullable=False),
        Column("slot", SmallInteger, nullable=False),
        Column("body", types.body, nullable=False),
        Column("tries", SmallInteger, nullable=False, server_default=text("0")),
        Column("parked", SmallInteger, nullable=False, server_default=text("0")),
        Column("reason", Text),
        _time("created", types),
    )
    index = quoted_name(f"{name.rpartition('.')[2]}_ix", quote=False)
    parts: list[Any] = [Index(index, "producer_group", "parked", "slot", "number")]
    if not is_key:
        parts.append(UniqueConstraint("transaction_id", "message_index"))
    _add(made, name, *columns, *parts)


def _add(made: MetaData, name: str, *parts: Any, **options: Any) -> None:
    schema, _, table = name.rpartition(".")
    if not made.tables:
        made.schema = quoted_name(schema, quote=False) if schema else None
    options |= {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
    Table(quoted_name(table, quote=False), made, *parts, **options)


def _sqlalchemy_dialect(family: str) -> Any:
    return registry.load(family)()


def _time(name: str, types: Types) -> Column[Any]:
    return Column(name, types.time, nullable=False, server_default=text(types.now))


def _lowest(family: str) -> str:
    return f"'{LOWEST_ID.hex()}'" if family == POSTGRESQL else f"x'{LOWEST_ID.hex()}'"


def _statements(metadata: MetaData, family: str) -> list[str]:
    """Return the statements that create the tables and indexes that are missing."""
    made, dialect = [], _sqlalchemy_dialect(family)
    for table in metadata.tables.values():
        create = _tidied(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        if family == MYSQL:  # it has no CREATE INDEX IF NOT EXISTS
            within = [f"INDEX {each.name} ({', '.join(each.columns.keys())})" for each in table.indexes]
            columns, end = create.rsplit("\n)", 1)
            made.append(",\n  ".join([columns, *within]) + f"\n){end}")
        else:
            made.append(create)
            made += [_tidied(CreateIndex(each, if_not_exists=True).compile(dialect=dialect)) for each in table.indexes]
    return made


def _tidied(compiled: Any) -> str:
    lines = re.sub(r" +\n", "\n", str(compiled).strip().replace("\t", "  "))
    lines = lines.replace(")ENGINE", ") ENGINE").replace(")\n WITHOUT", ") WITHOUT")
    return re.sub(r"^(CREATE INDEX .*?) ON ", r"\1\nON ", lines)
