"""The manifests of `examples/deploy/kubernetes`: valid, consistent, and without needless powers."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from txcore.config import CheckerSection, HttpSection, load

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "examples" / "deploy" / "kubernetes"
NAMES = ("deployment.yaml", "sidecar.yaml")


def objects(name, kind=None):
    """Return the objects of one file, of one kind or all."""
    found = list(yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8")))
    return [each for each in found if kind in {None, each["kind"]}]


def one(name, kind):
    """Return the only object of a kind in a file."""
    (found,) = objects(name, kind)
    return found


def pod_of(name):
    """Return the pod that a file's deployment makes."""
    return one(name, "Deployment")["spec"]["template"]["spec"]


def checker_of(name):
    """Return the checker's container."""
    (found,) = [each for each in pod_of(name)["containers"] if each["name"] == "checker"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_object_fits_the_schema_of_kubernetes(name):
    """Each object is valid for the newest Kubernetes, and has no unknown field."""
    for each in objects(name):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_has_no_mistake(name, tmp_path):
    """The configuration loads after its secret files exist."""
    text = one(name, "ConfigMap")["data"]["txcore.toml"].replace("/run/secrets/txcore", str(tmp_path))
    for key in re.findall(r'_file = "[^"]*/([a-z-]+)"', text):
        (tmp_path / key).write_text("kafka://broker:9092" if "url" in key else "a secret of 16 characters")
    (tmp_path / "txcore.toml").write_text(text)
    assert ["orders"] == list(load(tmp_path / "txcore.toml", environment={}).config.groups)


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_leaves_in_order(name):
    """The grace period is longer than the checker's shutdown."""
    assert pod_of(name)["terminationGracePeriodSeconds"] > CheckerSection().shutdown_s


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_mounts_what_it_names(name):
    """Volumes and mounts agree, the selector finds the pod, and the command reads the mounted configuration."""
    pod, spec = pod_of(name), one(name, "Deployment")["spec"]
    mounts = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert all(mount["readOnly"] for each in pod["containers"] for mount in each["volumeMounts"])
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert ["checker", "--config", "/etc/txcore/txcore.toml"] == checker_of(name)["args"]


@pytest.mark.parametrize("name", NAMES)
def test_liveness_depends_on_no_broker(name):
    """The liveness probe asks `/healthz`, and no probe asks a path that does not exist."""
    checker = checker_of(name)
    assert "/healthz" in json.dumps(checker["livenessProbe"])
    assert set(re.findall(r"/(\w+z)\b", json.dumps(checker))) <= {"healthz", "readyz"}


def test_the_sidecar_leaves_the_readiness_of_its_service_alone():
    """The sidecar container has no readiness probe, so a dead broker does not make the service unready."""
    assert "readinessProbe" not in checker_of("sidecar.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_fits_the_restricted_standard(name):
    """No container runs as root, gains powers, writes into its image, or gets a token of the cluster."""
    pod = pod_of(name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in pod["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(pod)


@pytest.mark.parametrize("name", NAMES)
def test_secret_files_are_read_by_the_container_s_group_only(name):
    """A secret's files have the mode 0440, and the pod's group owns them."""
    secrets = [volume["secret"] for volume in pod_of(name)["volumes"] if "secret" in volume]
    assert [0o440] == [each["defaultMode"] for each in secrets]
    assert pod_of(name)["securityContext"]["fsGroup"] == pod_of(name)["securityContext"]["runAsGroup"]


@pytest.mark.parametrize("name", NAMES)
def test_the_network_policy_isolates_the_pod_in_both_directions(name):
    """The policy selects the pod; only its own port is open, and only DNS, broker and database are reachable."""
    policy = one(name, "NetworkPolicy")["spec"]
    deployment = one(name, "Deployment")["spec"]
    assert policy["podSelector"] == deployment["selector"]
    assert {"Ingress", "Egress"} == set(policy["policyTypes"])
    ports = {port["name"] for each in pod_of(name)["containers"] for port in each.get("ports", ())}
    assert ports == {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert {53, 5432, 9092} == {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert all(rule["to"] and rule["ports"] for rule in policy["egress"])


def test_the_open_port_is_the_endpoint_s():
    """The container's port, the annotation for Prometheus and the endpoint's default agree."""
    (port,) = checker_of("deployment.yaml")["ports"]
    template = one("deployment.yaml", "Deployment")["spec"]["template"]
    assert port["containerPort"] == HttpSection().port
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])


@pytest.mark.parametrize("name", NAMES)
def test_the_image_is_the_one_of_this_version(name):
    """The checker's image has the version of the package as its tag, and no image is `latest`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert checker_of(name)["image"] == f"txcore-checker:{project['version']}"
    assert all(re.search(r":[\d.]+$", each["image"]) for each in pod_of(name)["containers"])
