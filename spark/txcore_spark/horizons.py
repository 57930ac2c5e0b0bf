"""The horizons of the fence tables: below one a missing row proves nothing, so it must be one that a prune has set.

They are read last, because rows leave a table only after its horizon was raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcore.audit.verdicts import VIA_TABLE
from txcore.errors import TxcoreError
from txcore.findings import counted
from txcore.ids import born_ms
from txcore.records import FINAL_KINDS
from txcore_spark import expressions as F
from txcore_spark.coverage import Coverage, Gap
from txcore_spark.frames import Frame
from txcore_spark.limits import time_text
from txcore_spark.readers.fence import pruned_below
from txcore_spark.rows import Kind
from txcore_spark.scope import Scope


def read(scope: Scope, covered: Coverage, rows: Frame, before: Mapping[str, Any] | None, now_ms: int) -> None:
    """Add the horizons to *covered*; one that cannot be read, or that no prune would set, is a gap."""
    for number, groups in scope.tables().items():
        source = scope.sources[number]
        try:
            horizon = pruned_below(scope.loaded.secret("databases", source.backend, "url"), source.name)
        except TxcoreError as error:
            covered.gaps.append(Gap(number, 0, 0, 0, f"{error}: no missing row proves anything"))
            covered.rows_withheld.update(groups)
            continue
        for group in groups:
            covered.horizons[group] = max(covered.horizons.get(group, b""), horizon)
        why = _doubt(scope, rows, number, horizon, before, now_ms)
        if why:
            covered.gaps.append(Gap(number, 0, 0, 0, f"its horizon (pruned_below) is {why}", is_for_good=True))


def _doubt(
    scope: Scope, rows: Frame, number: int, horizon: bytes, before: Mapping[str, Any] | None, now_ms: int
) -> str:
    """Return why a horizon hides rows that a prune would not hide; an empty text for a plain one."""
    skew_ms = round(scope.loaded.config.audit.skew_s * 1000)
    horizon_ms = born_ms(horizon)
    if horizon_ms > now_ms + skew_ms:
        return "in the future, where no prune sets it: any row may have been deleted"
    if not any(horizon):
        return ""
    count = _closed_below(rows, number, horizon, horizon_ms - skew_ms)
    if count:
        return (
            f"{time_text(horizon_ms)}, and below it the table still has {counted(count, 'row')} of transactions that "
            "ended before: a prune is at work or was interrupted, or something else has set it"
        )
    if before is not None and horizon_ms > before["now_ms"]:
        return f"{time_text(horizon_ms)}, after the last run: rows were pruned before they were read"
    return ""


def _closed_below(rows: Frame, number: int, horizon: bytes, ended_ms: int) -> int:
    """Return how many rows that were read below the horizon a prune at that time would have deleted."""
    # A prune leaves the rows of messages that wait in the message table.
    is_row = (F.col("kind") == int(Kind.ROW)) & (F.col("source") == number) & ~F.col("code").isin(VIA_TABLE)
    is_final = (F.col("kind") == int(Kind.OP)) & F.col("code").isin([int(kind) for kind in FINAL_KINDS])
    ended = rows.where(is_final & (F.col("ts_ms") < ended_ms)).select("tx")
    below = rows.where(is_row & (F.col("tx") < F.lit(bytes(horizon)))).select("tx").distinct()
    return int(below.join(ended, ["tx"], "left_semi").count())
