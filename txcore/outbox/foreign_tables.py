"""OutboxTable: an outbox table of another library, relayed unchanged, so that a team can migrate without a rewrite.

One relay at a time sends from it, held by a lock of the database (PostgreSQL, MariaDB, MySQL), which ends when the
relay is frozen. SQLite has no such lock: several relays would send everything several times, still in order and with
the same ids. The table has no column for tries, so nothing is parked: a refused message is retried, with pauses, until
it is accepted or removed.

On MariaDB and MySQL a commit can be read a moment before it is on disk, and the outbox table offers no means to flush
it: a crash of the server at that moment may undo the commit of a sent message. txcore's own table has no such gap.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, text

from txcore import wire
from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError
from txcore.message_table import Refused, TableRow, Taken, Turned, lane_of
from txcore.outbox.foreign_rows import bytes_of, message_of, uuid_of
from txcore.outbox.idle import bound
from txcore.outbox.slots import EMPTY, NAMED_MAX, ParkedMessage, TableStats
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE
from txcore.sqlfence.connections import border_of, family_of
from txcore.sqlfence.failures import failure_of
from txcore.sqlfence.schema import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from txcore.outbox.foreign_layouts import Layout

LOOK_AHEAD: Final = 4
"""Number of batch sizes that are read, in case the first rows belong to resting lanes."""


class _Held(NamedTuple):
    """A connection with the table's lock, and the ids of the rows in the table's own form."""

    connection: Connection
    ids: dict[bytes, Any]


class OutboxTable:
    """Implements `MessageTable`, and the other methods that `Relay` calls. For one relay at a time.

    Raises:
        ConfigError: an asynchronous engine, or a table name that would need quoting.
    """

    can_ring = False

    def __init__(self, engine: Engine, group: str, table: str, layout: Layout, *, hold_s: float = 60.0) -> None:
        if not isinstance(engine, Engine):
            raise ConfigError(f"a Relay takes a blocking Engine of SQLAlchemy, not {engine!r}", key="engine")
        check_name(table)
        self._engine = engine
        self._secret = engine.url.password
        self._family = family_of(engine.dialect.name)
        self._group = group
        self._table = table
        self._layout = layout
        quote = engine.dialect.identifier_preparer.quote
        self._column = {name: quote(name) for name in (*layout.columns, *layout.names("order"), layout.done) if name}
        place = f"{engine.url.database}/{table}"  # the names of MariaDB and MySQL are of the whole server
        self._lock_name = "txcore_" + hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        self._hold_s = hold_s
        self._undo = ""

    def join(self) -> None:
        """Do nothing: if the table is missing, `take` raises."""

    def take(self, group: str, resting: Collection[int], row_max: int) -> Taken | None:  # noqa: ARG002 - the port's
        """See `MessageTable.take`."""
        with self._translated(), ExitStack() as at_end:
            connection = self._engine.connect()
            at_end.callback(self._end, connection)
            self._undo = bound(border_of(connection), self._hold_s)
            if self._lock(connection):
                found = self._read(connection, "", row_max * LOOK_AHEAD)
                rows = [row for row, _ in found if row.lane not in resting][:row_max]
                if not rows and len(found) == row_max * LOOK_AHEAD:
                    found = self._read_behind(connection, resting, min(row_max, NAMED_MAX))
                    rows = [row for row, _ in found]
                if rows:
                    at_end.pop_all()
                    ids = {row.transaction_id: identity for row, identity in found}
                    return Taken((), rows, _Held(connection, ids))
        return None

    def turn_due(self, group: str, row_max: int) -> Turned:  # noqa: ARG002 - the port's
        """Return that no row waits: such a table has no delays."""
        return Turned()

    def beat(self) -> None:
        """Do nothing: such a table has no place for it."""

    def settle(self, taken: Taken, sent: Sequence[TableRow], refused: Sequence[Refused]) -> None:  # noqa: ARG002
        """See `MessageTable.settle`."""
        held: _Held = taken.hold
        name, done = self._column[self._layout.id], self._layout.done
        change = f"UPDATE {self._table} SET {self._column[done]} = 1" if done else f"DELETE FROM {self._table}"  # noqa: S608
        with self._translated(), ExitStack() as at_end:
            at_end.callback(self._end, held.connection)
            if sent:
                ids = [{"id": held.ids[row.transaction_id]} for row in sent]
                ended = held.connection.execute(text(f"{change} WHERE {name} = :id"), ids).rowcount
                if ended > len(sent):
                    raise self._ambiguous(f"one value in {ended} rows, {len(sent)} of which were sent")
            held.connection.commit()

    def drop(self, taken: Taken) -> None:
        """See `MessageTable.drop`."""
        self._end(taken.hold.connection)

    def sleep(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Do nothing: producers of this table do not ring."""

    def close(self) -> None:
        """Do nothing: nothing is kept open."""

    def stats(self) -> TableStats:
        """Return nothing: counting the rows of another library's table may take long."""
        return EMPTY

    def parked(self, count_max: int = 0) -> list[ParkedMessage]:  # noqa: ARG002
        """Return nothing: nothing is parked."""
        return []

    def resume(self, transaction_id: bytes) -> int:  # noqa: ARG002
        """Return 0: nothing is parked."""
        return 0

    def give_up(self, transaction_id: bytes, why: str, by: str) -> int:  # noqa: ARG002
        """Return 0: nothing is parked."""
        return 0

    def _lock(self, connection: Connection) -> bool:
        sql = {
            POSTGRESQL: "SELECT pg_try_advisory_xact_lock(hashtext(:name))",
            MYSQL: "SELECT GET_LOCK(:name, 0) = 1",
        }.get(self._family)
        return sql is None or bool(connection.execute(text(sql), {"name": self._lock_name}).scalar())

    def _read(
        self, connection: Connection, which: str, row_max: int, values: Mapping[str, Any] | None = None
    ) -> list[tuple[TableRow, Any]]:
        """Return the oldest rows that are not sent, with the condition *which* and its *values*."""
        sql = self._select(self._layout.columns, which) + f" LIMIT {int(row_max)}"
        rows = [dict(zip(self._layout.columns, row, strict=True)) for row in connection.execute(text(sql), values)]
        if self._family == SQLITE:
            connection.rollback()  # on SQLite an open transaction would keep the file's log from being reset
        found = [self._row(row) for row in rows]
        self._require_ids(found)
        return found

    def _read_behind(
        self, connection: Connection, resting: Collection[int], row_max: int
    ) -> list[tuple[TableRow, Any]]:
        """Return the oldest rows of lanes that do not rest, however many are before them; it reads ids and keys."""
        layout, wanted = self._layout, []
        sql = self._select([layout.id, *layout.names("key")], "")
        with connection.execute(text(sql).execution_options(stream_results=True)) as result:
            for identity, *keys in result:
                if self._lane(identity, bytes_of(keys[0]) if keys and keys[0] is not None else None) not in resting:
                    wanted.append(identity)
                    if len(wanted) == row_max:
                        break
        values = {f"i{number}": identity for number, identity in enumerate(wanted)}
        which = f"{self._column[layout.id]} IN ({', '.join(f':{name}' for name in values)})"
        return self._read(connection, which, row_max, values) if wanted else []

    def _select(self, columns: Sequence[str], which: str) -> str:
        """Return the statement that reads *columns* of the rows that are not sent, in their order."""
        conditions = [which] if which else []
        if self._layout.done:
            done = self._column[self._layout.done]
            conditions.append(f"({done} = 0 OR {done} IS NULL)")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        names, order = (
            ", ".join(self._column[name] for name in each) for each in (columns, self._layout.names("order"))
        )
        return f"SELECT {names} FROM {self._table}{where} ORDER BY {order}"  # noqa: S608

    def _require_ids(self, found: Sequence[tuple[TableRow, Any]]) -> None:
        """Refuse rows without an id of their own: one of them would end with another, or never.

        Raises:
            ConfigError: there is one.
        """
        seen: set[bytes] = set()
        for row, identity in found:
            if identity is None or row.transaction_id in seen:
                what = "NULL" if identity is None else f"{identity!r} twice"
                raise self._ambiguous(what)
            seen.add(row.transaction_id)

    def _ambiguous(self, what: str) -> ConfigError:
        return ConfigError(
            f"column {self._layout.id!r} of {self._table} has {what}: name a column that identifies each row for `id`, "
            "or remove the row; until then no row is removed or marked",
            key="id",
        )

    def _row(self, row: Mapping[str, Any]) -> tuple[TableRow, Any]:
        message, identity = message_of(self._layout, row), row[self._layout.id]
        lane = self._lane(identity, message.key)
        return TableRow(uuid_of(identity), 0, lane, wire.encode_message(message)), identity

    def _lane(self, identity: Any, key: bytes | None) -> int:
        """Return the lane of a row."""
        return lane_of(self._group, key, uuid_of(identity))

    def _end(self, connection: Connection) -> None:
        with suppress(Exception):
            connection.rollback()
        with suppress(Exception):
            if self._family == MYSQL:
                connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": self._lock_name})
        with suppress(Exception):
            if self._undo:
                connection.execute(text(f"SET {self._undo}"))
        with suppress(Exception):
            connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TxcoreError:
            raise
        except Exception as error:
            raise BackendUnavailableError(f"the outbox table's database: {failure_of(error, self._secret)}") from error
