"""`--no-land`: the same verdicts, every range read once, and nothing of the rows left behind the run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from beds import Bed, found_in
from txcore_spark import coverage
from txcore_spark.command import Wish, run
from txcore_spark.job import Audit
from txcore_spark.repair import repair

from txcore.errors import UsageError
from txcore.ids import id_text
from txcore.verdicts import Verdict

SAME = ("counts", "severities", "exit_code", "records", "strange", "transactions", "gaps", "topics", "ends", "tokens")
LEFT = {"counts.parquet", "coverage.parquet", "findings", "gaps.parquet", "latency.parquet", "report.html",
        "summary.parquet", "_manifest.json"}  # fmt: skip


@pytest.fixture
def bed(tmp_path):
    """Every kind of fault, and some transactions without."""
    bed = Bed(tmp_path)
    bed.write(*[None] * 20, *(each for each in Verdict if each.name not in {"COVERAGE_GAP", "LATE_CHECK"}), size=2)
    return bed


def test_it_finds_the_same_though_what_it_has_read_is_gone(spark, bed, monkeypatch):
    """The broker's file goes right behind the reading, the database before the sums: whoever read again would fail."""
    landed = bed.audit(spark).once()
    measure, broker, database = coverage.measure, bed.folder / "broker.db", bed.folder / "shop.db"

    def measured(*arguments, **options):
        broker.rename(f"{broker}.gone")
        return measure(*arguments, **options)

    def said(text):
        if text == "one tally per transaction":
            database.rename(f"{database}.gone")

    monkeypatch.setattr(coverage, "measure", measured)
    loaded = bed.loaded()
    again = Audit(spark, loaded, bed.store(), say=said).once(is_landed=False)
    assert not broker.exists()
    assert not database.exists()
    assert {key: landed[key] for key in SAME} == {key: again[key] for key in SAME}
    assert 12 <= len(again["counts"])
    assert not again["gaps"]
    assert found_in(bed.store(), landed) == found_in(bed.store(), again)
    assert LEFT == {each.name for each in Path(bed.store().path(again["number"], "")).iterdir()}


def test_nothing_builds_on_a_run_without_rows(spark, bed):
    """Only `once` can do without; a lost target is not published again unless it is known which ones exist."""
    for mode in ("incremental", "continuous"):
        with pytest.raises(UsageError, match="--no-land goes with --mode once"):
            run(bed.loaded(), Wish(mode=mode, is_landed=False))
    manifest = bed.audit(spark, grace_s=0).once(is_landed=False)
    loaded = bed.loaded(grace_s=0)
    with pytest.raises(UsageError, match="kept no rows"):
        repair(loaded, manifest["number"], only=(), apply=True, say=lambda _: None)
    stuck = [identity for identity, each in bed.expected.items() if "STUCK" in each]
    lines = []
    assert 0 == repair(loaded, manifest["number"], only=stuck, apply=False, say=lines.append)
    assert all("park it" in line for line in lines[:-1])
    assert f"{id_text(stuck[0])} STUCK" in lines[0]
    page = Path(bed.store().path(manifest["number"], "report.html")).read_text(encoding="utf-8")
    assert "this run kept no rows" in page
