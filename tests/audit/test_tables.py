"""The tables of results: what a run writes, what it closes, and that no crash changes what they say in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from beds import rows_of
from reports import CUT_MS, HOUR_MS, manifest_of
from txcore_spark.job import Audit, Window
from txcore_spark.tables.keeper import Keeper
from txcore_spark.tables.results import Judge
from txcore_spark.tables.schemas import SCHEMAS
from txcore_spark.tables.views import ask

from txcore.audit.verdicts import Verdict
from txcore.ids import first_id_at, id_text

FINDINGS = "SELECT verdict, transaction_id, opened_run, seen_run, closed_run FROM findings ORDER BY verdict"
#: An audit that kills itself before its commit of the table with this number; with 5, after all of them.
KILLED = """
import os, signal, sys
from pathlib import Path
from txcore.config import load
from txcore_spark.engines.duck import DuckEngine
from txcore_spark.job import Audit
from txcore_spark.store import Store
from txcore_spark.tables import keeper

config, left = sys.argv[1], int(sys.argv[2])
commit = keeper.Keeper._commit

def counted(*arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(*arguments)

keeper.Keeper._commit = counted
loaded = load(Path(config), environment={})
Audit(DuckEngine(), loaded, Store(loaded.config.audit.store)).incremental()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_run_adds_its_results_under_names(engine, bed):
    """Findings have names, places and times; hours have counts; coverage has the ranges that were read."""
    (lost,) = bed.write(Verdict.LOST)
    bed.write(None)
    manifest = bed.audit(engine).incremental()
    (found,) = ask(bed.store(), "SELECT * FROM findings").as_builtin()
    assert ("LOST", id_text(lost.transaction_id)) == (found["verdict"], found["transaction_id"])
    assert ("orders", "main", "violation") == (found["producer_group"], found["broker"], found["severity"])
    assert any(each.startswith("half ") for each in found["places"])
    assert (1, 1, None, None) == tuple(found[name] for name in ("opened_run", "seen_run", "closed_run", "note"))
    assert found["born_at"] <= found["opened_at"]
    assert [("LOST", 1, 2, 1)] == rows_of(bed, "SELECT verdict, count, transactions, run FROM verdicts_by_hour")
    ends = rows_of(bed, "SELECT partition, from_position, to_position FROM coverage WHERE gap IS NULL")
    assert sorted(ends) == sorted((each["partition"], each["start"], each["end"]) for each in manifest["ends"])
    (run,) = ask(bed.store(), "SELECT * FROM runs").as_builtin()
    assert (1, "incremental", 2, 2, 1) == tuple(
        run[name] for name in ("run", "mode", "exit_code", "commits", "violations")
    )
    assert manifest["report_sha256"] == run["report_sha256"]


def test_a_finding_closes_when_a_run_no_longer_finds_it(duck, bed):
    """Its row stays, with the runs that found it first and last; another verdict on the transaction is another one."""
    audit = bed.audit(duck)
    (lost,) = bed.write(Verdict.LOST)
    name = id_text(lost.transaction_id)
    audit.incremental()
    assert 1 == Keeper(bed.store()).acknowledge("LOST", lost.transaction_id, "ada", "known", CUT_MS)
    audit.incremental()
    assert [("LOST", name, 1, 2, None)] == rows_of(bed, FINDINGS)
    assert ["LOST"] == [verdict for _, verdict, _ in Keeper(bed.store()).acknowledged()]
    late = bed.maker.target(bed.half_of(lost), 0)
    bed.writer.write([(lost.partition, late)])
    assert {} == audit.incremental()["counts"]
    assert [("LOST", name, 1, 2, 3)] == rows_of(bed, FINDINGS)
    assert [] == rows_of(bed, "SELECT * FROM open_findings")
    assert {} == Keeper(bed.store()).acknowledged()
    assert [(None, 0, 3)] == rows_of(bed, "SELECT verdict, count, run FROM verdicts_by_hour")
    bed.writer.write([(lost.partition, late)])
    audit.incremental()
    assert [("DUP_TARGET", name, 4, 4, None), ("LOST", name, 1, 2, 3)] == rows_of(bed, FINDINGS)


def test_a_finding_that_comes_back_is_open_again(duck, bed):
    """A window over no births of its hour closes nothing; a run that finds it again opens it."""
    (lost,) = bed.write(Verdict.LOST)
    audit, store = bed.audit(duck), bed.store()
    audit.once()
    audit.once(Window(since_ms=int.from_bytes(lost.transaction_id[:6], "big") + 1))
    assert [(None,)] == rows_of(bed, "SELECT closed_run FROM findings")
    table = Keeper(store)._opened("findings")
    table.update(updates={"closed_run": "2"})
    audit.once()
    assert [(1, 3, None)] == rows_of(bed, "SELECT opened_run, seen_run, closed_run FROM findings")


IDENTITY = bytes(first_id_at(CUT_MS - HOUR_MS))
FOUND = {
    "transaction_id": id_text(IDENTITY),
    "verdict": "LOST",
    "producer_group": "orders",
    "bucket": (CUT_MS - HOUR_MS) // HOUR_MS,
}
BUCKETS = {str(FOUND["bucket"]): 7}


@pytest.mark.parametrize(
    ("more", "could"),
    [
        ({}, True),
        ({"buckets": {str(FOUND["bucket"]): 6}}, False),
        ({"buckets": {}}, False),
        ({"since_ms": CUT_MS}, False),
        ({"until_ms": CUT_MS - HOUR_MS}, False),
        ({"groups": {"others": 0}}, False),
        ({"withheld": ["orders"]}, False),
        ({"rows_withheld": ["orders"]}, False),
        ({"withheld": ["others"]}, True),
        ({"judged_from_ms": {"orders": CUT_MS - HOUR_MS + 1}}, False),
        ({"judged_from_ms": {"orders": CUT_MS - HOUR_MS}}, True),
        ({"sent_from_ms": {"orders": CUT_MS}}, False),
        ({"horizons": {"orders": bytes(first_id_at(CUT_MS)).hex()}}, False),
        ({"horizons": {"orders": bytes(16).hex()}}, True),
        ({"unproven": [{"bucket": FOUND["bucket"], "group": 0, "home": 0, "unproven": 1, "count": 1}]}, False),
    ],
    ids=str,
)
def test_a_run_closes_only_what_it_could_judge(more, could):
    """A gap, a pruned row, a lost beginning or a topic that was not read proves nothing about a finding."""
    manifest = {**manifest_of([]), "unproven": [], "buckets": BUCKETS} | more
    assert could == Judge(manifest).could_find(FOUND)


def test_the_same_run_changes_no_table_twice(duck, bed):
    """Each table knows its last run."""
    bed.write(Verdict.LOST)
    bed.audit(duck).incremental()
    keeper = Keeper(bed.store())
    before = [keeper._opened(name).version() for name in SCHEMAS]
    keeper.catch_up()
    keeper._add(bed.store().manifest(1))
    assert before == [keeper._opened(name).version() for name in SCHEMAS]


@pytest.mark.parametrize("at", range(1, 6))
def test_a_killed_run_is_written_by_the_next_one(duck, bed, at):
    """A process that is killed with -9 between two tables leaves nothing out and nothing twice."""
    bed.write(Verdict.LOST)
    bed.audit(duck).incremental()
    bed.write(Verdict.LEAK)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(bed.config()), str(at)], env={**os.environ}, check=False)
    assert -signal.SIGKILL == ended.returncode
    bed.write(Verdict.CONFLICT)
    bed.audit(duck).incremental()
    assert [("CONFLICT", 3), ("LEAK", 2), ("LOST", 1)] == rows_of(
        bed, "SELECT verdict, opened_run FROM findings ORDER BY verdict"
    )
    assert [(1,), (2,), (3,)] == rows_of(bed, "SELECT run FROM runs ORDER BY run")
    assert [(1, 1), (2, 1), (3, 1)] == rows_of(
        bed, "SELECT run, count(*) FROM coverage WHERE log = 'op' AND partition = 0 GROUP BY run ORDER BY run"
    )
    counted = "SELECT verdict, sum(count) FROM verdicts_by_hour GROUP BY verdict ORDER BY verdict"
    assert [("CONFLICT", 1), ("LEAK", 1), ("LOST", 1)] == rows_of(bed, counted)


def test_no_table_is_written_where_the_configuration_forbids_it(duck, bed):
    """The next run with tables writes what is missing."""
    bed.write(Verdict.LOST)
    bed.audit(duck, tables="false").incremental()
    assert not (bed.folder / "audit" / "tables").exists()
    Audit(duck, bed.loaded(), bed.store()).incremental()
    assert [(1,), (2,)] == rows_of(bed, "SELECT run FROM runs ORDER BY run")
    assert [("LOST", 1)] == rows_of(bed, "SELECT verdict, opened_run FROM findings")
