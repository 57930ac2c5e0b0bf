"""The lock files: complete, with hashes, in step with `pyproject.toml`, and free of a registry's address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS, GROUPS = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
ALWAYS = PYPROJECT["project"]["dependencies"]
NAMES = ("build", "dev", "image", "tools")
PINNED = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+?)(?: ; (?P<marker>.+?))?(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)$"
)


def pins(name):
    """Return the pinned packages of a lock file by their names."""
    text = re.sub(r" *\\\n\s*", " ", (LOCKS / f"{name}.txt").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    found = [PINNED.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {canonicalize_name(each["name"]): each for each in found}


def required(*extras):
    """Return what the package requires with some of its extras, those of its extras included."""
    wanted, seen, found = list(extras), set(), [Requirement(each) for each in ALWAYS]
    while wanted:
        extra = wanted.pop()
        if extra not in seen:
            seen.add(extra)
            for each in map(Requirement, EXTRAS[extra]):
                wanted += each.extras if each.name == "txcore" else ()
                found += [] if each.name == "txcore" else [each]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_a_version_with_hashes(name):
    """Each line pins one version with at least one hash; the file says how it was made, and names no registry."""
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8")
    assert pins(name)
    assert "make lock" in text.splitlines()[1]
    assert "://" not in text
    assert "index" not in re.findall(r"^--(\S+)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "requirements"),
    [
        ("image", required("all")),
        ("dev", [*required("dev"), *map(Requirement, GROUPS["build"])]),
        ("build", [*map(Requirement, GROUPS["build"]), *map(Requirement, PYPROJECT["build-system"]["requires"])]),
        ("tools", [*map(Requirement, GROUPS["tools"])]),
    ],
    ids=["image", "dev", "build", "tools"],
)
def test_a_lock_is_in_step_with_the_project(name, requirements):
    """Each package that the project requires is pinned to a version in its range: else `make lock` was forgotten."""
    pinned = pins(name)
    stale = [
        str(each)
        for each in requirements
        if (pin := pinned.get(canonicalize_name(each.name))) is None or pin["version"] not in each.specifier
    ]
    assert stale == []


def test_image_and_ci_install_the_same_versions():
    """CI tests the versions that the image holds."""
    image, dev = pins("image"), pins("dev")
    assert {name: pin["version"] for name, pin in image.items()} == {name: dev[name]["version"] for name in image}
