"""Copies of halves that count: a carried or resumed one only if the op log has its proof, as for a checker (R8).

A forged copy changed nothing, so no verdict rests on it. Its rows stay among the places of a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txcore.records import OpKind
from txcore_spark import expressions as F
from txcore_spark.expressions import Column
from txcore_spark.frames import Frame
from txcore_spark.rows import Kind

LOG: Final = ("backend", "group", "partition")
"""Columns that a half log and its op log have in common, also after one of them was made anew."""
RECORD: Final = ("source", "partition", "position")


def is_copy() -> Column:
    """Return which rows say of a half record that it is a copy, and where its proof is."""
    return F.col("kind") == int(Kind.COPY)


def unproven(rows: Frame, ticks: Frame) -> Frame:
    """Return the `COPY` rows among *rows* whose proof is not among *ticks*."""
    proofs = ticks.where((F.col("kind") == int(Kind.OP)) & (F.col("code") == int(OpKind.TICK)))
    proofs = proofs.select(*LOG, F.col("position").alias("place"), F.hex_text("tx").alias("text"))
    return rows.where(is_copy()).join(proofs, [*LOG, "place", "text"], "left_anti")


def counting(rows: Frame, ticks: Frame, judged: Mapping[int, Column]) -> Frame:
    """Return *rows* without those of copies that have no proof.

    A copy is believed where a missing record proves nothing: its proof may be one of those that were not read.

    Args:
        ticks: The rows of the op logs, from every run.
        judged: Per group, the condition under which absence is a proof.
    """
    is_known = F.lit(False)
    for number, condition in judged.items():
        is_known = F.when(F.col("group") == number, condition).otherwise(is_known)
    forged = unproven(rows, ticks).with_column("born_ms", F.born_ms()).where(is_known).select(*RECORD).distinct()
    halves = rows.where(F.col("kind") == int(Kind.HALF)).join(forged.small_if_few(), RECORD, "left_anti")
    return rows.where(F.col("kind") != int(Kind.HALF)).union(halves.select(*rows.columns))
