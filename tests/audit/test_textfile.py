"""What a run leaves for a monitoring system: a file of metrics, and what differs from the runs before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from txcore_spark.command import Wish, run
from txcore_spark.textfile import METRICS, write_metrics
from txcore_spark.trend import RUNS, differences

from txcore.audit.verdicts import Verdict
from txcore.config import ConfigFileError, load
from txcore.errors import ConfigError, UsageError

ALERTS = Path(__file__).parents[2] / "examples" / "deploy" / "audit-alerts.yaml"


def manifest(**changes):
    """Return the parts of a run's manifest that are read here."""
    plain = {
        "mode": "incremental",
        "exit_code": 2,
        "counts": {"LOST": 3, "DUP_OP": 5},
        "severities": {"LOST": "violation", "DUP_OP": "info"},
        "gaps": [],
        "records": 1_000,
        "now_ms": 1_795_000_000_500,
        "transactions": [{"commits": 40}, {"commits": 2}],
    }
    return plain | changes


def values(path):
    """Return the file's samples by name and labels."""
    families = text_string_to_metric_families(path.read_text(encoding="utf-8"))
    return {(each.name, *sorted(each.labels.values())): each.value for family in families for each in family.samples}


def test_file_has_the_result_of_the_run(tmp_path):
    """Exit code, times, gaps and a sample for every verdict, those without findings included."""
    path = tmp_path / "txcore.prom"
    write_metrics(str(path), manifest(gaps=[{}]), 1_795_000_001_000)
    found = values(path)
    assert 2 == found["txcore_audit_exit_code",]
    assert 1_795_000_001 == found["txcore_audit_ended_seconds",]
    assert 1_795_000_000.5 == found["txcore_audit_judged_to_seconds",]
    assert (1, 1_000) == (found["txcore_audit_gaps",], found["txcore_audit_records",])
    assert 3 == found["txcore_audit_findings", "LOST", "violation"]
    assert 0 == found["txcore_audit_findings", "LEAK", "violation"]
    assert len(Verdict) == sum(name == "txcore_audit_findings" for name, *_ in found)


def test_run_that_cannot_begin_leaves_no_older_pass(bed, tmp_path):
    """An engine that is missing, or a store that it cannot use, is a run that failed."""
    path = tmp_path / "txcore.prom"
    text = f'"{path}"'
    assert 0 == run(bed.loaded(textfile=text), Wish(mode="once", engine="duckdb"))
    assert 0 == values(path)["txcore_audit_exit_code",]
    loaded = load(bed.config(textfile=text), settings=["audit.store=carrier-pigeon://coop/audit"], environment={})
    with pytest.raises(UsageError, match="carrier-pigeon://coop/audit' cannot be opened"):
        run(loaded, Wish(mode="once", engine="duckdb"))
    assert 4 == values(path)["txcore_audit_exit_code",]
    with pytest.raises(UsageError, match="--mode once"):
        run(bed.loaded(textfile=text), Wish(since="2026-01-01", engine="duckdb"))


def test_file_of_a_failed_run_says_so_and_keeps_no_old_number(tmp_path):
    """A run without a manifest leaves its exit code and its time alone."""
    path = tmp_path / "txcore.prom"
    write_metrics(str(path), manifest(), 1_000)
    write_metrics(str(path), None, 2_000)
    assert {("txcore_audit_exit_code",): 4, ("txcore_audit_ended_seconds",): 2} == values(path)
    assert [path] == list(tmp_path.iterdir())


def test_each_run_of_the_command_leaves_its_result_and_says_what_differs(bed, tmp_path, capsys):
    """The second run finds a leak that the first one did not, and a run that fails writes its exit code."""
    path = tmp_path / "txcore.prom"
    loaded = bed.loaded(textfile=f'"{path}"')
    bed.write(*[None] * 4)
    assert 0 == run(loaded, Wish(engine="duckdb"))
    assert 0 == values(path)["txcore_audit_exit_code",]
    bed.write(Verdict.LEAK)
    assert 2 == run(loaded, Wish(engine="duckdb"))
    assert 1 == values(path)["txcore_audit_findings", "LEAK", "violation"]
    assert "trend: 1 LEAK; the run before had 0" in capsys.readouterr().out
    (bed.folder / "broker.db").rename(bed.folder / "gone.db")
    (bed.folder / "broker.db").mkdir()
    assert run(loaded, Wish(engine="duckdb")) == values(path)["txcore_audit_exit_code",]


def test_file_that_nothing_would_read_is_refused_before_the_run(bed):
    """The node exporter reads files with one ending only, so a configuration with another one cannot be loaded."""
    with pytest.raises(ConfigFileError, match=r"audit\.textfile: 'txcore\.txt' must end with \.prom"):
        bed.loaded(textfile='"txcore.txt"')


def test_folder_that_is_not_there_is_said_in_a_sentence(tmp_path):
    """A file that cannot be written is named with its setting."""
    with pytest.raises(ConfigError, match="cannot be written"):
        write_metrics(str(tmp_path / "missing" / "txcore.prom"), None, 0)


def test_alerts_name_metrics_that_exist():
    """Each metric of the alerts is one that a run writes, and each alert has a summary and a severity."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert set(re.findall(r"txcore_\w+", rule["expr"])) <= set(METRICS)
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_run_like_those_before_has_no_trend():
    """Numbers within what the runs before had are not mentioned."""
    before = [manifest(counts={"LOST": count, "DUP_OP": 3 + count}) for count in (1, 3)]
    assert [] == differences(manifest(), before)
    assert [] == differences(manifest(), [])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"counts": {"LOST": 4, "DUP_OP": 5}}, "trend: 4 LOST; the 7 runs before had 3"),
        ({"counts": {"LOST": 3, "DUP_OP": 5, "LEAK": 1}}, "trend: 1 LEAK; the 7 runs before had 0"),
        ({"counts": {"LOST": 3}}, "trend: 0 DUP_OP; the 7 runs before had 5"),
        ({"records": 2_001}, "trend: 2,001 records read; the 7 runs before had 1,000"),
        ({"records": 499}, "trend: 499 records read; the 7 runs before had 1,000"),
        ({"transactions": []}, "trend: 0 committed transactions; the 7 runs before had 42"),
    ],
)
def test_run_unlike_those_before_says_in_what(change, sentence):
    """A number outside of what each of the last seven had is a sentence; older ones do not count."""
    before = [manifest(counts={"LOST": 99, "LEAK": 9}), *[manifest()] * RUNS]
    assert [sentence] == differences(manifest(**change), before)


def test_runs_of_another_mode_are_not_compared():
    """A run over everything reads more than a step."""
    assert [] == differences(manifest(records=10), [manifest(mode="once")] * 3)
