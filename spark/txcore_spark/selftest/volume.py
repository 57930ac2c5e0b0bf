"""Rows of very many transactions, made with numpy straight into Parquet: the audit's volume without a broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from txcore.audit.verdicts import FAR, OPS_PER_RECORD, Verdict
from txcore.records import OpKind
from txcore_spark.anomalies import RECIPES, Maker, Phase, identity_of
from txcore_spark.rows import BUCKET_MS, SCHEMA, Kind, Place, Rows, batch_of

CHUNK: Final = 500_000
COMMITTED: Final = 0.8
SPAN_MS: Final = 24 * 3_600_000
PARTITIONS: Final = 4
TOPICS: Final = ("orders.created", "orders.mail")
SOURCES: Final = {"half": 0, "op": 1, "parked": 2, "target": 3, "row": 4}
Columns = dict[str, Any]


def write_volume(place: Path, count: int, each: int, start_ms: int) -> tuple[int, dict[bytes, set[str]]]:
    """Write the rows of *count* whole transactions, and *each* of every kind of fault beside them.

    Returns:
        The number of rows, and the findings that the audit must give.
    """
    place.mkdir(parents=True, exist_ok=True)
    rows = 0
    for number, begin in enumerate(range(0, count, CHUNK)):
        size = min(CHUNK, count - begin)
        tables = list(_whole(begin, size, count, start_ms))
        table = pa.concat_tables(tables)
        parquet.write_table(table, place / f"part-{number:05d}.parquet", compression="zstd", row_group_size=200_000)
        rows += table.num_rows
    expected, faults = _faults(each, start_ms)
    parquet.write_table(pa.Table.from_batches([faults]), place / "part-faults.parquet", compression="zstd")
    return rows + faults.num_rows, expected


def _whole(begin: int, size: int, count: int, start_ms: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(begin + 1)
    born = start_ms + (np.arange(begin, begin + size, dtype=np.int64) * SPAN_MS) // count
    raw = np.empty((size, 16), np.uint8)
    raw[:, :8] = (
        ((born.astype(np.uint64) << np.uint64(16)) | np.uint64(0x7000)).astype(">u8").view(np.uint8).reshape(-1, 8)
    )
    raw[:, 8:] = rng.integers(0, 256, (size, 8), np.uint8)
    ids = np.ascontiguousarray(raw)
    hashes = rng.integers(-FAR, FAR, size, np.int64)
    position = np.arange(begin, begin + size, dtype=np.int64)
    topics = pa.DictionaryArray.from_arrays(pa.array(position % len(TOPICS), pa.int32()), list(TOPICS)).cast(
        pa.string()
    )
    commits = rng.random(size) < COMMITTED
    common: Columns = {"bucket": born // BUCKET_MS, "partition": ids[:, 15] % PARTITIONS, "position": position}
    common["place"] = position * OPS_PER_RECORD
    half = common | {
        "kind": int(Kind.HALF), "source": SOURCES["half"], "ts_ms": born, "count": 1, "hash": hashes,
        "deadline_ms": born + 450_000,
    }  # fmt: skip
    yield _table(ids, half, topics)
    op = common | {
        "kind": int(Kind.OP), "source": SOURCES["op"], "ts_ms": born + rng.integers(1, 200, size),
        "code": np.where(commits, int(OpKind.COMMIT), int(OpKind.ROLLBACK)),
    }  # fmt: skip
    yield _table(ids, op, None)
    target = {name: value[commits] for name, value in common.items()} | {
        "kind": int(Kind.TARGET), "source": SOURCES["target"], "ts_ms": born[commits], "hash": hashes[commits],
    }  # fmt: skip
    yield _table(ids[commits], target, topics.filter(pa.array(commits)))


def _table(ids: Any, columns: Columns, topics: Any) -> pa.Table:
    size = len(ids)
    data = np.ascontiguousarray(ids)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), size, [None, pa.py_buffer(data)])
    arrays = []
    for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True):
        if name == "tx":
            arrays.append(fixed.cast(pa.binary()))
        elif name == "topic":
            arrays.append(pa.nulls(size, kind) if topics is None else topics)
        elif name == "text" or name.startswith("digest"):
            arrays.append(pa.nulls(size, kind))
        else:
            value = columns.get(name, 0)
            full = np.full(size, value) if np.isscalar(value) else value
            arrays.append(pa.array(full).cast(kind))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _faults(each: int, start_ms: int) -> tuple[dict[bytes, set[str]], pa.RecordBatch]:
    maker = Maker("orders", PARTITIONS, list(TOPICS), key_as_header=False)
    expected: dict[bytes, set[str]] = {}
    sinks: dict[tuple[str, int], Rows] = {}
    position = 1 << 40
    kinds: list[Verdict] = [kind for kind in RECIPES for _ in range(each)]
    for number, kind in enumerate(kinds):
        born_ms = start_ms + number * SPAN_MS // max(len(kinds), 1)
        history = maker.make(identity_of(born_ms, number), born_ms, kind)
        expected[history.transaction_id] = history.expected
        for record in history.records:
            position += 1
            place = Place(0, SOURCES[record.log], history.partition, 0)
            rows = sinks.setdefault((record.log, history.partition), Rows(place, {"orders": 0}))
            ts_ms = born_ms + (SPAN_MS if record.phase is Phase.LATE else 0)
            if record.log == "target":
                rows.add_target(position, record.topic, record.key, record.body, record.headers, ts_ms)
            elif record.log == "row":
                content = record.body[1:]
                rows.add_fence_row(history.transaction_id, record.body[0], 1, is_early=True, content=content)
            else:
                adds: dict[str, Callable[[int, bytes, int | None], None]] = {
                    "half": rows.add_half, "op": rows.add_ops, "parked": rows.add_parked,
                }  # fmt: skip
                adds[record.log](position, record.body, ts_ms)
    return expected, batch_of([row for rows in sinks.values() for row in rows.found])
