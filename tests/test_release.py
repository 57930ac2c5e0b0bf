"""What a release needs: the check of its tag, and workflows that call commands which exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture
def version(tmp_path, monkeypatch):
    """The check in a tree with version 1.2.3 and the changelog that the test writes."""
    spec = importlib.util.spec_from_file_location("version", ROOT / ".ci" / "version.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n', encoding="utf-8")
    return module


@pytest.mark.parametrize(
    ("tag", "title", "count"),
    [
        ("v1.2.3", "## [1.2.3] - 2026-11-25", 0),
        ("v1.2.4", "## [1.2.3] - 2026-11-25", 1),
        ("v1.2.3", "## [1.2.3] - not released yet", 1),
        ("v1.2.3", "## [1.2.2] - 2026-11-25", 1),
        ("1.2.3", "", 2),
    ],
)
def test_a_tag_is_the_version_of_the_package_and_of_the_changelog(version, tmp_path, tag, title, count):
    """Each disagreement is one problem."""
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n{title}\n", encoding="utf-8")
    assert count == len(version.problems(tag))


@pytest.mark.parametrize("name", ["tests", "release", "advisories"])
def test_the_workflows_call_what_exists(name):
    """Targets of make, files of .ci and harnesses in the workflows exist."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    steps = [step.get("run", "") for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {word for step in steps for word in re.findall(r"\bmake ([a-z-]+)", step)} - {"python"}
    assert [] == sorted(each for each in targets if f"\n{each}:" not in makefile)
    files = {word for step in steps for word in re.findall(r"\.ci/[\w.]+", step)}
    assert [] == sorted(each for each in files if not (ROOT / each).is_file())
    for module, harness in re.findall(r"--harness (\w+\.testing):(\w+)", text):
        assert hasattr(importlib.import_module(module), harness)


def test_the_wheel_supports_the_pythons_that_are_tested():
    """The classifiers of the package are the versions of the workflow."""
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert classifiers == tests["jobs"]["check"]["strategy"]["matrix"]["python"]
