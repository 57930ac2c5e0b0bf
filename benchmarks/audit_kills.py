"""Incremental audits killed with -9 at random points over a growing log end like one audit over everything.

python benchmarks/audit_kills.py --kills 20 --folder DIR
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from txcore_spark.anomalies import RECIPES, Maker, identity_of
from txcore_spark.selftest.writers import Writer
from txcore_spark.store import Store

from benchmarks.audit_sqlite import prepared, write

SUMMED = ("transactions", "halves", "commits", "rollbacks", "targets", "wanted")


def grow(folder: Path, writer: Writer, maker: Maker, count: int, numbers: random.Random) -> None:
    """Write more transactions: complete ones, one of each fault, and the ends of some that were left open."""
    born_ms = time.time_ns() // 1_000_000
    kinds = [None] * count + [kind for kind in RECIPES if kind.name not in {"STUCK", "LATE_CHECK"}]
    made = [maker.make(identity_of(born_ms, numbers.getrandbits(62)), born_ms, kind) for kind in kinds]
    write(folder, writer, made)


def command(folder: Path, mode: str) -> list[str]:
    """Return the command of one audit."""
    return [sys.executable, "-m", "txcore_spark", "--config", str(folder / "txcore.toml"), "--mode", mode, "--json"]


def judged(folder: Path, mode: str) -> dict[str, object]:
    """Run one audit to its end and return its verdicts."""
    ended = subprocess.run(command(folder, mode), stdout=subprocess.PIPE, text=True, check=False)
    number = json.loads(ended.stdout)["number"]
    store = Store(str(folder / "audit"))
    manifest = store.manifest(number)
    found = sorted((bytes(each["tx"]).hex(), each["verdict"]) for each in store.findings(manifest, 1_000_000))
    sums = dict.fromkeys(SUMMED, 0)
    for each in manifest["transactions"]:
        for name in SUMMED:
            sums[name] += each[name]
    return {"counts": manifest["counts"], "sums": sums, "findings": found, "exit_code": manifest["exit_code"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    folder, rng = given.folder, random.Random(given.seed)
    writer, maker = prepared(folder, 'master = "local[1]"\n')
    grow(folder, writer, maker, given.count, rng)
    began_s = time.monotonic()
    judged(folder, "incremental")
    whole_s = time.monotonic() - began_s
    killed = finished = 0
    while killed < given.kills:
        grow(folder, writer, maker, given.count, rng)
        process = subprocess.Popen(
            command(folder, "incremental"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(rng.uniform(0.2, 1.1) * whole_s)
            finished += 1
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            killed += 1
        print(f"{killed} killed, {finished} ended by themselves", flush=True)
    steps, once = judged(folder, "incremental"), judged(folder, "once")
    is_same = steps == once
    print(json.dumps({"killed": killed, "finished": finished, "same": is_same, "counts": once["counts"]}))
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
