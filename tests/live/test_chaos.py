"""The chaos run on SQLite: its plans, its least number of faults, and its detection of violations."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from txcore_conformance import chaos, chaos_faults
from txcore_conformance.chaos_faults import LANES, Planned, kinds_of, plan, shortfall
from txcore_conformance.live import Verdict
from txcore_sqlite.testing import SqliteHarness


def test_one_seed_is_one_plan():
    assert plan("network", "7", 40) == plan("network", "7", 40)
    assert plan("network", "7", 40) != plan("network", "8", 40)


@pytest.mark.parametrize("lane", LANES)
def test_every_kind_comes_in_every_round(lane):
    """Three rounds of a plan with any seed have each kind of fault three times."""
    kinds = LANES[lane]
    counts = Counter(planned.kind for planned in plan(lane, "any", 3 * len(kinds)))
    assert dict.fromkeys(kinds, 3) == counts


def test_plans_for_300_s_hold_more_than_60_faults():
    """Plans for 300 s have more than 60 faults, even with 8 s more for each restart of a broker."""
    total = 0
    for lane in LANES:
        elapsed_s = 0.0
        for planned in plan(lane, "any", 1_000):
            elapsed_s += planned.gap_s + (planned.length_s if lane != "process" else 0.0) + 8.0 * (lane == "broker")
            total += elapsed_s < 300
    assert total > 70


def test_a_run_with_too_few_faults_of_a_kind_fails():
    counts = Counter(dict.fromkeys(kinds_of(tuple(LANES)), 6))
    assert [] == shortfall(counts, tuple(LANES), 300)
    counts["cut"] = 2
    counts["kill-producer"] = 10
    assert ["cut came 2 times; at least 3 are needed"] == shortfall(counts, tuple(LANES), 300)
    assert ["30 faults; at least 60 are needed"] == shortfall(
        Counter(dict.fromkeys(kinds_of(tuple(LANES)), 3)), tuple(LANES), 300
    )


@pytest.fixture
def harness():
    made = SqliteHarness()
    made.start()
    yield made
    made.stop()


def _run(harness, folder, *planned, seconds=60.0, **options):
    said = []
    report = chaos.run(
        harness,
        seconds,
        "test",
        said.append,
        folder=folder,
        plans={"process": list(planned)},
        producers=("database", "listener"),
        **options,
    )
    return report, said


def test_killed_and_frozen_processes_lose_nothing(harness, tmp_path):
    """No message is lost when a producer and a checker die and a checker freezes; the report counts the faults."""
    faults = [
        Planned(0.5, "kill-producer", 0.0, 0.0, 5),
        Planned(0.2, "kill-checker", 0.0, 0.9),
        Planned(0.2, "pause-checker", 1.0, 0.0),
    ]
    report, said = _run(harness, tmp_path / "run", *faults)
    assert [] == report.problems
    assert {"kill-producer": 1, "kill-checker": 1, "pause-checker": 1} == report.faults
    assert report.verdict.transactions["commit"] > 0
    assert any("kill-producer" in line for line in said)
    lines = chaos.lines_of(report)
    assert "PASSED" == lines[-1]
    assert [] == [line for line in lines if len(line) > 80]


def test_a_lost_target_is_named_and_the_artefacts_are_kept(harness, tmp_path, monkeypatch):
    """The oracle reports a committed message that consumers did not get, and the run's files are kept."""
    monkeypatch.setattr(chaos, "ARTEFACTS", tmp_path / "kept")
    read = harness.read_topic
    monkeypatch.setattr(harness, "read_topic", lambda topic: read(topic)[1:])
    report, _ = _run(harness, tmp_path / "run", Planned(0.1, "pause-producer", 0.1, 0.0, 10))
    assert report.verdict.lost >= 1
    assert {"S3", "S8"} == {problem.split()[0] for problem in report.problems}
    chaos.keep(report, tmp_path / "run", None)
    kept = json.loads((tmp_path / "kept" / "chaos-SqliteHarness-test" / "report.json").read_text())
    assert report.problems == kept["problems"]
    names = {path.name for path in (tmp_path / "kept" / "chaos-SqliteHarness-test").iterdir()}
    assert {"faults.json", "report.json", "database-1.jsonl", "checker-1.log"} <= names
    assert "FAILED" == chaos.lines_of(report)[-1]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_messages_of_one_order_key_come_in_order(harness, tmp_path, monkeypatch, is_reversed):
    """A killed owner changes no order; the oracle reports messages that come in another one."""
    read = harness.read_topic

    def backwards(topic):
        found = read(topic)
        return [replace(each, position=other.position) for each, other in zip(found, found[::-1], strict=True)]

    if is_reversed:
        monkeypatch.setattr(harness, "read_topic", backwards)
    fault = Planned(0.2, "kill-checker", 0.0, 0.2, 10)
    report, _ = _run(harness, tmp_path / "run", fault, release="owner", order_keys=2)
    assert ({"S12"} if is_reversed else set()) == {problem.split()[0] for problem in report.problems}
    assert f"ordered       {report.verdict.ordered} transactions with an order key" in chaos.lines_of(report)


def test_the_command_line_prints_json(capsys, monkeypatch):
    """The command prints only JSON to standard output, so that a program can read the report."""
    monkeypatch.setattr(chaos_faults, "FAULTS_PER_S", 0.0)
    arguments = ["--broker", "txcore_sqlite.testing:SqliteHarness", "--seconds", "2", "--database", "sqlite"]
    assert 0 == chaos.main([*arguments, "--seed", "5", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ("5", []) == (report["seed"], report["problems"])
    assert Verdict(**report["verdict"]).transactions["commit"] > 0


@pytest.mark.heavy
def test_an_operator_ends_parked_halves_that_hold_their_keys(harness, tmp_path):
    """Later halves of their keys are published after them, or, after a rollback, without them."""
    fault = Planned(5.0, "kill-checker", 0.0, 0.2, 10)
    report, _ = _run(harness, tmp_path / "run", fault, seconds=6.0, release="owner", order_keys=2, heads=2)
    assert ([], {"resumed", "rolled back"}) == (report.problems, set(report.heads))
    assert any(line.startswith("heads") for line in chaos.lines_of(report))
