"""Reading an SQLite broker file: each log by positions, counted by SQLite itself when the end was frozen."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa
from txcore_sqlite.codec import decode_headers, reading_error
from txcore_sqlite.options import parse_path

from txcore.errors import ConfigError
from txcore_spark.plan import BATCH_ROWS, FENCE, TARGET, Edge, Range, ShortReadError, Source, flushed

_LOG: Final = "FROM {log} WHERE group_id = (SELECT group_id FROM producer_group WHERE name = ?) AND partition = ?"
_TOPIC: Final = "FROM target WHERE topic_id = (SELECT topic_id FROM topic WHERE name = ?)"


class SqliteBroker:
    """A broker file, opened for reading only. Implements `Broker`."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._connection = _connect(url, timeout_s)

    def topics(self) -> Sequence[str]:
        """See `Broker.topics`."""
        return [name for (name,) in self._connection.execute("SELECT name FROM topic ORDER BY name")]

    def edges(self, source: Source) -> Sequence[Edge]:
        """See `Broker.edges`."""
        (end,) = self._connection.execute("SELECT next FROM sequence").fetchone()
        if source.log == TARGET:
            return [self._edge(source, 0, 0, end)]
        found = self._connection.execute(
            "SELECT partition, (SELECT first FROM log WHERE log.group_id = p.group_id AND log.partition = p.partition"
            " AND kind = ?) FROM partition p JOIN producer_group USING (group_id) WHERE name = ? ORDER BY partition",
            (source.log, source.name),
        ).fetchall()
        if not found:
            raise ConfigError(f"there is no group {source.name!r} in the file", key="group")
        return [self._edge(source, partition, first or 0, end) for partition, first in found]

    def _edge(self, source: Source, partition: int, first: int, end: int) -> Edge:
        select, values = _where(source, partition)
        lowest, count = self._connection.execute(
            f"SELECT MIN(position), COUNT(*) {select} AND position < ?", (*values, end)
        ).fetchone()
        is_truncated = bool(first) and (end if lowest is None else lowest) > first
        # Positions are shared by all logs of a file: one that begins later has lost nothing before.
        return Edge(partition, (end if lowest is None else lowest) if is_truncated else 0, end, is_truncated, count)

    def seal(self, source: Source, partition: int, end: int) -> str:
        """See `Broker.seal`: a hash of the last record before *end*, because a file's copy is the same file."""
        select, values = _where(source, partition)
        found = self._connection.execute(
            f"SELECT position, body {select} AND position < ? ORDER BY position DESC LIMIT 1", (*values, end)
        ).fetchone()
        return hashlib.blake2b(b"%d " % found[0] + found[1], digest_size=16).hexdigest() if found else ""

    def split(self, wanted: Range, records_max: int) -> Sequence[Range]:
        """See `Broker.split`."""
        select, values = _where(wanted.source, wanted.place.partition)
        bounds = [
            position
            for (position,) in self._connection.execute(
                f"SELECT position FROM (SELECT position, ROW_NUMBER() OVER (ORDER BY position) AS n {select}"
                " AND position >= ? AND position < ?) WHERE n % ? = 0",
                (*values, wanted.start, wanted.end, records_max),
            )
        ]
        edges = [wanted.start, *(bound + 1 for bound in bounds if bound + 1 < wanted.end), wanted.end]
        ranges = []
        for low, high in itertools.pairwise(edges):
            (count,) = self._connection.execute(
                f"SELECT COUNT(*) {select} AND position >= ? AND position < ?", (*values, low, high)
            ).fetchone()
            ranges.append(replace(wanted, start=low, end=high, expected=count))
        return ranges

    def close(self) -> None:
        """See `Broker.close`."""
        self._connection.close()


def open_broker(url: str, timeout_s: float) -> SqliteBroker:
    """See `Reader.open_broker`."""
    return SqliteBroker(url, timeout_s)


def read(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """See `Reader.read`."""
    source, rows, count = wanted.source, wanted.rows(), 0
    select, values = _where(source, wanted.place.partition)
    columns = "position, body, appended_ms" + (", key, headers" if source.log == TARGET else "")
    sql = f"SELECT {columns} {select} AND position >= ? AND position < ? ORDER BY position"
    with closing(_connect(url, wanted.timeout_s)) as connection:
        add = {"half": rows.add_half, "op": rows.add_ops, "parked": rows.add_parked}.get(source.log)
        cursor = connection.execute(sql, (*values, wanted.start, wanted.end))
        while found := cursor.fetchmany(BATCH_ROWS):
            count += len(found)
            if add is not None:
                for record in found:
                    add(*record)
            else:
                for position, body, appended_ms, key, headers in found:
                    rows.add_target(position, source.topic, key, body, decode_headers(headers), appended_ms)
            yield from flushed(rows)
    if count != wanted.expected:
        raise ShortReadError(f"{count} records of {wanted.expected} that SQLite counted in it")
    rows.add_cover(wanted.start, wanted.end, count)
    yield rows.take()


def _connect(url: str, timeout_s: float) -> sqlite3.Connection:
    path = parse_path(url)
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=timeout_s, isolation_level=None)
        connection.execute("SELECT next FROM sequence").fetchone()
    except sqlite3.Error as error:
        raise reading_error(error) from error
    return connection


def _where(source: Source, partition: int) -> tuple[str, tuple[str | int, ...]]:
    assert source.log != FENCE
    if source.log == TARGET:
        return _TOPIC, (source.name,)
    return _LOG.format(log=source.log), (source.name, partition)
