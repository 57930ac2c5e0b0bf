"""The comparison of a group's records in a run with both ends: statements of DuckDB over a file that it may spill to.

An inbox remembers a delayed message with the time at which it was due in the place of its birth. So ids are compared
there by their random part, which is after the time.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from txcore.audit.verdicts import CANCELLED, DROPPED, SENT, Severity
from txcore.ids import ID_BYTES, TIME_BYTES, id_text
from txcore.records import OpKind
from txcore_spark.effects.databases import ANSWERED, BUSINESS, COMMITTED, INBOX
from txcore_spark.engines.sides import Sides
from txcore_spark.found import Found
from txcore_spark.rows import Kind

COLUMNS: Final = ("tx", "kind", "code", "group", "place", "index", "topic", "ts_ms")
_FACT: Final = pa.schema(
    [
        ("tx", pa.binary()),
        ("random", pa.binary()),
        ("kind", pa.int32()),
        ("code", pa.int32()),
        ("place", pa.int64()),
        ("index", pa.int32()),
        ("topic", pa.string()),
        ("ts_ms", pa.int64()),
    ]
)
_KINDS: Final = (Kind.HALF, Kind.OP, Kind.TARGET, Kind.ROW)
_FINAL: Final = (OpKind.COMMIT, OpKind.ROLLBACK)


class Difference(enum.Enum):
    """A difference between one end and the records of a run; the value is the rule in one sentence."""

    severity: Severity

    def __new__(cls, rule: str, severity: Severity) -> Self:
        """Return the member of a rule."""
        made = object.__new__(cls)
        made._value_, made.severity = rule, severity
        return made

    UNANNOUNCED = "business rows, but no committed transaction has their id", Severity.VIOLATION
    UNFOUNDED = "a committed transaction, but no business row has its id", Severity.WARNING
    UNRECEIVED = "a message that a consumer's inbox does not have", Severity.WARNING
    UNEXPLAINED = "an inbox row of a message that was never there", Severity.VIOLATION


@dataclass(frozen=True, slots=True)
class Births:
    """The births that are compared: [first, until), as ids."""

    first: bytes
    until: bytes


class Comparison:
    """A group's records in a run, and both ends. Used by one thread; `close` it.

    Args:
        folder: Where the database spills to.
        births: The births that are compared.
        cut_ms: Time of the run's cut.
    """

    def __init__(self, folder: Path, births: Births, cut_ms: int) -> None:
        self._births = births
        self._cut_ms = cut_ms
        self._sides = Sides(folder / "effects.duckdb", {"fact": _FACT, "business": BUSINESS})

    def close(self) -> None:
        """Close the database."""
        self._sides.close()

    def add_facts(self, tables: Iterable[pa.Table], group: int) -> None:
        """Add the run's rows of a group, which have the columns of `COLUMNS`."""
        kinds = pa.array([int(kind) for kind in _KINDS], pa.int32())
        for table in tables:
            ours = table.filter(pc.and_(pc.equal(table["group"], group), pc.is_in(table["kind"], kinds)))
            self._sides.add("fact", [_with_random(ours).select(_FACT.names)])

    def add_business(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add business rows by transaction."""
        self._sides.add("business", (pa.Table.from_batches([batch]) for batch in batches))

    def set_inbox(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Compare with this inbox from now on, in place of another one."""
        self._sides.make("inbox", pa.schema([*INBOX, pa.field("random", pa.binary())]))
        self._sides.add("inbox", (_with_random(pa.Table.from_batches([batch])) for batch in batches))

    def uncommitted(self) -> set[bytes]:
        """Return the transactions of business rows that the run did not see as committed."""
        sql = f"""SELECT DISTINCT tx FROM business WHERE tx >= $first AND tx < $until
            EXCEPT SELECT tx FROM ({_STATES}) WHERE code IN ({_list(ANSWERED)})"""
        return {each for (each,) in self._all(sql)}

    def unannounced(self, uncommitted: Collection[bytes]) -> Iterator[Found]:
        """Yield the business rows of transactions that are not committed, and those that name none."""
        sql = "SELECT name, sum(rows) FROM business JOIN asked_ids USING (tx) GROUP BY name ORDER BY name"
        with self._sides.given("asked_ids", pa.table({"tx": pa.array(sorted(uncommitted), pa.binary())})):
            for name, count in self._all(sql):
                yield _found(Difference.UNANNOUNCED, name, "", f"{_rows(count)}, and no committed transaction")
        sql = "SELECT name, sum(rows) FROM business WHERE tx IS NULL AND rows > 0 GROUP BY name ORDER BY name"
        for name, count in self._all(sql):
            what = (
                f"{_rows(count)} with this id, which is no transaction's" if name else f"{_rows(count)} without an id"
            )
            yield _found(Difference.UNANNOUNCED, name or "-", "", what)

    def unfounded(self) -> Iterator[Found]:
        """Yield the committed transactions that no business row names."""
        sql = f"""SELECT tx FROM ({_STATES}) WHERE tx >= $first AND tx < $until AND code IN ({_list(COMMITTED)})
            EXCEPT SELECT tx FROM business WHERE rows > 0 ORDER BY tx"""
        for (tx,) in self._all(sql):
            yield _found(Difference.UNFOUNDED, id_text(tx), "", "committed, and no business row has its id")

    def unreceived(self, topics: Collection[str], before_ms: int, horizon: bytes) -> Iterator[Found]:
        """Yield the messages that the inbox does not have.

        Args:
            topics: The consumer's; empty for all.
            before_ms: Messages of this time or later are not judged; one without a time counts as of the run's cut.
            horizon: Lowest id that the inbox remembers.
        """
        is_ours = "topic IN (SELECT unnest($topics))" if topics else "TRUE"
        sql = f"""SELECT tx, index, any_value(topic) FROM fact ANTI JOIN inbox USING (random, index)
            WHERE kind = {int(Kind.TARGET)} AND tx >= $first AND tx >= $horizon AND {is_ours}
            GROUP BY tx, index HAVING min(coalesce(ts_ms, $cut_ms)) < $before_ms ORDER BY tx, index"""
        values = {"horizon": horizon, "before_ms": before_ms, "cut_ms": self._cut_ms}
        for tx, index, topic in self._all(sql, values | ({"topics": sorted(topics)} if topics else {})):
            yield _found(
                Difference.UNRECEIVED, id_text(tx), topic, f"message {index} is published, and not in the inbox"
            )

    def unexplained(self) -> dict[bytes, list[Found]]:
        """Return the inbox rows without a message, by the random part of their transaction's id.

        Only those of transactions whose messages must all be there: a transaction that has ended, or one of which the
        run saw nothing, although it was born long enough before.
        """
        found: dict[bytes, list[Found]] = {}
        is_final = f"kind = {int(Kind.OP)} AND code IN ({_list(_FINAL)})"
        sql = f"""WITH ended AS (
                SELECT random FROM fact WHERE {is_final}
                UNION SELECT random FROM fact JOIN ({_STATES}) s USING (tx)
                WHERE s.code IN ({SENT}, {DROPPED}, {CANCELLED})
            )
            SELECT DISTINCT tx, index FROM inbox i
            WHERE tx >= $first AND tx < $until
              AND NOT EXISTS (SELECT 1 FROM fact f
                  WHERE f.kind = {int(Kind.TARGET)} AND f.random = i.random AND f.index = i.index)
              AND (random IN (FROM ended) OR random NOT IN (SELECT random FROM fact))
            ORDER BY tx, index"""
        for tx, index in self._all(sql):
            what = f"message {index} is in the inbox, and in no topic"
            found.setdefault(tx[TIME_BYTES:], []).append(_found(Difference.UNEXPLAINED, id_text(tx), "", what))
        return found

    def knows(self, random: bytes) -> bool:
        """Return whether the run has a record of a transaction, by the random part of its id."""
        sql = "SELECT count(*) FROM fact WHERE random = $random"
        return bool(self._all(sql, {"random": random})[0][0])

    def count(self, table: str) -> int:
        """Return the number of rows of one side that are compared."""
        return int(self._all(f"SELECT count(DISTINCT tx) FROM {table} WHERE tx >= $first AND tx < $until")[0][0])

    def _all(self, sql: str, values: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        bounds = {"first": self._births.first, "until": self._births.until} | (values or {})
        used = {name: value for name, value in bounds.items() if f"${name}" in sql}
        return self._sides.all(sql, used)


_STATES: Final = f"SELECT tx, arg_max(code, place) AS code FROM fact WHERE kind = {int(Kind.ROW)} GROUP BY tx"
"""The state of each fence row in the newest reading."""


def _with_random(table: pa.Table) -> pa.Table:
    return table.append_column("random", random_of(table["tx"]))


def random_of(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the part after the time of each id in a column."""
    return pc.binary_slice(ids, TIME_BYTES, ID_BYTES)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(str(int(each)) for each in numbers)


def _rows(count: int) -> str:
    return f"{count:,} business row{'' if count == 1 else 's'}"


def _found(difference: Difference, name: str, topic: str, what: str) -> Found:
    return Found(difference.name, name, topic, what)
