"""Manifests and findings that are made by hand, for tests of the report without Spark."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import parquet
from txcore_spark.rows import BUCKET_MS, Kind

from txcore.audit.verdicts import FAR, SEVERITIES, Verdict
from txcore.ids import first_id_at

CUT_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
ORIGIN = {
    "user": "alice",
    "host": "audit-1",
    "system": "Linux x86_64",
    "versions": {"python": "3.12.4", "txcore": "0.1.0", "pyspark": "4.2.0"},
    "brokers": {"main": "kafka://kafka-1:9092", "other": "nats://nats-1:4222"},
    "databases": {"shop": "postgresql+psycopg://shop:***@db-1/shop"},
}
NUMBERS = {"ts_ms": pa.int64(), **dict.fromkeys(("index", "kind", "code", "generation"), pa.int32())}
STORY = pa.list_(pa.struct([*NUMBERS.items(), *((name, pa.string()) for name in ("place", "topic", "text"))]))


def record(ts_ms, place, kind, **more):
    """Return one record of a story."""
    return {"ts_ms": ts_ms, "index": 0, "place": place, "kind": int(kind), "code": 0, "generation": 0} | {
        "topic": None,
        "text": None,
        **more,
    }


def finding(verdict, number=0, born_ms=CUT_MS - HOUR_MS, **more):
    """Return a finding with the story of a transaction that was rolled back, but whose target exists."""
    identity = bytes(first_id_at(born_ms)[:-4]) + number.to_bytes(4, "big")
    half_ms = more.get("half_ms", born_ms)
    numbers = dict.fromkeys(("halves", "declared", "targets", "present", "rollbacks"), 1)
    numbers |= dict.fromkeys(("generation", "corrupt", "altered", "missent", "commits", "overrides", "fenced"), 0)
    numbers |= {"deadline_ms": half_ms + 450_000, "discarded": -1, "discarded_ms": 0, "row": 2}
    return {
        "tx": identity, "verdict": Verdict(verdict).name, "bucket": born_ms // BUCKET_MS, "born_ms": born_ms,
        "group": 0, "home": 0, "half_ms": half_ms, "op_ms": half_ms + 1_500, "target_ms": half_ms + 2_500,
        "places": ["half orders.half/1@17", "op ROLLBACK orders.op/1@9", f"target orders.created/0@{number}"],
        "texts": [], "topic": "orders.created",
        "story": [
            record(None, "row shop.txcore_tx/0@0", Kind.ROW, code=2),
            record(half_ms, "half orders.half/1@17", Kind.HALF, topic="orders.created"),
            record(half_ms + 1_500, "op ROLLBACK orders.op/1@9", Kind.OP, text="alice: not paid"),
            record(half_ms + 2_500, f"target orders.created/0@{number}", Kind.TARGET, topic="orders.created"),
        ],
        **numbers, **more,
    }  # fmt: skip


def counted(born_ms, *, is_recent=True, home=0, **more):
    """Return a line of the counts of transactions."""
    names = ("transactions", "halves", "commits", "rollbacks", "pending", "wanted", "targets")
    found = dict.fromkeys((*names, "by_table", "table_targets", "elsewhere"), 0)
    slot = born_ms // 60_000 if is_recent else None
    return found | {"bucket": born_ms // BUCKET_MS, "slot": slot, "group": 0, "home": home, "oldest_ms": None} | more


def manifest_of(findings, **more):
    """Return a run's manifest."""
    counts = {}
    for each in findings:
        counts[each["verdict"]] = counts.get(each["verdict"], 0) + 1
    severities = {name: SEVERITIES[Verdict[name]].name.lower() for name in counts}
    source = {"number": 0, "backend": "main", "log": "target", "name": "orders.created", "group": ""}
    return {
        "version": 3, "number": 7, "mode": "once", "now_ms": CUT_MS, "since_ms": 0, "until_ms": FAR, "records": 12_345,
        "exit_code": 2 if "violation" in severities.values() else 0, "strange": 0, "counts": counts,
        "severities": severities, "backends": {"main": 0, "other": 1}, "groups": {"orders": 0}, "rows": [7],
        "origin": ORIGIN,
        "verdicts": [
            {"verdict": name, "bucket": 0, "group": 0, "home": 0, "count": count} for name, count in counts.items()
        ],
        "buckets": {str(each["bucket"]): 7 for each in findings},
        "transactions": [counted(CUT_MS - HOUR_MS, transactions=3, halves=2, commits=1, rollbacks=1)],
        "latencies": [
            {"bucket": CUT_MS // BUCKET_MS - 1, "slot": (CUT_MS - HOUR_MS) // 60_000, "group": 0, "home": 0} | each
            for each in ({"step": 4, "count": 2}, {"step": 9, "count": 1})
        ],
        "topics": [
            {"backend": 0, "topic": "orders.created", "declared": 3, "targets": 2}
            | {"first_ms": 1, "last_ms": CUT_MS - HOUR_MS, "half_ms": CUT_MS - 2 * HOUR_MS}
        ],
        "sources": [source | {"topic": "orders.created", "made": 0}],
        "ends": [{"source": 0, "partition": 0, "start": 0, "end": 100, "gone": 10, "seal": ""}],
        "gaps": [], "judged_from_ms": {}, "sent_from_ms": {}, "withheld": [], "rows_withheld": [], "horizons": {},
        "unread": {}, "refused": {}, "again": [], "ragged": [], **more,
    }  # fmt: skip


def write_findings(store, number, findings):
    """Write findings beside a run, as the audit does."""
    schema = pa.schema(
        [(name, STORY if name == "story" else pa.array([findings[0][name]]).type) for name in findings[0] if name]
    )
    schema = pa.schema([(e.name, pa.list_(pa.string()) if e.name == "texts" else e.type) for e in schema])
    folder = store.path(number, "findings")
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(findings, schema=schema), sink)
    store._files.create_dir(folder, recursive=True)
    store.write(number, "findings/part-0.parquet", sink.getvalue().to_pybytes())
