"""Runs over a growing log: what one step leaves, the next one takes up; the end is that of one audit over all."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter

import pytest

pytest.importorskip("pyspark")

from beds import Bed, found_in
from txcore_spark.job import Audit, Window

from txcore.config import load
from txcore.verdicts import Verdict

SUMMED = ("transactions", "halves", "commits", "rollbacks", "targets", "wanted")
COMPARED = ("counts", "severities", "exit_code", "topics")


@pytest.fixture
def bed(tmp_path):
    """A new group."""
    return Bed(tmp_path)


def totals(manifest):
    """Return what two ways to the same end must have in common."""
    sums = {}
    for each in manifest["transactions"]:
        key = (each["bucket"], each["group"], each["home"])
        for name in SUMMED:
            sums.setdefault(key, Counter())[name] += each[name]
    return {name: manifest[name] for name in COMPARED} | {"transactions": sums}


def test_steps_over_a_growing_log_end_like_one_audit_over_everything(spark, bed):
    """Halves without an end wait in the tallies; duplicates, conflicts and lost targets show across steps."""
    audit = bed.audit(spark)
    open_ones = bed.write(None, None, parts={"half", "row"})
    bed.write(None, Verdict.LOST, size=3)
    first = audit.incremental()
    assert {"LOST": 1} == first["counts"]
    assert 2 == sum(each["pending"] for each in first["transactions"])
    for history in open_ones[:1]:
        rest = [each for each in history.records if each.log in {"target", "op"}]
        bed.writer.write((history.partition, each) for each in rest)
    again = open_ones[0]
    bed.writer.write((again.partition, each) for each in again.records if each.log == "target")  # a duplicate
    bed.write(Verdict.CONFLICT, Verdict.PHANTOM, Verdict.DISCARDED)
    second = audit.incremental()
    third = audit.incremental()
    assert totals(second) == totals(third)
    found = found_in(bed.store(), third)
    whole = audit.once()
    assert found == found_in(bed.store(), whole)
    assert totals(whole) == totals(third)
    assert {"DUP_TARGET"} == found[again.transaction_id]


def test_a_step_that_was_killed_counts_nothing_twice(spark, bed):
    """Without a manifest there was no run: the next one starts from the one before."""
    audit = bed.audit(spark)
    bed.write(None, Verdict.LOST)
    first = audit.incremental()
    bed.write(None, Verdict.LEAK)
    lost = audit.incremental()
    (bed.folder / "audit" / "runs" / f"{lost['number']:06d}" / "_manifest.json").unlink()
    again = audit.incremental()
    assert again["number"] > lost["number"]
    assert totals(lost) == totals(again)
    assert first["rows"] + [again["number"]] == again["rows"]


def test_a_window_judges_its_births_only(spark, bed):
    """What was born before or behind it is read, but not judged."""
    (early,) = bed.write(Verdict.LOST)
    since_ms = int.from_bytes(early.transaction_id[:6], "big") + 1
    bed.write(Verdict.LEAK)
    manifest = bed.audit(spark).once(Window(since_ms=since_ms))
    assert {"LEAK": 1} == manifest["counts"]
    assert 2 == manifest["exit_code"]


def test_what_retention_took_is_a_gap_and_no_absence_is_a_proof_before_it(spark, bed):
    """A log whose beginning is gone: inconclusive, and no PHANTOM for targets whose half is gone."""
    bed.write(*[None] * 5)
    with sqlite3.connect(bed.folder / "broker.db") as connection:
        connection.execute("DELETE FROM half")
    connection.close()
    manifest = bed.audit(spark).once()
    assert 3 == manifest["exit_code"]
    assert {"COVERAGE_GAP"} == set(manifest["counts"])
    assert all("its beginning is gone" in gap["why"] for gap in manifest["gaps"])


def test_a_topic_that_nobody_reads_is_a_gap_and_its_messages_are_not_lost(spark, bed):
    """Halves name it; the configuration leaves it out."""
    bed.write(None, size=2)
    bed.config()
    path = bed.folder / "txcore.toml"
    path.write_text(path.read_text() + '\n[audit.backends.main]\ntopics = ["orders.created"]\n', encoding="utf-8")
    manifest = Audit(spark, load(path, environment={}), bed.store()).once()
    assert {"COVERAGE_GAP": 1} == manifest["counts"]
    assert "orders.mail" in manifest["gaps"][0]["why"]
    assert 3 == manifest["exit_code"]


def test_an_empty_group_passes(spark, bed):
    """Nothing was written, and that was read."""
    manifest = bed.audit(spark).once()
    assert (0, {}) == (manifest["exit_code"], manifest["counts"])
    shutil.rmtree(bed.folder / "audit")
