"""The engine for one machine: DuckDB in this process, over Parquet and Arrow, without Java."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from pyarrow import parquet

from txcore.config.audit import AuditSection
from txcore.errors import ConfigError
from txcore_spark.engines.duck_files import DuckFiles
from txcore_spark.engines.duck_frame import DuckFrame
from txcore_spark.engines.duck_sql import literal, quoted
from txcore_spark.frames import Wanted
from txcore_spark.plan import Range
from txcore_spark.readers.ranges import read_range
from txcore_spark.rows import SCHEMA
from txcore_spark.store import LINES, ROWS, Store

GROUP_ROWS: Final = 200_000
"""Rows of one group of a Parquet file: what a reader holds in memory before it writes."""
FIRST: Final = "part-00000.parquet"
_UNITS: Final = {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}


class DuckKeep:
    """Implements `Keep`: one Parquet file for each reading beside the run, or a temporary table."""

    def __init__(self, engine: DuckEngine, store: Store, number: int, *, is_landed: bool) -> None:
        self.is_landed = is_landed
        self._engine = engine
        self._folder = store.place(number, ROWS)
        self._lines = store.place(number, LINES)
        self._held = None if is_landed else engine.held(engine.read([]))

    def read(self, wanted: Wanted, settings: AuditSection) -> None:  # noqa: ARG002 - they are Spark's
        """See `Keep.read`."""
        tables = _grouped(self._batches([(url, each) for url, ranges in wanted for each in ranges]))
        if self._held is not None:
            for table in tables:
                self._engine.insert(self._held, table)
            return
        writer: parquet.ParquetWriter | None = None
        try:
            for table in tables:
                if writer is None:
                    count = len(self._engine.files.parquet_in(self._folder))
                    writer = self._engine.files.writer(self._folder, f"part-{count:05d}.parquet")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()

    def _batches(self, wanted: Sequence[tuple[str, Range]]) -> Iterator[pa.RecordBatch]:
        for url, each in self._engine.counted(wanted):
            yield from read_range(url, each)

    def rows(self) -> DuckFrame:
        """See `Keep.rows`."""
        return self._engine.read([self._folder]) if self._held is None else self._held

    def lines(self, frame: DuckFrame) -> DuckFrame:
        """See `Keep.lines`."""
        if not self.is_landed:
            return self._engine.held(frame)
        kept = frame.kept()
        shown = ", ".join(quoted(each) for each in kept.columns if each != "doubt")
        parts = []
        for doubt in (0, 1):
            file = self._engine.files.made(f"{self._lines}/doubt={doubt}", FIRST)
            self._engine.copy(f"SELECT {shown} FROM ({kept.sql}) WHERE doubt = {doubt}", file)
            parts.append(f"SELECT {shown}, {doubt} AS doubt FROM {_parquet([file])}")
        kept.release()
        names = [*(each for each in kept.columns if each != "doubt"), "doubt"]
        return DuckFrame(self._engine.connection, " UNION ALL ".join(parts), names)


class DuckEngine:
    """Implements `Engine` on a connection of its own to a database in memory.

    Args:
        memory: Most memory for its tables, as `2g`; more than that is on its disk for temporary files.

    Raises:
        ConfigError: *memory* is not understood.
    """

    name = "duckdb"

    def __init__(self, memory: str = "2g") -> None:
        self.connection = duckdb.connect()
        self.files = DuckFiles(self.connection)
        self._reading: dict[int, tuple[int, int]] = {}
        self._held: list[DuckFrame] = []
        scratch = Path(tempfile.gettempdir()) / f"txcore-audit-{secrets.token_hex(4)}"
        number, unit = memory[:-1], memory[-1:].lower()
        try:
            self.connection.execute(f"SET memory_limit = {literal(number + _UNITS.get(unit, unit))}")
        except duckdb.Error as error:
            raise ConfigError(f"{memory!r} is no size of memory such as 2g", key="audit.driver_memory") from error
        self.connection.execute(f"SET temp_directory = {literal(str(scratch))}")
        self.connection.execute("SET preserve_insertion_order = false")
        self.connection.execute("SET autoinstall_known_extensions = false")

    @classmethod
    def of(cls, settings: AuditSection) -> DuckEngine:
        """Return the engine for the settings of a configuration.

        Raises:
            ConfigError: they name a source that only Spark has, or no size of memory.
        """
        if settings.kafka_source == "spark":
            raise ConfigError('audit.kafka_source = "spark" needs --engine spark', key="audit.kafka_source")
        return cls(settings.driver_memory)

    def close(self) -> None:
        """Give its memory back, and remove its temporary files."""
        self.connection.close()

    def keep(self, store: Store, number: int, *, is_landed: bool = True) -> DuckKeep:
        """See `Engine.keep`; what the step before held in memory is released."""
        while self._held:
            self._held.pop().release()
        return DuckKeep(self, store, number, is_landed=is_landed)

    def read(self, places: Sequence[str]) -> DuckFrame:
        """See `Engine.read`."""
        packs: list[str] = []
        files: list[str] = []
        for place in places:
            (packs if place.endswith(".parquet") else files).extend(self.files.parquet_in(place))
        if not files and not packs:
            empty = ", ".join(f"CAST(NULL AS {_TYPES[str(each.type)]}) AS {quoted(each.name)}" for each in SCHEMA)
            return DuckFrame(self.connection, f"SELECT {empty} WHERE FALSE", SCHEMA.names)
        shown = ", ".join(map(quoted, SCHEMA.names))
        # A pack has one more column: it is read by itself.
        parts = [f"SELECT {shown} FROM {_parquet(each)}" for each in (packs, files) if each]
        return DuckFrame(self.connection, " UNION ALL ".join(parts), SCHEMA.names)

    def write(self, frame: DuckFrame, place: str) -> DuckFrame:
        """See `Engine.write`."""
        file = self.files.made(place, FIRST)
        self.copy(frame.sql, file)
        return DuckFrame(self.connection, f"SELECT * FROM {_parquet([file])}", frame.columns)

    def held(self, frame: DuckFrame) -> DuckFrame:
        """Return a frame that is kept until the next step begins."""
        self._held.append(frame.kept())
        return self._held[-1]

    def insert(self, frame: DuckFrame, rows: pa.Table) -> None:
        """Add rows to a frame that is kept."""
        self.connection.register("new_rows", rows)
        self.connection.execute(f"INSERT INTO {frame.table} SELECT * FROM new_rows")
        self.connection.unregister("new_rows")

    def copy(self, sql: str, file: str) -> None:
        """Write a query's rows to a Parquet file."""
        self.connection.execute(f"COPY ({sql}) TO {literal(file)} (FORMAT parquet, COMPRESSION snappy)")

    def expect(self, records: int) -> None:
        """See `Engine.expect`: DuckDB sees the sizes itself."""

    def for_few_rows(self) -> AbstractContextManager[None]:
        """See `Engine.for_few_rows`: its plans are interpreted anyway."""
        return nullcontext()

    def tasks(self, known: Sequence[int]) -> Mapping[int, tuple[int, int]]:  # noqa: ARG002 - there are few
        """See `Engine.tasks`: one part is one reading of ranges."""
        return dict(self._reading)

    def counted(self, wanted: Sequence[tuple[str, Range]]) -> Iterator[tuple[str, Range]]:
        """Yield ranges, and count those that are done."""
        part = len(self._reading)
        for number, each in enumerate(wanted):
            self._reading[part] = (number, len(wanted))
            yield each
        self._reading[part] = (len(wanted), len(wanted))


_TYPES: Final = {"binary": "BLOB", "int32": "INTEGER", "int64": "BIGINT", "string": "VARCHAR"}


def _parquet(files: Sequence[str]) -> str:
    return f"read_parquet([{', '.join(map(literal, files))}], hive_partitioning = false)"


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches as tables of about `GROUP_ROWS` rows."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if count:
        yield pa.Table.from_batches(held)
