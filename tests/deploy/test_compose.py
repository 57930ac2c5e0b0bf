"""`compose.yaml` of `examples/deploy`: valid, closed to other machines, and its parts fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from txcore.config import HttpSection, load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
OWN = ("shop", "checker")


def composed():
    """Return the parsed file."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def services():
    """Return its services."""
    return composed()["services"]


@pytest.mark.parametrize("path", ["compose.yaml", "examples/deploy/compose.yaml"])
def test_a_compose_file_fits_the_schema_of_compose(path):
    """The JSON schema of the Compose specification accepts the file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_shows_a_service_a_checker_prometheus_and_grafana():
    """The four programs are there, with a broker and a database."""
    assert {"shop", "checker", "prometheus", "grafana", "kafka", "postgres"} <= set(services())


@pytest.mark.parametrize("name", OWN)
def test_our_containers_have_no_powers(name):
    """Service and checker run without root, capabilities or a writable image."""
    service = services()[name]
    assert service["read_only"] is True
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert service["image"] == f"txcore-checker:{version}"
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()


def test_no_port_is_open_to_other_machines():
    """Each published port is on loopback only, and each image has a version."""
    for service in services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert re.search(r":v?\d", service["image"])


def test_what_a_service_names_is_there():
    """Services, conditions, configs and volumes that a service names exist, and so do the files of the configs."""
    whole = composed()
    for service in services().values():
        wanted = service.get("depends_on", {})
        assert set(wanted) <= set(services())
        for name, how in wanted.items() if isinstance(wanted, dict) else ():
            assert "healthcheck" in services()[name] or how["condition"] == "service_completed_successfully"
        assert {each["source"] for each in service.get("configs", ())} <= set(whole["configs"])
        assert {each.partition(":")[0] for each in service.get("volumes", ())} <= set(whole["volumes"])
    assert all((DEPLOY / each["file"]).is_file() for each in whole["configs"].values() if "file" in each)


def test_the_checker_s_configuration_has_no_mistake(tmp_path):
    """The configuration loads with the environment of its container, and Prometheus scrapes its port."""
    (tmp_path / "txcore.toml").write_text(composed()["configs"]["checker"]["content"])
    checker = services()["checker"]
    environment = checker["environment"] | {"CONSOLE_TOKEN": "a token of 20 letters"}
    config = load(tmp_path / "txcore.toml", environment=environment).config
    assert ["shop"] == list(config.groups)
    assert checker["environment"]["DATABASE_URL"] == services()["shop"]["environment"]["DATABASE_URL"]
    scraped = yaml.safe_load(composed()["configs"]["prometheus"]["content"])
    assert [f"checker:{HttpSection().port}"] == scraped["scrape_configs"][0]["static_configs"][0]["targets"]


def test_the_console_s_token_has_no_default():
    """Compose refuses to start while the token is not set."""
    assert re.fullmatch(r"\$\{CONSOLE_TOKEN:\?[^{}$]+\}", services()["checker"]["environment"]["CONSOLE_TOKEN"])


def test_grafana_finds_its_source_and_its_dashboard():
    """The provisioned source is Prometheus's container, and the dashboard's folder holds the dashboard."""
    grafana, configs = services()["grafana"], composed()["configs"]
    (source,) = yaml.safe_load(configs["grafana-source"]["content"])["datasources"]
    (provider,) = yaml.safe_load(configs["grafana-dashboards"]["content"])["providers"]
    places = {each["source"]: each["target"] for each in grafana["configs"]}
    assert source["url"] == "http://prometheus:9090"
    assert places["dashboard"] == grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert places["dashboard"].startswith(provider["options"]["path"] + "/")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: Debian's package prometheus has it")
def test_prometheus_accepts_its_configuration(tmp_path):
    """The checker of Prometheus finds no mistake in configuration and rules."""
    (tmp_path / "prometheus.yml").write_text(composed()["configs"]["prometheus"]["content"])
    shutil.copy(DEPLOY / "alerts.yaml", tmp_path)
    command = ["promtool", "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
