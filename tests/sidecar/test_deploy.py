"""The files of `examples/deploy` name existing things: metrics, paths, keys, and times that fit together."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from txcore.config import CheckerSection, load
from txcore.sidecar import life
from txcore.sidecar.metrics import METRICS

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
SUFFIXES = ("", "_bucket", "_count", "_sum")
KNOWN = {f"{metric.name}{suffix}" for metric in METRICS for suffix in SUFFIXES}
SHUTDOWN_S = CheckerSection().shutdown_s


def kubernetes(kind=None):
    """Return (file, object) of every manifest."""
    found = [
        (path.name, each)
        for path in sorted(DEPLOY.glob("kubernetes/*.yaml"))
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    return [(name, each) for name, each in found if kind in {None, each["kind"]}]


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
        "txcore_parked_total",
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


@pytest.mark.parametrize("name", ["deployment.yaml", "sidecar.yaml"])
def test_the_manifests_configurations_have_no_mistake(name, tmp_path):
    """The configuration in each manifest loads after its secret files exist."""
    (config,) = [each for file, each in kubernetes("ConfigMap") if file == name]
    text = config["data"]["txcore.toml"].replace("/run/secrets/txcore", str(tmp_path))
    for key in re.findall(r'_file = "[^"]*/([a-z-]+)"', text):
        (tmp_path / key).write_text("kafka://broker:9092" if "url" in key else "a secret of 16 characters")
    (tmp_path / "txcore.toml").write_text(text)
    assert ["orders"] == list(load(tmp_path / "txcore.toml", environment={}).config.groups)


def test_pods_may_leave_in_order_and_probes_name_paths_that_exist():
    """The grace period is longer than the shutdown; the liveness probe does not depend on a broker."""
    for _, deployment in kubernetes("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > SHUTDOWN_S
        (checker,) = [each for each in pod["containers"] if each["name"] == "checker"]
        assert ["checker", "--config", "/etc/txcore/txcore.toml"] == checker["args"]
        assert "healthz" in json.dumps(checker["livenessProbe"])
        paths = re.findall(r"/(healthz|readyz)", json.dumps(checker))
        assert set(paths) <= {"healthz", "readyz"}
        mounts = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_the_sidecar_form_leaves_the_services_readiness_alone():
    """The sidecar container has no readiness probe, so a dead broker does not make the service unready."""
    ((_, deployment),) = [each for each in kubernetes("Deployment") if each[0] == "sidecar.yaml"]
    (checker,) = [each for each in deployment["spec"]["template"]["spec"]["containers"] if each["name"] == "checker"]
    assert "readinessProbe" not in checker


def test_the_unit_gives_it_time_and_does_not_repeat_a_wrong_configuration():
    """The unit has a longer stop time-out than the checker's shutdown, and no restart after exit code 2."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / "txcore-checker.service", encoding="utf-8")
    service = parser["Service"]
    assert int(service["TimeoutStopSec"]) > SHUTDOWN_S
    assert ("notify", "2") == (service["Type"], service["RestartPreventExitStatus"])
    assert "-HUP" in service["ExecReload"]
    assert 4 == life.NOT_DRAINED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path):
    """The verifier of systemd finds no mistake."""
    text = (DEPLOY / "txcore-checker.service").read_text(encoding="utf-8")
    unit = tmp_path / "txcore-checker.service"
    unit.write_text(text.replace("/opt/txcore/bin/txcore", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


def test_dockerfile_copies_the_files_of_the_build():
    """The Dockerfile copies each folder of the wheel and each file that its metadata names; its extras exist."""
    root = DEPLOY.parents[1]
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    copied = {word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    needed = {path.split("/")[0] for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed | {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]} <= copied
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    assert '"txcore"' in text.partition("ENTRYPOINT")[2]
