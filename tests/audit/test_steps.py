"""Steps over a growing log: each continues the one before, and the result is that of one audit over everything."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from beds import found_in
from certified import KEY
from reports import ORIGIN
from txcore_spark import job
from txcore_spark.anomalies import Forgery
from txcore_spark.certifying import certify, prove
from txcore_spark.command import Wish, run
from txcore_spark.job import Audit, Window
from txcore_spark.repair import repair
from txcore_spark.selftest.writers import write_rows
from txcore_spark.store import VERSION

from txcore.audit.certificate import (
    ProofError,
    keys_in,
    outcome_text,
    require_covered,
    require_message,
    require_sent,
    require_signed,
)
from txcore.audit.heads import published_heads
from txcore.audit.message_file import SentMessage
from txcore.audit.targets import target_digest
from txcore.audit.verdicts import Verdict
from txcore.config import load

SUMMED = ("transactions", "halves", "commits", "rollbacks", "targets", "wanted")
COMPARED = ("counts", "severities", "exit_code", "topics")


def totals(manifest):
    """Return the results that steps and one audit must have in common."""
    sums = {}
    for each in manifest["transactions"]:
        key = (each["bucket"], each["group"], each["home"])
        for name in SUMMED:
            sums.setdefault(key, Counter())[name] += each[name]
    return {name: manifest[name] for name in COMPARED} | {"transactions": sums}


def test_steps_over_a_growing_log_end_like_one_audit_over_everything(engine, bed):
    """Halves without an end stay in the tallies; duplicates, conflicts and lost targets are found across steps."""
    audit = bed.audit(engine)
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


def test_a_step_that_was_killed_counts_nothing_twice(engine, bed):
    """A run without a manifest does not count: the next run starts from the one before it."""
    audit = bed.audit(engine)
    bed.write(None, Verdict.LOST)
    first = audit.incremental()
    bed.write(None, Verdict.LEAK)
    lost = audit.incremental()
    (bed.folder / "audit" / "runs" / f"{lost['number']:06d}" / "_manifest.json").unlink()
    again = audit.incremental()
    assert again["number"] > lost["number"]
    assert totals(lost) == totals(again)
    assert first["rows"] + [again["number"]] == again["rows"]


def test_a_window_judges_its_births_only(engine, bed):
    """Transactions born before or after the window are read, but not judged."""
    (early,) = bed.write(Verdict.LOST)
    since_ms = int.from_bytes(early.transaction_id[:6], "big") + 1
    bed.write(Verdict.LEAK)
    manifest = bed.audit(engine).once(Window(since_ms=since_ms))
    assert {"LEAK": 1} == manifest["counts"]
    assert 2 == manifest["exit_code"]


def test_retention_leaves_a_gap_and_no_absence_is_a_proof_before_it(engine, bed):
    """A log without its beginning is inconclusive, without PHANTOM for targets whose half is missing."""
    bed.write(*[None] * 5)
    with sqlite3.connect(bed.folder / "broker.db") as connection:
        connection.execute("DELETE FROM half")
    connection.close()
    manifest = bed.audit(engine).once()
    assert 3 == manifest["exit_code"]
    assert {"COVERAGE_GAP"} == set(manifest["counts"])
    assert all("its beginning is gone" in gap["why"] for gap in manifest["gaps"])


def test_a_topic_that_is_not_read_is_a_gap_and_its_messages_are_not_lost(engine, bed):
    """A topic that the halves name and the configuration omits is a gap."""
    bed.write(None, size=2)
    bed.config()
    path = bed.folder / "txcore.toml"
    path.write_text(path.read_text() + '\n[audit.backends.main]\ntopics = ["orders.created"]\n', encoding="utf-8")
    manifest = Audit(engine, load(path, environment={}), bed.store()).once()
    assert {"COVERAGE_GAP": 1} == manifest["counts"]
    assert "orders.mail" in manifest["gaps"][0]["why"]
    assert 3 == manifest["exit_code"]


def test_an_empty_group_passes(engine, bed):
    """The audit of an empty group passes."""
    manifest = bed.audit(engine).once()
    assert (0, {}) == (manifest["exit_code"], manifest["counts"])
    shutil.rmtree(bed.folder / "audit")


def results_of(text):
    """Return the result of the only finding of each verdict, and check that a finding has an id and a sentence."""
    found = json.loads(text)
    assert all(each["transaction_id"] and each["text"] for each in found)
    return {each["verdict"]: each["result"] for each in found}


def test_repair_publishes_lost_targets_parks_stuck_halves_and_leaves_leaks(engine, bed, capsys):
    """A dry run writes nothing; a repair is not repeated; the next audit finds the leak and the parked half."""
    audit = bed.audit(engine, grace_s=0)
    (lost,) = bed.write(Verdict.LOST, size=3)
    bed.writer.write(
        (lost.partition, each) for each in [bed.maker.target(bed.half_of(lost), 1)]
    )  # one of the three is there
    stuck, leak = bed.write(Verdict.STUCK, Verdict.LEAK)
    first = audit.once()
    assert {"LOST": 1, "STUCK": 1, "LEAK": 1} == first["counts"]
    loaded, lines = bed.loaded(grace_s=0), []
    assert 0 == repair(loaded, first["number"], only=(), apply=False, say=lines.append)
    assert 0 == repair(loaded, first["number"], only=(), apply=False, say=lines.append, as_json=True)
    assert {"LOST": "would_do", "STUCK": "would_do", "LEAK": "refused"} == results_of(lines[-1])
    assert first["counts"] == audit.once()["counts"]
    assert 0 == repair(loaded, first["number"], only=(), apply=True, say=lines.append, as_json=True)
    assert {"LOST": "done", "STUCK": "done", "LEAK": "refused"} == results_of(lines[-1])
    assert 0 == repair(loaded, first["number"], only=(), apply=True, say=lines.append)
    printed = "\n".join(lines)
    assert "publish 0 to orders.created, 2 to orders.created" in printed
    assert "cannot be withdrawn" in printed
    assert "0 repaired, 0 failed" in lines[-1]
    last = audit.once()
    assert {"LEAK": 1, "DISCARDED": 1} == last["counts"]
    found = found_in(bed.store(), last)
    assert {stuck.transaction_id: {"DISCARDED"}, leak.transaction_id: {"LEAK"}} == found


def test_two_processes_begin_different_runs(bed, monkeypatch):
    """Both see the same runs before one has made its folder."""
    store = bed.store()
    seen = store.numbers()
    monkeypatch.setattr(store, "numbers", lambda: seen)
    assert [1, 2, 3] == [store.begin() for _ in range(3)]


def test_repair_sends_nothing_that_the_database_does_not_vouch_for(duck, bed):
    """A forged COMMIT of what was rolled back, or a replaced half, is LOST as well: its messages stay unsent."""
    rolled_back = bed.write(None, parts=("half", "op"))[0]
    write_rows(bed.database, "txcore_tx", bed.group, [(rolled_back.transaction_id, 2, b"")])
    replaced = bed.write(Forgery.REPLACED, parts=("half", "op", "row"))[0]
    manifest = bed.audit(duck, grace_s=0).once()
    found = found_in(bed.store(), manifest)
    assert {"LOST", "MISDECIDED"} == found[rolled_back.transaction_id]
    assert {"LOST", "CORRUPT"} == found[replaced.transaction_id]
    lines = []
    assert 0 == repair(bed.loaded(), manifest["number"], only=(), apply=True, say=lines.append, as_json=True)
    assert {"LOST": "refused"} == results_of(lines[-1])
    assert 2 == lines[-1].count('"refused"')
    assert 0 == bed.audit(duck).once()["transactions"][0]["targets"]


def test_the_command_ends_with_the_code_and_writes_the_report(engine, bed, screen, request, capsys, monkeypatch):
    """The summary is on standard output, no progress without a terminal; the page loads nothing from other hosts."""
    monkeypatch.setattr(job, "origin_of", lambda loaded: ORIGIN)  # the picture is the same on every machine
    bed.write(None, Verdict.LEAK, Verdict.DISCARDED)
    code = run(bed.loaded(), Wish(mode="once", as_json=True, engine=engine.name))
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert 2 == code == summary["exit_code"]
    assert {"LEAK": 1, "DISCARDED": 1} == summary["counts"]
    assert "" == printed.err
    page = Path(summary["report"]).read_text(encoding="utf-8")
    assert "LEAK" in page
    assert "target orders.created/" in re.search(r"<details>.*?</details>", page, re.DOTALL)[0]
    data = Path(summary["report"]).with_name("report.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == summary["report_sha256"]
    assert summary["report_sha256"] in page
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?://", page)
    if path := screen("report", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)):
        shown = request.getfixturevalue("chromium").new_page(viewport={"width": 960, "height": 690})
        shown.goto(Path(summary["report"]).as_uri())
        shown.screenshot(path=path)
    assert 2 == run(bed.loaded(), Wish(mode="continuous", steps_max=1, is_verbose=True, engine=engine.name))
    assert "freezing the ends" in capsys.readouterr().err


def test_a_certificate_covers_the_transactions_of_real_runs(spark, bed):
    """Each message that was sent is proven by the run that judged it last; leaked and stuck ones are not."""
    path = bed.folder / "audit.keys"
    path.write_text(f'[groups.audit]\nsign_with = "k"\n[groups.audit.keys]\nk = "{KEY}"\n', encoding="utf-8")
    keys, heads, audit = keys_in(str(path)), bed.folder / "heads.txt", bed.audit(spark, grace_s=0)
    well, outcomes = bed.write(None, None, size=3), {}
    (open_one,) = bed.write(None, parts={"half", "row"})
    for kind in (Verdict.LEAK, Verdict.CORRUPT, Verdict.STUCK):
        outcomes[kind] = bed.write(kind)[0].transaction_id
        certify(bed.store(), keys, audit.incremental()["number"], str(heads))
    assert [1, 2, 3] == [*published_heads(heads)]
    for history in well:
        proof = prove(bed.store(), history.transaction_id)
        require_signed(proof.certificate, keys)
        require_covered(proof)
        sent = [each for each in history.records if each.log == "target"]
        for index, each in enumerate(sent):
            digest = target_digest(each.topic, each.key, each.body, each.headers)
            require_message(proof, SentMessage(history.transaction_id, index, bed.group, digest))
        require_sent(proof.entry)
        assert proof.entry.digest.startswith(proof.entry.row)
        assert "agrees" in outcome_text(proof.entry)
    for kind, identity in outcomes.items():
        entry = prove(bed.store(), identity).entry
        assert [kind.name] == entry.findings
        with pytest.raises(ProofError):
            require_sent(entry)
    undecided = prove(bed.store(), open_one.transaction_id).entry
    assert ("open", []) == (undecided.outcome, undecided.findings)


def test_a_step_does_not_build_on_files_of_another_format(bed, monkeypatch):
    """Their hashes are others; the step reads what the brokers hold, as the first one does."""
    store, found = bed.store(), []
    monkeypatch.setattr(Audit, "_step", lambda self, before, window, mode: found.append(before))
    for version in (VERSION, VERSION - 1):
        store.finish(store.begin(), {"mode": "incremental", "version": version})
        Audit(None, bed.loaded(), store).incremental()
    store.finish(store.begin(), {"mode": "once", "version": VERSION})
    Audit(None, bed.loaded(), store).incremental()
    assert [VERSION] * 3 == [each["version"] for each in found]
