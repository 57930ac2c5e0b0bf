"""The shipped alert rules, evaluated over time by Prometheus's own promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from txcore_conformance.required import obtained
from txcore_conformance.server_packages import find_program, install

RULES = Path(__file__).parents[2] / "examples" / "deploy" / "alerts.yaml"
PARKED = 'txcore_parked_halves{group="invoices",code="CHECKS_EXHAUSTED"}'
FIRED = {"severity": "warning", "group": "invoices"}


def obtain_promtool():
    """Return the path of promtool, from PATH or from Debian's package."""
    if find_program("promtool") is None:
        install("prometheus")
    return find_program("promtool")


@pytest.fixture(scope="module")
def promtool():
    return obtained("promtool", obtain_promtool)


@pytest.fixture
def evaluate(promtool, tmp_path):
    """Evaluate an alert over one series, a sample a minute: `evaluate(alert, series, values, {minute: labels})`.

    Labels of None mean that the alert does not fire in that minute.
    """

    def run(alert, series, values, expected):
        rules = [
            {
                "alertname": alert,
                "eval_time": f"{minute}m",
                "exp_alerts": [] if labels is None else [{"exp_labels": labels}],
            }
            for minute, labels in expected.items()
        ]
        test = {"interval": "1m", "input_series": [{"series": series, "values": values}], "alert_rule_test": rules}
        # An expected alert without annotations would have to have none: the rules are evaluated without them.
        text = yaml.safe_load(RULES.read_text(encoding="utf-8"))
        for rule in text["groups"][0]["rules"]:
            rule.pop("annotations")
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(text))
        (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
        done = subprocess.run(
            [promtool, "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
        )
        assert 0 == done.returncode, done.stdout + done.stderr

    return run


def test_prometheus_accepts_the_rules(promtool):
    """The file has no mistake, templates included."""
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param("0x10 1x120 0x5", {9: None, 11: 1, 130: 1, 133: None}, id="the first one, for two hours"),
        pytest.param("_x10 5x50", {9: None, 11: 1, 20: 1, 59: 1}, id="found by a process that has just begun"),
        pytest.param("1x10 _x4 1x20", {9: 1, 12: 1, 14: 1, 30: 1}, id="a checker that restarts"),
        pytest.param("1x10 0x20", {9: 1, 11: None, 20: None}, id="the last one is resumed"),
    ],
)
def test_an_alert_fires_while_a_half_is_parked(evaluate, values, expected):
    """It fires in the first minute, stays without a new event and over a restart, and ends with the last entry."""
    labels = FIRED | {"code": "CHECKS_EXHAUSTED"}
    evaluate("TxcoreParked", PARKED, values, {minute: labels if on else None for minute, on in expected.items()})


def test_an_alert_fires_while_a_message_of_the_table_is_parked(evaluate):
    """The message table's parked messages wait for an operator, too."""
    series = 'txcore_table_rows{group="invoices",state="parked"}'
    evaluate("TxcoreTableParked", series, "0x5 1x60 0x5", {4: None, 6: FIRED, 60: FIRED, 68: None})


def test_an_alert_fires_while_a_committed_half_waits(evaluate):
    """A committed half that its owner does not publish for minutes is reported, and no short wait is."""
    series = 'txcore_unreleased_oldest_age_seconds{group="invoices"}'
    evaluate("TxcoreUnreleased", series, "0x5 30x5 0+60x20 0x5", {5: None, 10: None, 16: FIRED, 30: FIRED, 34: None})


def test_an_alert_fires_while_the_table_is_not_drained(evaluate):
    """A message that waits for minutes is reported."""
    series = 'txcore_table_oldest_age_seconds{group="invoices"}'
    evaluate("TxcoreTableWaits", series, "0x5 0+60x20", {5: None, 12: FIRED, 20: FIRED})
