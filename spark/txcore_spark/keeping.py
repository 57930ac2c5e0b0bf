"""Storage of one step's rows and lines: Parquet beside the run, or Spark's own storage during the step.

With both, a range is read exactly once. A second reading would see other rows, above all in the fence tables, which
are read once before the ends are frozen and once after. So Spark's copy is cut off from its source (a local
checkpoint, not a cache): the rows of a lost executor are lost, and the run fails instead of reading again.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from txcore_spark.rows import SPARK_SCHEMA
from txcore_spark.store import Store

ROWS: Final = "rows"
LINES: Final = "lines"


class Keep:
    """Rows that one step has read, and lines that it has screened.

    Args:
        is_landed: Write rows and lines beside the run; otherwise they are gone after the session.
    """

    def __init__(self, session: SparkSession, store: Store, number: int, *, is_landed: bool = True) -> None:
        self.is_landed = is_landed
        self._session = session
        self._store = store
        self._number = number
        self._kept: list[DataFrame] = []

    def add(self, frame: DataFrame) -> None:
        """Read *frame* now, once, and keep its rows."""
        if self.is_landed:
            frame.write.mode("append").parquet(self._store.place(self._number, ROWS))
        else:
            self._kept.append(frame.localCheckpoint())

    def rows(self) -> DataFrame:
        """Return all rows that were added."""
        if self.is_landed and self._store.has(self._number, ROWS):
            return self._session.read.schema(SPARK_SCHEMA).parquet(self._store.place(self._number, ROWS))
        found = self._session.createDataFrame([], SPARK_SCHEMA)
        for frame in self._kept:
            found = found.unionByName(frame)
        return found

    def lines(self, frame: DataFrame) -> DataFrame:
        """Keep one line per transaction, those in doubt in a separate part, and return the kept lines."""
        if not self.is_landed:
            return frame.localCheckpoint()
        place = self._store.place(self._number, LINES)
        frame.write.partitionBy("doubt").option("compression", "snappy").parquet(place)
        return self._session.read.schema(frame.schema).parquet(place)
