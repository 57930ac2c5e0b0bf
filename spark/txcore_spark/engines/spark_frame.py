"""A frame of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from txcore_spark.engines.spark_columns import spark_column
from txcore_spark.expressions import Column, Named
from txcore_spark.frames import How

FEW: Final = 100_000
"""Most rows of a frame that is sent to every task of a join."""


class SparkFrame:
    """Implements `Frame` on a `DataFrame`."""

    def __init__(self, data: DataFrame) -> None:
        self.data = data

    @property
    def columns(self) -> Sequence[str]:
        """See `Frame.columns`."""
        return self.data.columns

    def where(self, holds: Column) -> SparkFrame:
        """See `Frame.where`."""
        return SparkFrame(self.data.where(spark_column(holds)))

    def select(self, *columns: Named) -> SparkFrame:
        """See `Frame.select`."""
        return SparkFrame(self.data.select(*map(spark_column, columns)))

    def with_column(self, name: str, value: Column) -> SparkFrame:
        """See `Frame.with_column`."""
        return SparkFrame(self.data.withColumn(name, spark_column(value)))

    def aggregate(self, by: Sequence[Named], *columns: Column) -> SparkFrame:
        """See `Frame.aggregate`."""
        return SparkFrame(self.data.groupBy(*map(spark_column, by)).agg(*map(spark_column, columns)))

    def join(self, other: SparkFrame, on: Sequence[str], how: How = "inner") -> SparkFrame:
        """See `Frame.join`."""
        return SparkFrame(self.data.join(other.data, list(on), how))

    def union(self, other: SparkFrame) -> SparkFrame:
        """See `Frame.union`."""
        return SparkFrame(self.data.unionByName(other.data))

    def distinct(self) -> SparkFrame:
        """See `Frame.distinct`."""
        return SparkFrame(self.data.distinct())

    def one_of_each(self, names: Sequence[str]) -> SparkFrame:
        """See `Frame.one_of_each`."""
        return SparkFrame(self.data.dropDuplicates(list(names)))

    def small(self) -> SparkFrame:
        """See `Frame.small`: it is sent to every task of the join."""
        return SparkFrame(F.broadcast(self.data))

    def small_if_few(self) -> SparkFrame:
        """See `Frame.small_if_few`."""
        return self.small() if self.data.count() <= FEW else self

    def spread(self, name: str) -> SparkFrame:
        """See `Frame.spread`."""
        return SparkFrame(self.data.repartition(name))

    def kept(self) -> SparkFrame:
        """See `Frame.kept`."""
        return SparkFrame(self.data.persist())

    def release(self) -> None:
        """See `Frame.release`."""
        self.data.unpersist()

    def collect(self) -> list[dict[str, Any]]:
        """See `Frame.collect`."""
        return [each.asDict() for each in self.data.collect()]

    def count(self) -> int:
        """See `Frame.count`."""
        return self.data.count()

    def is_empty(self) -> bool:
        """See `Frame.is_empty`."""
        return not self.data.limit(1).count()
