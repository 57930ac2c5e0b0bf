"""The alert rules and the dashboard of `examples/deploy` name metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from txcore.sidecar.metrics import METRICS

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
SUFFIXES = ("", "_bucket", "_count", "_sum")
KNOWN = {f"{metric.name}{suffix}" for metric in METRICS for suffix in SUFFIXES}


def alerts():
    """Return every alert rule."""
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def dashboard():
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))


def expressions():
    """Return every PromQL expression of alerts and dashboard."""
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in alerts()] + panels


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_metrics_and_labels_that_exist(expression):
    """Each metric and label in an expression of the alerts and the dashboard exists in the table of `metrics`."""
    for name, labels in re.findall(r"(txcore_\w+)(?:\{([^}]*)\})?", expression):
        assert name in KNOWN
        metric = next(each for each in METRICS if name.startswith(each.name))
        assert set(re.findall(r"(\w+)=", labels)) <= set(metric.labels)
    assert expression.count("(") == expression.count(")")


def test_every_metric_of_trouble_has_an_alert():
    """An operator with the alerts alone misses no event that needs a person."""
    text = " ".join(rule["expr"] for rule in alerts())
    for name in (
        "txcore_pending_oldest_age_seconds",
        "txcore_unreleased_oldest_age_seconds",
        "txcore_parked_halves",
        "txcore_table_rows",
        "txcore_table_oldest_age_seconds",
        "txcore_op_conflicts_total",
        "txcore_poison_total",
        "txcore_broker_errors_total",
        "txcore_broker_up",
        "txcore_failing_partitions",
        "txcore_relay_up",
        "txcore_source_up",
        "txcore_checkpoint_age_seconds",
        "txcore_loop_lag_seconds",
        "txcore_partitions",
        "txcore_takeovers_total",
        "txcore_wrong_listener_total",
        "txcore_wrong_database_total",
        "txcore_blocked_partitions",
    ):
        assert name in text


def test_alerts_are_complete():
    """Each alert has a severity, a summary and its own name; conflicts are critical."""
    rules = {rule["alert"]: rule for rule in alerts()}
    assert len(rules) == len(alerts())
    for rule in rules.values():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
    assert "critical" == rules["TxcoreConflict"]["labels"]["severity"]


def test_the_dashboard_fits_its_grid():
    """No panel extends beyond the 24 columns or covers another, and each has its own id."""
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert set() == cells & taken
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: Debian's package prometheus has it")
def test_prometheus_accepts_the_alert_rules():
    """The checker of Prometheus finds no mistake in the rules."""
    command = ["promtool", "check", "rules", DEPLOY / "alerts.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
