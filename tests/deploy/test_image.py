"""The Dockerfile of `examples/deploy`: what it copies and pins, and its commands run outside a container."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "examples" / "deploy" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def instructions(name):
    """Return the arguments of one kind of instruction, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text(encoding="utf-8"))
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def copied():
    """Return the files and folders that come from the source tree."""
    return {word for line in instructions("COPY") if not line.startswith("--") for word in line.split()[:-1]}


def test_it_copies_the_files_of_the_build():
    """The Dockerfile copies each folder of the wheel, each file that its metadata names, and the locks."""
    project = PROJECT["project"]
    needed = {path.split("/")[0] for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed | {"pyproject.toml", "locks", project["readme"], *project["license-files"]} == copied()


def test_the_container_runs_without_root():
    """The last user is a number above zero, as Kubernetes must be able to see that it is not root."""
    user, _, group = instructions("USER")[-1].partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_process_is_the_first_one_and_gets_signals():
    """The entry point is no shell."""
    assert json.loads(instructions("ENTRYPOINT")[-1]) == ["txcore"]


def test_every_package_is_pinned_by_its_hash():
    """Each command of pip that may ask an index takes packages with their hashes only."""
    steps = [
        step for line in instructions("RUN") for step in line.split("&&") if re.search(r"\bpip (install|wheel)\b", step)
    ]
    assert steps
    assert all("--require-hashes" in step or "--no-index" in step for step in steps)
    assert all("--no-build-isolation" in step for step in steps if " wheel " in step)


@pytest.mark.heavy
def test_its_commands_build_an_environment_that_works(tmp_path):
    """The commands of the build stage, in folders of this test, install a checker with every driver."""
    source = tmp_path / "src"
    source.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for each in copied():
        subprocess.run(["cp", "-r", ROOT / each, source], check=True)
    for line in instructions("RUN"):
        if "useradd" not in line:
            command = line.replace("/opt/", f"{tmp_path}/").replace("/wheels", f"{tmp_path}/wheels")
            subprocess.run(["sh", "-euc", command], cwd=source, env=environment, check=True)
    python = tmp_path / "txcore" / "bin" / "python"
    drivers = "import confluent_kafka, jinja2, nats, nkeys, pika, psycopg, pymysql, uvicorn"
    subprocess.run([python, "-I", "-c", drivers], check=True)
    shown = subprocess.run([python.with_name("txcore"), "--version"], capture_output=True, text=True, check=True)
    assert PROJECT["project"]["version"] in shown.stdout
