"""The cost of an incremental step of the audit in a store of many runs, on DuckDB over SQLite, in processor seconds.

python benchmarks/audit_store.py --runs 2000 --folder DIR

One process runs one step a minute of simulated time, each over a few new transactions. With --generated the steps
between the first two and the last two are no audits: they leave the files that audits over such transactions leave
(rows, manifests, packs, tables), in a tenth of the time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from pyarrow import parquet
from txcore_spark import findings, packs
from txcore_spark.anomalies import Maker, identity_of
from txcore_spark.engines.duck import DuckEngine
from txcore_spark.job import Audit
from txcore_spark.rows import SCHEMA, Kind, bucket_of
from txcore_spark.selftest.writers import Writer
from txcore_spark.store import ROWS, Store
from txcore_spark.tables import keeper, results
from txcore_spark.tables.schemas import COVERAGE, HOURS, RUNS

from benchmarks.audit_sqlite import prepared, write
from txcore.audit.verdicts import Verdict
from txcore.clock import SystemClock
from txcore.config import load

MINUTE_MS = 60_000
LOST_EVERY = 97
"""Steps from one with a LOST message to the next one."""


class Minutes(SystemClock):
    """A clock that a step sets."""

    now_ms = 0

    def wall_ms(self) -> int:
        """Return the time of the step."""
        return self.now_ms


def grow(folder: Path, writer: Writer, maker: Maker, born_ms: int, count: int, *, is_lost: bool) -> None:
    """Write transactions of one minute, one of them without its message if *is_lost*."""
    kinds = [Verdict.LOST if is_lost and not number else None for number in range(count)]
    made = [maker.make(identity_of(born_ms, number + 1), born_ms + number, kind) for number, kind in enumerate(kinds)]
    write(folder, writer, made)


def generate(store: Store, runs: int) -> None:
    """Continue a store of two runs with the files of as many runs as it is to have, one a minute."""
    manifest = store.manifest(2)
    template = store.parts({**manifest, "rows": [2]})[0].data.to_table().to_pylist()
    counts = [each for each in manifest["transactions"] if each["bucket"] == max(map(int, manifest["buckets"]))][-1:]
    pending: list[dict[str, Any]] = []
    for number in range(3, runs + 1):
        moved_ms = (number - 2) * MINUTE_MS
        rows = [_moved(each, moved_ms) for each in template]
        bucket = max(each["bucket"] for each in rows)
        now_ms = manifest["now_ms"] + MINUTE_MS
        new = [{**each, "bucket": bucket, "slot": now_ms // MINUTE_MS} for each in counts]
        store.begin()
        folder = Path(store.path(number, ROWS))
        folder.mkdir()
        parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "part-00000.parquet")
        manifest = manifest | {
            "number": number,
            "now_ms": now_ms,
            "rows": [*manifest["rows"], number],
            "buckets": {**manifest["buckets"], str(bucket): number},
            "transactions": [*findings.by_hour(manifest["transactions"], now_ms), *new],
        }
        store.finish(number, manifest)
        pending.append(manifest)
        if number % packs.FAN == 0:
            packs.pack(store, manifest)
        if number % 100 == 0 or number == runs:
            _write_tables(store, pending)
            pending = []


def _moved(row: dict[str, Any], moved_ms: int) -> dict[str, Any]:
    identity = row["tx"]
    if identity is None or row["kind"] >= Kind.COVER or not any(identity):
        return row
    moved = (int.from_bytes(identity[:6], "big") + moved_ms).to_bytes(6, "big") + identity[6:]
    return {**row, "tx": moved, "bucket": bucket_of(moved), "ts_ms": row["ts_ms"] and row["ts_ms"] + moved_ms}


def _write_tables(store: Store, manifests: Sequence[dict[str, Any]]) -> None:
    mark = CommitProperties(app_transactions=[Transaction(keeper.APPLICATION, manifests[-1]["number"])])
    made: dict[str, list[pa.Table]] = {
        HOURS: [results.hours_of(manifests[-1])],
        COVERAGE: [results.coverage_of(each) for each in manifests],
        RUNS: [results.run_of(each) for each in manifests],
    }
    for name, tables in made.items():
        write_deltalake(store.table(name), pa.concat_tables(tables), mode="append", commit_properties=mark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--each", type=int, default=5, help="transactions per step")
    parser.add_argument("--generated", action="store_true", help="audit in the first two and the last two steps only")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a key of the configuration")
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    folder = given.folder
    writer, maker = prepared(folder)
    loaded = load(folder / "txcore.toml", environment={}, settings=given.settings)
    clock = Minutes()
    audit = Audit(DuckEngine(), loaded, Store(loaded.config.audit.store), clock=clock)
    steps = given.runs + 2
    first_ms = time.time_ns() // 1_000_000 - steps * MINUTE_MS
    costs: dict[int, float] = {}
    for number in range(steps):
        if given.generated and 2 <= number < given.runs:
            if number == 2:
                generate(Store(loaded.config.audit.store), given.runs)
            continue
        born_ms = first_ms + number * MINUTE_MS
        grow(folder, writer, maker, born_ms, given.each, is_lost=number % LOST_EVERY == 0)
        clock.now_ms = born_ms + MINUTE_MS
        gc.collect()
        begin_s = time.process_time()
        audit.incremental()
        costs[number] = time.process_time() - begin_s
        if not given.generated and number % max(given.runs // 10, 1) == 0:
            print(f"step {number + 1}: {costs[number]:.3f} s", flush=True)
    writer.close()
    tenth = max(given.runs // 10, 1)
    for begin in range(0, 0 if given.generated else given.runs, tenth):
        part = [costs[number] for number in range(begin, min(begin + tenth, given.runs))]
        print(
            f"steps {begin + 1} to {begin + len(part)}: median {statistics.median(part):.3f} s, "
            f"mean {statistics.mean(part):.3f} s, most {max(part):.3f} s"
        )
    for number in (1, 2, given.runs + 1, given.runs + 2):
        print(f"step {number}: {costs[number - 1]:.3f} processor seconds")


if __name__ == "__main__":
    main()
