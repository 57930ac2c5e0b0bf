"""`make sbom` lists the packages of the image, as CycloneDX."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.+?))? \\$", re.MULTILINE)
TIME_MAX_S = 280
#: Runs in the tools' environment, which has the schemas of CycloneDX.
VALIDATE = """
import json, sys
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
text = open(sys.argv[1]).read()
version = json.loads(text)["specVersion"]
fault = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.from_version(version)).validate_str(text)
print(fault or f"valid {version}")
"""


def pinned():
    """Return the versions of the image's packages on this platform by their names."""
    found = PINNED.findall((ROOT / "locks" / "image.txt").read_text(encoding="utf-8"))
    return {
        canonicalize_name(name): version for name, version, marker in found if not marker or Marker(marker).evaluate()
    }


def test_the_sbom_lists_the_image_s_packages(tmp_path):
    """`make sbom` writes a valid CycloneDX file with each package of the lock, its version, and its licence."""
    path = tmp_path / "txcore.cdx.json"
    places = [f"SBOM={path}", f"TOOLS={tmp_path / 'tools'}", f"IMAGE={tmp_path / 'image'}", f"VENV={sys.prefix}"]
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "PYTHONPATH"}}
    subprocess.run(["make", "sbom", *places], cwd=ROOT, env=environment, check=True, timeout=TIME_MAX_S)
    whole = json.loads(path.read_text(encoding="utf-8"))
    python = tmp_path / "tools" / "bin" / "python"
    done = subprocess.run([python, "-c", VALIDATE, path], capture_output=True, text=True, check=False)
    assert (0, "valid 1.6\n") == (done.returncode, done.stdout), done.stderr
    listed = {canonicalize_name(each["name"]): each for each in whole["components"]}
    assert pinned() == {name: each["version"] for name, each in listed.items()}
    assert all(each["purl"] == f"pkg:pypi/{name}@{each['version']}" for name, each in listed.items())
    assert all(each["licenses"] for each in listed.values())
    component = whole["metadata"]["component"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [project["name"], project["version"]] == [component["name"], component["version"]]
