"""`audit.keep_days`: what a store forgets, and that a forgotten record proves nothing afterwards."""

from __future__ import annotations

import pyarrow as pa
import pytest
from beds import found_in, rows_of
from txcore_spark import packs, retention
from txcore_spark.entries import COLUMNS
from txcore_spark.job import Audit
from txcore_spark.rows import BUCKET_MS, MARKS

from txcore.audit.verdicts import Verdict
from txcore.clock import SystemClock

DAY_MS = 86_400_000


class Days(SystemClock):
    """A clock that is some days late."""

    days = 0

    def wall_ms(self):
        """Return the time with the days added."""
        return super().wall_ms() + self.days * DAY_MS


@pytest.mark.parametrize("fan", [2, 8])
def test_store_forgets_births_before_the_days_that_it_keeps(duck, bed, monkeypatch, fan):
    """Runs, rows, findings and counts go, packed or not; a late record of a forgotten transaction is no PHANTOM."""
    monkeypatch.setattr(packs, "FAN", fan)
    clock, store = Days(), bed.store()
    audit = Audit(duck, bed.loaded(keep_days=2, grace_s=2_000_000), store, clock=clock)
    (lost, open_one) = bed.write(Verdict.LOST), bed.write(None, parts={"half", "row"})
    first = audit.incremental()
    assert ({"LOST": 1}, 1) == (first["counts"], sum(each["pending"] for each in first["transactions"]))
    clock.days = 2
    kept = audit.incremental()
    assert {"LOST": 1} == kept["counts"]
    clock.days = 3
    last = audit.incremental()
    assert ({}, {}, [], 0) == (last["counts"], last["buckets"], last["again"], last["exit_code"])
    assert [3] == [each for each in store.finished() if each != 2]
    assert [] == rows_of(bed, "SELECT * FROM findings UNION ALL BY NAME SELECT * FROM verdicts_by_hour")
    assert (3,) in rows_of(bed, "SELECT run FROM runs")
    assert (1,) not in rows_of(bed, "SELECT run FROM runs")
    left = [row for part in store.parts(last) if part.level for row in part.data.to_table().to_pylist()]
    assert {row["bucket"] for row in left} <= {MARKS}
    assert not store.has(1, "rows")
    for history in (*lost, *open_one):
        bed.writer.write((history.partition, each) for each in history.records if each.log in {"target", "op"})
    bed.writer.write([(lost[0].partition, bed.maker.target(bed.half_of(lost[0]), 0))])
    late = audit.incremental()
    assert {} == found_in(store, late)
    assert 0 == late["exit_code"]


def test_certified_runs_and_those_with_kept_findings_stay(duck, bed):
    """A proof needs the certificates before it; the hours of a step's result may be in older runs."""
    bed.write(Verdict.LOST)
    audit, store = bed.audit(duck), bed.store()
    manifests = [audit.incremental() for _ in range(4)]
    store.write(2, "certificate.json", b"{}")
    last = {**manifests[3], "now_ms": manifests[3]["now_ms"] + DAY_MS}
    store.finish(4, last)
    retention.prune(store, {**last, "buckets": {"1": 3}}, last["now_ms"] // BUCKET_MS)
    assert [2, 3, 4] == store.finished()


def test_marks_of_a_log_are_kept(duck, bed):
    """The owner of a partition claims it once: without that mark its later ops would count for nothing."""
    store = bed.store()
    bed.write(None)
    manifest = bed.audit(duck).incremental()
    (part,) = store.parts(manifest)
    rows = part.data.to_table()
    is_mark = [index == 0 for index in range(rows.num_rows)]
    buckets = [MARKS if mark else each for mark, each in zip(is_mark, rows["bucket"].to_pylist(), strict=True)]
    kinds = [2 if mark else each for mark, each in zip(is_mark, rows["kind"].to_pylist(), strict=True)]
    for name, values in (("bucket", buckets), ("kind", kinds)):
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, rows.schema.field(number), pa.array(values, pa.int32()))
    folder = bed.folder / "audit" / "runs" / "000001" / "rows"
    for path in folder.iterdir():
        path.unlink()
    packs.parquet.write_table(rows, folder / "part-0.parquet")
    packs.write(store, store.parts(manifest), 1, max(buckets) + 1)
    (table,) = store.rows(manifest, [MARKS, *buckets], COLUMNS)
    assert 1 == table.num_rows


@pytest.mark.parametrize(
    ("number", "before_ms", "due"), [(7, 0, False), (7, -1, True), (50, 0, True), (1, None, False)]
)
def test_store_is_tidied_daily_and_after_many_runs(number, before_ms, due):
    """The first run of a day does it, so that a store with one run a day forgets in time."""
    now_ms = 20_000 * DAY_MS
    before = [] if before_ms is None else [{"now_ms": now_ms + before_ms}]
    assert due == retention.is_due({"number": number, "now_ms": now_ms}, before)
