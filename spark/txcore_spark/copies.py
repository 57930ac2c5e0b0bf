"""Copies of halves that count: a carried or resumed one only if the op log has its proof, as for a checker (R8).

A forged copy changed nothing, so no verdict rests on it. Its rows stay among the places of a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txcore.records import OpKind
from txcore_spark.rows import Kind
from txcore_spark.tally import sent_if_few

LOG: Final = ("backend", "group", "partition")
"""Columns that a half log and its op log have in common, also after one of them was made anew."""
RECORD: Final = ("source", "partition", "position")


def is_copy() -> Column:
    """Return which rows say of a half record that it is a copy, and where its proof is."""
    return F.col("kind") == int(Kind.COPY)


def unproven(rows: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return the `COPY` rows among *rows* whose proof is not among *ticks*."""
    proofs = ticks.where((F.col("kind") == int(Kind.OP)) & (F.col("code") == int(OpKind.TICK)))
    proofs = proofs.select(*LOG, F.col("position").alias("place"), F.lower(F.hex("tx")).alias("text"))
    return rows.where(is_copy()).join(proofs, [*LOG, "place", "text"], "left_anti")


def counting(rows: DataFrame, ticks: DataFrame, judged: Mapping[int, Column]) -> DataFrame:
    """Return *rows* without those of copies that have no proof.

    A copy is believed where a missing record proves nothing: its proof may be one of those that were not read.

    Args:
        ticks: The rows of the op logs, from every run.
        judged: Per group, the condition under which absence is a proof.
    """
    is_known = F.lit(False)
    for number, condition in judged.items():
        is_known = F.when(F.col("group") == number, condition).otherwise(is_known)
    born_ms = F.conv(F.hex(F.substring("tx", 1, 6)), 16, 10).cast("bigint")
    forged = unproven(rows, ticks).withColumn("born_ms", born_ms).where(is_known).select(*RECORD).distinct()
    halves = rows.where(F.col("kind") == int(Kind.HALF)).join(sent_if_few(forged), list(RECORD), "left_anti")
    return rows.where(F.col("kind") != int(Kind.HALF)).unionByName(halves.select(*rows.columns))
