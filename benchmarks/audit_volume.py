"""The audit's volume: rows per second from Parquet, peak memory, and whether the cost per row stays flat.

python benchmarks/audit_volume.py --engine duckdb --transactions 1000000 --transactions 10000000 [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from pyarrow import parquet
from txcore_spark.engines.session import open_session
from txcore_spark.frames import Engine
from txcore_spark.job import Audit
from txcore_spark.selftest.run import Bed, compare
from txcore_spark.selftest.volume import write_volume
from txcore_spark.store import FINDINGS, ROWS, Store

from txcore.audit.engines import DUCKDB, ENGINES, SPARK
from txcore.config import load

CONFIG = """
[backends.main]
url = "sqlite:///unused.db"
[databases.main]
url = "sqlite:///unused.db"
[groups.orders]
database = "main"
listener = "shop:listener"  # the rows of this benchmark have no fence rows
"""


class Memory:
    """Peak of the resident memory of this process and its descendants."""

    def __init__(self) -> None:
        self.peak_kib = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.peak_kib = max(self.peak_kib, resident_kib(os.getpid()))

    def stop(self) -> float:
        """Return the peak in GiB."""
        self._stop.set()
        self._thread.join()
        return self.peak_kib / (1 << 20)


def family(root: int) -> list[Path]:
    """Return the folders in /proc of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(Path("/proc") / str(pid))
        waiting += children.get(pid, [])
    return found


def resident_kib(root: int) -> int:
    """Return the resident memory of a process and of all its descendants."""
    total = 0
    for folder in family(root):
        try:
            lines = (folder / "status").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total


def cpu_s(root: int) -> float:
    """Return the processor time of a process and of all its descendants, including those that have ended."""
    ticks = 0
    for folder in family(root):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def opened(name: str, master: str, memory: str) -> Engine:
    """Return an engine; of Spark, a warm Java process."""
    if name == DUCKDB:
        from txcore_spark.engines.duck import DuckEngine  # noqa: PLC0415 - each engine is an extra

        return DuckEngine(memory)
    from txcore_spark.engines.spark import SparkEngine  # noqa: PLC0415

    session = open_session(master, memory)
    session.range(1_000_000).groupBy().count().collect()
    return SparkEngine(session)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, action="append")
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--engine", choices=ENGINES, default=SPARK)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    engine = opened(given.engine, given.master, given.memory)
    results = []
    for count in given.transactions or [1_000_000, 10_000_000]:
        folder = Path(tempfile.mkdtemp(dir=given.folder))
        (folder / "txcore.toml").write_text(CONFIG, encoding="utf-8")
        store = Store(str(folder / "audit"))
        number = store.begin()
        began_s = time.monotonic()
        start_ms = time.time_ns() // 1_000_000 - 48 * 3_600_000
        rows, expected = write_volume(folder / "audit" / "runs" / f"{number:06d}" / ROWS, count, given.each, start_ms)
        made_s = time.monotonic() - began_s
        memory = Memory()
        began_s = time.monotonic()
        cpu_before_s = cpu_s(os.getpid())
        audit = Audit(engine, load(folder / "txcore.toml", environment={}), store, say=print)
        manifest = audit.landed(number)
        took_s, used_s = time.monotonic() - began_s, cpu_s(os.getpid()) - cpu_before_s
        found = parquet.read_table(store.path(number, FINDINGS), columns=["tx", "verdict"]).to_pylist()
        bed = Bed("main", "", "", "orders", [], [], expected)
        outcome = compare([bed], found)
        results.append(
            {
                "transactions": count,
                "rows": rows,
                "generate_s": round(made_s, 1),
                "audit_s": round(took_s, 1),
                "rows_per_s": round(rows / took_s),
                "us_per_row": round(took_s / rows * 1e6, 2),
                "peak_gib": round(memory.stop(), 2),
                "cpu_s": round(used_s, 1),
                "rows_per_cpu_s": round(rows / used_s),
                "records": manifest["records"],
                "all_found": outcome.found == outcome.planted,
                "false_alarms": len(outcome.false_alarms),
            }
        )
        print(json.dumps(results[-1]), flush=True)
        shutil.rmtree(folder)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0 if all(each["all_found"] and not each["false_alarms"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
