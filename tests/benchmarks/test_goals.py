"""The goals of speed, judged from reports that the benchmarks' own writers make of invented samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.drive import Sample
from benchmarks.figures import Kept, MissingRowError
from benchmarks.goals import GOALS, TXCORE, exit_code, judged
from benchmarks.report import figures
from benchmarks.rivals.report import records_of
from benchmarks.rivals.system import TRANSACTIONAL, Row
from benchmarks.rows import QUICK, make_rows

ROOT = Path(__file__).parents[2]
IDLE = {"load_average_before": [0.1, 0.1, 0.1], "machine": {"cores": 2}}
RAW = "kafka/raw/batch/1000/300"
MANY = "kafka/send_many/batch/2000/300"
PIPELINED = "Kafka, pipelined over raw, CPU cost"
LONE = ("lone caller over two produces, p50", "or above two produces, p50")
ROCKETMQ = "pipelined over RocketMQ's best"


def sample(per_s=1_000.0, cpu_us=(10.0, 5.0, 0.0), p50_ms=1.0):
    """Return a round of a thousand transactions."""
    count = 1_000
    return Sample([p50_ms / 1_000] * count, 1, count / per_s, *(each * count / 1e6 for each in cpu_us))


def bench(samples, broker="kafka"):
    """Return the report of a run in which these rows were measured."""
    rows = [row for row in make_rows([broker], QUICK, has_plain_driver=True) if row.key in samples]
    assert set(samples) == {row.key for row in rows}
    return IDLE | {"rows": figures(rows, samples)}


def rivals(rounds):
    """Return the report of a comparison."""
    return IDLE | {"rows": records_of(rounds)}


def verdict(kept, measure):
    """Return the verdict of one goal."""
    return next(each for each in judged(kept) if each.goal.measure == measure)


def test_a_ratio_is_taken_within_each_round():
    """The slow round of both rows is compared with itself; the median of the rounds decides."""
    raw = [sample(cpu_us=(each, 1.0, 0.0)) for each in (2.0, 5.0, 2.0)]
    mine = [sample(cpu_us=(each, 1.0, 0.0)) for each in (8.0, 11.0, 4.0)]
    seen = verdict(Kept([bench({RAW: raw, MANY: mine})]), PIPELINED)
    assert [pytest.approx(each) for each in (3 / 9, 6 / 12, 3 / 5)] == list(seen.values)
    assert "met" == seen.words


def test_a_missed_goal_names_its_distance():
    """A ratio of 0.15 is half of the goal, and costs above a limit are named as such."""
    kept = Kept([bench({RAW: [sample(cpu_us=(2.0, 1.0, 0.0))], MANY: [sample(cpu_us=(14.0, 6.0, 0.0))]})])
    assert "missed: 50% below" == verdict(kept, PIPELINED).words
    assert "missed: 100% above" == verdict(kept, "Kafka, pipelined, own CPU").words


def test_rows_without_a_broker_are_those_of_the_same_run():
    """The business rate of a SQLite file is not replaced by that of PostgreSQL in Kafka's report."""
    business = "-/business, core/threads/16/300"
    embedded = bench({"sqlite/database, core/threads/16/300": [sample(300.0)], business: [sample(1_000.0)]}, "sqlite")
    served = bench({RAW: [sample()], business: [sample(8_000.0)]})
    seen = verdict(Kept([embedded, served]), "SQLite, over the business statements")
    assert [pytest.approx(0.3)] == list(seen.values)


def test_a_missing_row_is_not_measured():
    """The verdict names the row, and nothing is guessed."""
    seen = verdict(Kept([bench({RAW: [sample()]})]), PIPELINED)
    assert ("not measured: kafka/send_many/batch/*/300", ()) == (seen.words, seen.values)


def test_one_of_two_alternatives_is_enough():
    """40 us above two fast produces meet the goal, though they are far above 1.10 of them."""
    keys = ("kafka/listener/threads/1/300", "kafka/raw, 2 in a row/threads/1/300")
    kept = Kept([bench({keys[0]: [sample(p50_ms=0.14)], keys[1]: [sample(p50_ms=0.1)]})])
    assert ["met by its alternative", "met"] == [verdict(kept, each).words for each in LONE]
    assert 0 == exit_code([verdict(kept, each) for each in LONE])
    kept = Kept([bench({keys[0]: [sample(p50_ms=1.2)], keys[1]: [sample(p50_ms=1.0)]})])
    assert ["missed: 9% above", "missed: 300% above"] == [verdict(kept, each).words for each in LONE]


def test_rocketmq_is_compared_by_its_fastest_load_and_default_store():
    """More threads are a faster load; the other store is a system of its own."""
    mine = [{Row(TRANSACTIONAL, "pipelined, send_many", "/s"): 100_000.0}]
    theirs = [{Row(TRANSACTIONAL, "64 threads", "/s"): 5_000.0, Row(TRANSACTIONAL, "256 threads", "/s"): 8_000.0}]
    other = [{Row(TRANSACTIONAL, "256 threads", "/s"): 50_000.0}]
    kept = Kept([rivals({TXCORE: mine, "RocketMQ 5.5.0": theirs, "RocketMQ 5.5.0, RocksDB": other})])
    assert [12.5] == list(verdict(kept, ROCKETMQ).values)
    with pytest.raises(MissingRowError, match="RocketMQ"):
        Kept([rivals({TXCORE: mine})]).best_of_rocketmq()


def test_the_exit_code_prefers_a_missed_goal_to_one_that_was_not_measured():
    """0: all are met; 1: one is missed; 3: none is missed, and one was not measured."""
    good, bad = [sample(cpu_us=(4.0, 1.0, 0.0))], [sample(cpu_us=(40.0, 10.0, 0.0))]
    goals = [each for each in GOALS if each.measure in {PIPELINED, ROCKETMQ}]
    assert 0 == exit_code(judged(Kept([bench({RAW: good, MANY: good})]), goals[:1]))
    assert 3 == exit_code(judged(Kept([bench({RAW: good, MANY: good})]), goals))
    assert 1 == exit_code(judged(Kept([bench({RAW: good, MANY: bad})]), goals))


def test_the_command_reads_several_files_and_names_a_loaded_machine(tmp_path):
    """Figures, the comparison and a recovery are read together; the table is at most 128 columns wide."""
    report = bench({RAW: [sample()], MANY: [sample()]}) | {"load_average_before": [7.5, 7.0, 6.0]}
    recovery = {"answers": "postgresql", "count": 10_000, "from_first_due_s": 1.4}
    files = []
    for number, each in enumerate((report, rivals({TXCORE: [{}]}), recovery)):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(each), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.goals", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (1, "") == (done.returncode, done.stderr)
    assert "load average 7.5 before" in done.stdout
    lines = done.stdout.splitlines()
    assert ["met"] == [line.split()[-1] for line in lines if line.startswith("recovery of 10,000")]
    assert 128 >= max(map(len, lines))


def test_each_row_of_a_goal_can_be_measured():
    """The rows that goals read from `make bench` are rows of it, except those that no benchmark has yet."""
    reports = [
        IDLE | {"rows": [{"key": row.key, "size": row.size, "broker": row.broker, "by_round": []} for row in rows]}
        for broker in ("kafka", "nats", "rabbitmq", "sqlite")
        for rows in [make_rows([broker], QUICK, has_plain_driver=broker != "sqlite")]
    ]
    missing = [each.missing for each in judged(Kept(reports)) if each.missing.count("/") > 2]
    assert ["sqlite/by hand, core/threads/16/300"] == missing
