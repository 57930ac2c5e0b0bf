"""The requirements of the examples: Node.js with the example's packages, a NATS server, a checker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from txcore_conformance import brokers
from txcore_conformance.kit import Recorder, wait_until
from txcore_conformance.raw import target_only
from txcore_conformance.required import obtained

import txcore
from txcore.records import Status

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "node-service"
FILES = ("package.json", "package-lock.json", ".npmrc", "wire.mjs", "producer.mjs", "orders.mjs", "service.mjs")
DEADLINE_S = 60.0
NODE_MAJOR_MIN = 20


def missing(reason):
    """Skip with the reason, or fail if the environment requires Node.js."""
    if brokers.is_required("node"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def node():
    """Return the program of Node.js, if it is new enough."""
    program = shutil.which("node")
    if program is None or shutil.which("npm") is None:
        missing("no Node.js with npm on this machine")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.match(r"v(\d+)", version).group(1)) < NODE_MAJOR_MIN:
        missing(f"Node.js {version.strip()} is older than {NODE_MAJOR_MIN}")
    return program


@pytest.fixture(scope="session")
def service_folder(node, tmp_path_factory):
    """Return a copy of the example with the packages that `npm ci` installs."""
    folder = tmp_path_factory.mktemp("node-service")
    for name in (*FILES, "vectors.mjs"):
        shutil.copy(SERVICE / name, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"npm ci failed: {done.stderr[-500:]}")
    return folder


@pytest.fixture(scope="session")
def nats_url():
    """Start a NATS server with JetStream, and return its URL."""
    broker = obtained("nats", brokers.nats)
    yield broker.url
    broker.remove()


class Process:
    """A program that prints the `http…` address on which it listens."""

    def __init__(self, command, folder, log, environment):
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output
            )

    @property
    def url(self):
        def found():
            assert self.process.poll() is None, self.log.read_text()
            return re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())

        return wait_until(found, "the address").group(0)

    def post(self, path, body):
        """Return status and answer; None if the connection broke."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return None

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def run(tmp_path):
    """Start programs, and kill the remaining ones at the end."""
    started = []

    def start(command, folder, **environment):
        started.append(Process(command, folder, tmp_path / f"{len(started)}.log", environment))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


@pytest.fixture
def start_ready(run, python, tmp_path):
    """Start a Python program, and wait until it has printed a line "ready"."""

    def start(program, timeout_s=DEADLINE_S, **environment):
        started = run([python, str(program)], tmp_path, **environment)

        def is_ready():
            assert started.process.poll() is None, started.log.read_text()
            return "ready" in started.log.read_text().splitlines()  # a traceback may contain the word

        wait_until(is_ready, program.name, timeout_s)
        return started

    return start


@pytest.fixture
def publish():
    """Return a function that publishes numbers as txcore's targets, and some of them a second time."""

    def numbers_of(url, group, topic, numbers, *, twice_each=3):
        with txcore.connect(url) as backend:
            backend.ensure_group(group).result(30)
            items = [target_only(group, topic, b"%d" % number) for number in numbers]
            items += items[::twice_each]
            batch = Recorder(items)
            backend.release(batch)
            assert {Status.DURABLE} == {outcome.status for outcome in batch.wait(backend, 60.0)}

    return numbers_of


@pytest.fixture
def python():
    return sys.executable


@pytest.fixture(name="wait_until")
def waiting():
    return wait_until
