"""The fence's tables: their names, their version, and the meaning of their columns; `definitions` has their types.

`<table>` holds one row per fenced transaction:

    transaction_id   16 bytes, primary key (uuid, BINARY(16), BLOB), ordered by creation time
    state            1 committed by the producer, 2 tombstone of a check, 3 via the message table, 4 forced
    producer_group   group of the producer
    created          database time
    checks           number of checks that read the row; changing it makes the check itself a durable write
    digest           digest of the transaction's messages, see `txcore.digest`; NULL where none was written

`<table>_meta` holds one row: the schema version, `pruned_below`, the horizon, and since version 2

    identity         16 random bytes, made with the tables (or when they became version 2)
    server           on PostgreSQL, the origin: system identifier, oid of the database, oid of this table
    adopted          JSON: former identities, with time, name and reason; see `identity`

`<table>_msg` is the message table: one row per message that no relay has sent yet:

    number           order of insertion
    transaction_id   id of its fence row, which has state 3; unique together with
    message_index    its position in the transaction
    producer_group   group of the producer
    lane, slot       the lane, within which order is kept (see `message_table.lane_of`), and the lane modulo 64
    body             the message, see `wire.encode_message`
    tries            number of refusals by its target
    parked, reason   1 when it is not retried any more, and the last refusal; 2 when an operator dropped it, and the
                     operator's name, time and reason
    created          database time

`<table>_later` has the delayed messages, one row each, with the columns of the message table up to `body`, and

    due              when it may be sent, in milliseconds since 1970
    state            0 waits, 1 was turned into a row of the message table, 2 cancelled; 1 and 2 have no body
    note             for a cancelled one, the name, time and reason of an operator
    created          database time

`<table>_slot` has a row for each slot of each group that has ever had a relay, to be locked (on SQLite: leased, by
`owner` up to `until_ms`) while its messages are sent; the `owner` of slot -1 shows whether a relay sleeps, and its
`until_ms` when one was last seen.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from txcore.errors import ConfigError, UsageError

SCHEMA_VERSION: Final = 2
FIRST_VERSION: Final = 1
GROUP_LENGTH_MAX: Final = 255

COMMITTED: Final = 1
TOMBSTONE: Final = 2
VIA_TABLE: Final = 3
FORCED: Final = 4

LOWEST_ID: Final = bytes(16)
IDENTITY_BYTES: Final = 16

_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,55}\.)?[A-Za-z_][A-Za-z0-9_]{0,55}")


class Tables(msgspec.Struct, frozen=True):
    """The names of the tables."""

    fence: str
    meta: str
    message: str
    slot: str
    later: str


class Meta(msgspec.Struct, frozen=True):
    """The stored meta row; `identity` is empty before schema version 2, `server` where it is not known.

    `oids` is not a column: on PostgreSQL the oids of the database and the table of the row, else empty. Nor is
    `has_digest`: whether the fence table has the column.
    """

    pruned_below: bytes
    identity: bytes = b""
    server: str = ""
    adopted: str = ""
    oids: str = ""
    has_digest: bool = False


def tables_named(table: str) -> Tables:
    """Return the names that follow from *table*, which goes into SQL unquoted.

    Raises:
        ConfigError: *table* is not a plain name, with or without a schema before it.
    """
    check_name(table)
    return Tables(table, f"{table}_meta", f"{table}_msg", f"{table}_slot", f"{table}_later")


def check_name(table: str) -> None:
    """Refuse a table name that would need quoting.

    Raises:
        ConfigError: *table* is not a plain name, with or without a schema before it.
    """
    if not _NAME.fullmatch(table):
        raise ConfigError(
            f"table={table!r} is not a plain table name: letters, digits and underscores, at most 56, "
            "with or without a schema and a dot before it",
            key="table",
        )


def check_version(table: str, version: int) -> None:
    """Refuse a schema that a later txcore has made.

    Raises:
        UsageError: the version is newer than this txcore knows.
    """
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"table {table} has schema version {version}, this txcore knows {SCHEMA_VERSION}: upgrade txcore here"
        )
