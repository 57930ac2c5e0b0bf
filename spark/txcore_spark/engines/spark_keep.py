"""Storage of one step's rows and lines on Spark: Parquet beside the run, or Spark's own storage during the step.

Spark's copy is cut off from its source (a local checkpoint, not a cache): the rows of a lost executor are lost, and the
run fails instead of reading again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from txcore.backends.options import split_url
from txcore.config.audit import AuditSection
from txcore_spark.engines.sources import frame_of
from txcore_spark.engines.spark_frame import SparkFrame
from txcore_spark.frames import Wanted
from txcore_spark.plan import FENCE
from txcore_spark.rows import SPARK_SCHEMA
from txcore_spark.store import LINES, ROWS, Store


class SparkKeep:
    """Implements `Keep`."""

    def __init__(self, session: SparkSession, store: Store, number: int, *, is_landed: bool = True) -> None:
        self.is_landed = is_landed
        self._session = session
        self._store = store
        self._number = number
        self._kept: list[DataFrame] = []

    def read(self, wanted: Wanted, settings: AuditSection) -> None:
        """See `Keep.read`."""
        frames: list[DataFrame] = []
        for url, ranges in wanted:
            is_log = all(each.source.log != FENCE for each in ranges)
            if settings.kafka_source == "spark" and is_log and split_url(url).scheme == "kafka":
                from txcore_spark.engines import native  # noqa: PLC0415 - it needs Kafka's driver, as others do not

                native.land(self._session, url, ranges, self)
            else:
                frames.append(frame_of(self._session, url, ranges))
        if frames:
            whole = frames[0]
            for frame in frames[1:]:
                whole = whole.unionByName(frame)
            self.add(whole)

    def add(self, frame: DataFrame) -> None:
        """Read *frame* now, once, and keep its rows."""
        if self.is_landed:
            frame.write.mode("append").parquet(self._store.place(self._number, ROWS))
        else:
            self._kept.append(frame.localCheckpoint())

    def rows(self) -> SparkFrame:
        """See `Keep.rows`."""
        if self.is_landed and self._store.has(self._number, ROWS):
            place = self._store.place(self._number, ROWS)
            return SparkFrame(self._session.read.schema(SPARK_SCHEMA).parquet(place))
        found = self._session.createDataFrame([], SPARK_SCHEMA)
        for frame in self._kept:
            found = found.unionByName(frame)
        return SparkFrame(found)

    def lines(self, frame: SparkFrame) -> SparkFrame:
        """See `Keep.lines`."""
        if not self.is_landed:
            return SparkFrame(frame.data.localCheckpoint())
        place = self._store.place(self._number, LINES)
        frame.data.write.partitionBy("doubt").option("compression", "snappy").parquet(place)
        return SparkFrame(self._session.read.schema(frame.data.schema).parquet(place))
