"""`--no-land`: the same verdicts, every range read once, and no rows left after the run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from beds import Bed, found_in
from txcore_spark import coverage
from txcore_spark.command import Wish, run
from txcore_spark.job import Audit
from txcore_spark.repair import repair

from txcore.audit.verdicts import Verdict
from txcore.errors import UsageError

SAME = ("counts", "severities", "exit_code", "records", "strange", "transactions", "gaps", "topics", "ends")
LEFT = {"counts.parquet", "coverage.parquet", "findings", "gaps.parquet", "latency.parquet", "report.html",
        "report.json", "summary.parquet", "_manifest.json"}  # fmt: skip


@pytest.fixture(scope="module")
def runs(spark, tmp_path_factory):
    """Audit one bed with every kind of fault, with and without landing; the second time the sources disappear.

    The broker's file is moved right after the reading, the database before the sums: a second reading would fail.
    """
    bed = Bed(tmp_path_factory.mktemp("bed"))
    bed.write(*[None] * 20, *(each for each in Verdict if each.name not in {"COVERAGE_GAP", "LATE_CHECK"}), size=2)
    loaded, store, measure = bed.loaded(grace_s=0), bed.store(), coverage.measure
    landed = Audit(spark, loaded, store).once()
    broker, database = bed.folder / "broker.db", bed.folder / "shop.db"

    def measured(*arguments, **options):
        broker.rename(f"{broker}.gone")
        return measure(*arguments, **options)

    def said(text):
        if text == "one line per transaction":
            database.rename(f"{database}.gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage, "measure", measured)
        unlanded = Audit(spark, loaded, store, say=said).once(is_landed=False)
    for path in (broker, database):
        assert not path.exists()
        Path(f"{path}.gone").rename(path)
    return bed, landed, unlanded


def test_it_finds_the_same_and_reads_once(runs):
    """Both runs have the same verdicts, places, counts and ends."""
    bed, landed, unlanded = runs
    assert {key: landed[key] for key in SAME} == {key: unlanded[key] for key in SAME}
    assert 12 <= len(unlanded["counts"])
    assert not unlanded["gaps"]
    assert found_in(bed.store(), landed) == found_in(bed.store(), unlanded)


def test_nothing_of_the_rows_is_left(runs):
    """Only findings, summaries, report and manifest remain."""
    bed, landed, unlanded = runs
    left = [{each.name for each in Path(bed.store().path(run["number"], "")).iterdir()} for run in (landed, unlanded)]
    assert [LEFT | {"rows", "lines"}, LEFT] == left


@pytest.mark.parametrize("mode", ["incremental", "continuous"])
def test_only_once_can_do_without_rows(runs, mode):
    """The other modes build on the rows of the runs before."""
    with pytest.raises(UsageError, match="--no-land needs --mode once"):
        run(runs[0].loaded(), Wish(mode=mode, is_landed=False))


def test_a_lost_target_is_not_published_again_without_rows(runs):
    """Only rows show which targets exist; parking a stuck half needs only the logs."""
    bed, _, unlanded = runs
    loaded, number, lines = bed.loaded(grace_s=0), unlanded["number"], []
    with pytest.raises(UsageError, match="kept no rows"):
        repair(loaded, number, only=(), apply=True, say=lines.append)
    stuck = [identity for identity, each in bed.expected.items() if "STUCK" in each]
    assert 0 == repair(loaded, number, only=stuck, apply=False, say=lines.append)
    assert "STUCK  park it" in lines[0]
    page = Path(bed.store().path(number, "report.html")).read_text(encoding="utf-8")
    assert "This run kept no rows" in page
    assert 1 == page.count("--apply</code>")  # of the stuck half
