"""The readers as Spark data sources: one per kind of broker, and one for fence tables, all of one schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from txcore_spark.plan import FENCE, Range, decode_ranges, encode_ranges
from txcore_spark.readers import READERS
from txcore_spark.readers.ranges import read_range
from txcore_spark.rows import SPARK_SCHEMA

NAMES: Final[Mapping[str, str]] = {each: f"txcore_{each}" for each in (*READERS, FENCE)}


class RangePartition(InputPartition):
    """One range, or none: Spark needs at least one partition."""

    def __init__(self, wanted: Range | None) -> None:
        super().__init__(None)
        self.wanted = wanted


class RangeReader(DataSourceReader):
    """Reads exactly the ranges that were planned."""

    def __init__(self, url: str, ranges: Sequence[Range]) -> None:
        self._url = url
        self._ranges = ranges

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per range."""
        return [RangePartition(each) for each in self._ranges] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one range, and last whether it was read whole."""
        assert isinstance(partition, RangePartition)
        return iter(()) if partition.wanted is None else read_range(self._url, partition.wanted)


class _LogSource(DataSource):
    """Options: `url` (which Spark keeps out of its logs), `ranges`."""

    def schema(self) -> str:
        """Return the schema of the rows."""
        return SPARK_SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - there is only one
        """Return the reader of the ranges in the options."""
        return RangeReader(self.options["url"], decode_ranges(self.options["ranges"]))


def _named(name: str) -> type[DataSource]:
    return type(f"{name.title().replace('_', '')}Source", (_LogSource,), {"name": classmethod(lambda _: name)})


def register(session: SparkSession) -> None:
    """Register the sources with a session."""
    for name in NAMES.values():
        session.dataSource.register(_named(name))


def frame_of(session: SparkSession, url: str, ranges: Iterable[Range]) -> DataFrame:
    """Return the rows of ranges on one broker, or of fence tables in one database."""
    wanted = list(ranges)
    kind = FENCE if any(each.source.log == FENCE for each in wanted) else url.partition(":")[0]
    return session.read.format(NAMES[kind]).option("url", url).option("ranges", encode_ranges(wanted)).load()
