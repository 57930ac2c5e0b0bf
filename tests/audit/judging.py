"""The audit's verdicts on rows in a Parquet file, by the steps of a run, and whether they were in doubt."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import parquet
from txcore_spark import copies, findings, screening, tally
from txcore_spark import expressions as F  # noqa: N812
from txcore_spark.rows import batch_of

from txcore.audit.verdicts import Tally

NAMES = [name for name in Tally.__slots__ if name not in {"absence", "row_absence"}]


def judged_by(engine, rows, folder, thresholds, *, backends=1, excused=()):
    """Return what an engine finds on *rows*, by transaction: its columns, its verdicts, and its doubt.

    Args:
        folder: Empty folder for the rows.
        excused: Ids of the transactions for which no missing record proves anything.
    """
    folder.mkdir()
    parquet.write_table(pa.Table.from_batches([batch_of(rows)]), folder / "rows.parquet")
    landed = engine.read([folder.absolute().as_uri()])
    everything = F.lit(True)
    known = ~F.col("tx").isin(list(excused)) if excused else everything
    in_force = tally.owned(copies.counting(landed, landed, {0: everything})).kept()
    lines = tally.summed(in_force, tally.sums_of(backends))
    tallies = tally.careful(tally.derived(lines, backends, {0: known}, {0: everything}), in_force)
    screened = screening.screened(landed, thresholds.late_ms).select("tx", "doubt")
    shown = tallies.join(screened, ["tx"], "full").with_column("verdicts", findings.verdict_columns(thresholds))
    found = shown.select("tx", "doubt", "verdicts", *(name for name in NAMES if name in shown.columns)).collect()
    in_force.release()
    return {bytes(each["tx"]): each for each in found}
