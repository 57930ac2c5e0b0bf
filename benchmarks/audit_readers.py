"""The cost of the audit's readers in Spark: rows per processor second of the worker, against reading without Spark.

python benchmarks/audit_readers.py --broker URL --transactions 100000 [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812
from txcore_spark.engines.session import open_session
from txcore_spark.engines.sources import frame_of
from txcore_spark.plan import Range, Source
from txcore_spark.readers import reader_of
from txcore_spark.rows import Kind, Place
from txcore_spark.selftest.run import Bed, make_bed, plant


def ranges_of(bed: Bed) -> list[Range]:
    """Return the ranges of all logs and topics of a bed."""
    broker = reader_of(bed.url).open_broker(bed.url, 10.0)
    taps = dict(tap.split("=", 1) for tap in bed.taps)
    sources = [Source(n, "b", log, bed.group, bed.group) for n, log in enumerate(("op", "half"))]
    sources += [Source(9 + n, "b", "target", taps.get(topic, topic), topic=topic) for n, topic in enumerate(bed.topics)]
    found: list[Range] = []
    for source in sources:
        for edge in broker.edges(source):
            if edge.first < edge.end:
                place = Place(0, source.number, edge.partition, 0 if source.group else -1)
                wanted = Range(source, place, edge.first, edge.end, edge.count, 20.0, {bed.group: 0})
                found += broker.split(wanted, 1_000_000)
    broker.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bed = make_bed("b", given.broker, f"sqlite:///{tempfile.mkdtemp()}/fence.db")
    plant(bed, given.transactions, 0, print)
    ranges = ranges_of(bed)
    session = open_session("local[1]", "2g")
    outside, inside = 0.0, 0.0
    records = 0
    for _ in range(given.runs + 1):  # the first round warms up Java and the broker, and does not count
        began_s = time.process_time()
        reader = reader_of(bed.url)
        rows = [batch for wanted in ranges for batch in reader.read(bed.url, wanted)]
        plain_s = time.process_time() - began_s
        count = sum(batch.num_rows for batch in rows)
        frame = frame_of(session, bed.url, ranges)
        number = F.when(F.col("kind").isin(int(Kind.COVER), int(Kind.COST)), F.col("hash"))
        kinds = frame.groupBy("kind").agg(F.count("*").alias("rows"), F.sum(number).alias("sum")).collect()
        by_kind = {each["kind"]: each for each in kinds}
        records = by_kind[int(Kind.COVER)]["sum"]
        assert int(Kind.GAP) not in by_kind
        assert count == sum(each["rows"] for kind, each in by_kind.items() if kind != int(Kind.COST))
        spark_s = by_kind[int(Kind.COST)]["sum"] / 1000
        outside, inside = max(outside, records / plain_s), max(inside, records / spark_s)
    result = {
        "broker": given.broker.partition(":")[0],
        "records": records,
        "outside_per_cpu_s": round(outside),
        "in_spark_per_cpu_s": round(inside),
        "ratio": round(inside / outside, 2),
    }
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0 if result["ratio"] >= 0.6 else 1


if __name__ == "__main__":
    sys.exit(main())
