"""`python -m txcore_spark.selftest --broker URL --database URL`: plant faults on real brokers, audit, and compare."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from pyarrow import parquet

from txcore.audit.engines import ENGINES
from txcore.config import load
from txcore_spark.engines import choice
from txcore_spark.engines.noise import SparkOutput
from txcore_spark.job import Audit
from txcore_spark.report import NAME
from txcore_spark.selftest.run import compare, live_writer, make_bed, plant, write_config
from txcore_spark.store import FINDINGS, Store


def main() -> int:
    """Run one self-test; return 0 if the audit found exactly the planted faults and left no gap, otherwise 1."""
    parser = argparse.ArgumentParser(prog="txcore_spark.selftest", description=__doc__)
    parser.add_argument("--broker", action="append", required=True, help="its URL; repeatable")
    parser.add_argument("--database", action="append", required=True, help="SQLAlchemy URL, one per broker")
    parser.add_argument("--transactions", type=int, default=100_000, help="per broker")
    parser.add_argument("--each", type=int, default=20, help="of each kind of fault")
    parser.add_argument("--folder", type=Path, required=True, help="for the configuration and the runs")
    parser.add_argument("--engine", choices=ENGINES, default="", help="by default spark where it is installed")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command speaks

    pairs = zip(given.broker, given.database, strict=True)
    beds = [make_bed(f"{url.partition(':')[0]}{n}", url, database) for n, (url, database) in enumerate(pairs)]
    for bed in beds:
        plant(bed, given.transactions, given.each, say)
    loaded = load(write_config(beds, given.folder, {"driver_memory": '"3g"'}), environment={})
    output = SparkOutput(is_shown=True)
    engine = choice.open_engine(choice.chosen(given.engine), loaded, {}, output)
    store = Store(loaded.config.audit.store)
    with ExitStack() as stack:
        for bed in beds:
            stack.enter_context(live_writer(bed))
        began_s = time.monotonic()
        manifest = Audit(engine, loaded, store, say=say).once()
        took_s = time.monotonic() - began_s
    place = store.path(manifest["number"], FINDINGS)
    outcome = compare(beds, parquet.read_table(place, columns=["tx", "verdict"]).to_pylist())
    print(  # noqa: T201 - the result
        json.dumps(
            {
                "brokers": [bed.name for bed in beds],
                "transactions": given.transactions * len(beds),
                "live": sum(bed.live_count for bed in beds),
                "planted": dict(outcome.planted),
                "found": dict(outcome.found),
                "false_alarms": outcome.false_alarms[:20],
                "false_alarm_count": len(outcome.false_alarms),
                "gaps": manifest["gaps"],
                "exit_code": manifest["exit_code"],
                "engine": engine.name,
                "records": manifest["records"],
                "audit_s": round(took_s, 1),
                "report": store.path(manifest["number"], NAME),
            }
        )
    )
    return 0 if outcome.is_good and not manifest["gaps"] else 1


sys.exit(main())
