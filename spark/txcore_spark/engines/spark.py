"""The engine for what outgrows one machine: Spark, embedded or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

from pyspark.sql import SparkSession

from txcore_spark.engines.session import choose, interpreted
from txcore_spark.engines.spark_frame import SparkFrame
from txcore_spark.engines.spark_keep import SparkKeep
from txcore_spark.engines.spark_stages import stages_of
from txcore_spark.rows import SPARK_SCHEMA
from txcore_spark.store import Store

PARTS_MIN: Final = 8
PART_RECORDS: Final = 400_000


class SparkEngine:
    """Implements `Engine` on a session.

    Args:
        is_own: Whether `close` stops the session; it does not stop one that the caller has made.
    """

    name = "spark"

    def __init__(self, session: SparkSession, *, is_own: bool = False) -> None:
        self.session = session
        self._is_own = is_own
        self._stages = stages_of(session)
        self.expect(0)

    def close(self) -> None:
        """See `Engine.close`."""
        if self._is_own:
            with suppress(Exception):  # the Java process may have ended before
                self.session.stop()

    def keep(self, store: Store, number: int, *, is_landed: bool = True) -> SparkKeep:
        """See `Engine.keep`."""
        return SparkKeep(self.session, store, number, is_landed=is_landed)

    def read(self, places: Sequence[str]) -> SparkFrame:
        """See `Engine.read`."""
        if not places:
            return SparkFrame(self.session.createDataFrame([], SPARK_SCHEMA))
        return SparkFrame(self.session.read.schema(SPARK_SCHEMA).parquet(*places))

    def write(self, frame: SparkFrame, place: str) -> SparkFrame:
        """See `Engine.write`."""
        frame.data.write.parquet(place)
        return SparkFrame(self.session.read.schema(frame.data.schema).parquet(place))

    def expect(self, records: int) -> None:
        """See `Engine.expect`."""
        # The rows of one task fit into its memory; each part is a task in every stage, so small runs have few.
        choose(self.session, "spark.sql.shuffle.partitions", str(max(PARTS_MIN, records // PART_RECORDS)))

    def for_few_rows(self) -> AbstractContextManager[None]:
        """See `Engine.for_few_rows`."""
        return interpreted(self.session)

    def tasks(self, known: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """See `Engine.tasks`: one part is a stage."""
        return self._stages(known)
