"""Landed rows of many runs in few files, so that a step in a store of thousands of runs reads as few as in a new one.

A pack holds the rows of consecutive runs of one chain of incremental steps, sorted by hour of birth, each with its run.
Eight runs make a pack of level 1, and eight packs one of the next level. The file of a pack,
`packs/<first run>-<last run>-<level>.parquet`, is written whole or not at all, and what it holds is deleted after that.
So after a crash the larger of two packs counts, and a pack counts instead of the rows of its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute, dataset, parquet

from txcore_spark.rows import MARKS, SCHEMA, Kind
from txcore_spark.store import ROWS, Part, Store

FAN: Final = 8
"""Number of runs in a pack, and of packs in a larger one."""
ROWS_MAX: Final = 2_000_000
"""Most rows of a new pack: they are in memory meanwhile, and reading so many is worth a file of its own."""
GROUP_ROWS: Final = 50_000
"""Rows of one group of a pack's file; a reader skips groups without the hours that it needs."""
PACKED: Final = SCHEMA.append(pa.field("run", pa.int32()))


def pack(store: Store, manifest: Mapping[str, Any]) -> None:
    """Pack the rows on which a run builds while there are enough of one level; its own rows are among them."""
    _clean(store, manifest)
    while group := _due(store.parts(manifest)):
        write(store, group, group[0].level + 1)
        _clean(store, manifest)


def _due(parts: Sequence[Part]) -> Sequence[Part]:
    """Return `FAN` neighbours of one level that are to be one pack; none if there are none."""
    for begin in range(len(parts) - FAN, -1, -1):
        group = parts[begin : begin + FAN]
        if len({each.level for each in group}) == 1 and sum(each.count() for each in group) <= ROWS_MAX:
            return group
    return ()


def write(store: Store, parts: Sequence[Part], level: int, from_bucket: int = 0) -> None:
    """Write the rows of these neighbours as one pack.

    Args:
        from_bucket: First hour of birth that is kept; the marks of a log, which are of no hour, always are.
    """
    is_fact = dataset.field("kind") < int(Kind.COVER)
    is_kept = (dataset.field("bucket") >= from_bucket) | (dataset.field("bucket") == MARKS)
    tables = []
    for each in parts:
        found = each.data.to_table(filter=each.holds() & is_fact & is_kept)
        if not each.level:
            found = found.append_column("run", pa.array([each.last] * found.num_rows, pa.int32()))
        tables.append(found.select(PACKED.names).cast(PACKED))
    rows = pa.concat_tables(tables)
    rows = rows.take(compute.sort_indices(rows, [("bucket", "ascending"), ("run", "ascending")]))
    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink, compression="zstd", row_group_size=GROUP_ROWS)
    store.write_pack(parts[0].first, parts[-1].last, level, sink.getvalue().to_pybytes())


def _clean(store: Store, manifest: Mapping[str, Any]) -> None:
    """Delete what packs hold already, also what a killed process has left of it."""
    known = store.packs()
    for each in store.all_packs():
        if each not in known:
            store.delete_pack(each)
    if known:
        for run in manifest["rows"]:
            if known[-1].first <= run <= known[-1].last:
                store.delete(run, ROWS)
