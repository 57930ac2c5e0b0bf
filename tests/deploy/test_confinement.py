"""The checker in the confinement of `examples/deploy`: no capability, and no file that it may write."""

from __future__ import annotations

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
from txcore_conformance.kit import wait_until
from txcore_conformance.required import obtained

STOP_TIME_MAX_S = 60
#: Makes every mount read-only, in a namespace of its own, and becomes the checker without capabilities.
CONFINED = """
for place in $(awk '{print $2}' /proc/self/mounts); do
    case $place in
        /proc*|/sys*|/dev*) ;;
        *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;;
    esac
done
if touch "$1/written" 2>/dev/null; then exit 99; fi
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$2" -m txcore.cli checker --config "$1/txcore.toml"
"""
CONFIGURATION = """
[http]
port = 0
[backends.main]
url = "{url}"
[groups.confined.callback]
url = "http://127.0.0.1:1/check"
"""


def can_confine():
    """Return whether this process may make a namespace of mounts and drop capabilities."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    command = ["unshare", "--mount", "mount", "-o", "remount,bind,ro", "/"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def broker():
    made = obtained("nats", brokers.nats)
    yield made
    made.remove()


@pytest.mark.skipif(not can_confine(), reason="no right to make a read-only namespace of mounts")
def test_a_confined_checker_is_ready_and_leaves_in_order(broker, tmp_path):
    """Without capabilities, and with every file system read-only, the checker becomes ready, and ends with code 0."""
    (tmp_path / "txcore.toml").write_text(CONFIGURATION.format(url=broker.url))
    log = tmp_path / "log"
    command = ["unshare", "--mount", "sh", "-uc", CONFINED, "sh", str(tmp_path), sys.executable]
    environment = os.environ | {"TXCORE_LOG__FORMAT": "json"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:

        def address():
            assert process.poll() is None, log.read_text()
            return re.search(r"http://127\.0\.0\.1:\d+", log.read_text())

        url = wait_until(address, "the address")[0]

        def is_ready():
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=20) as answer:
                    return answer.status == 200
            except urllib.error.HTTPError as error:
                error.close()
                return False

        wait_until(is_ready, "readiness")
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_TIME_MAX_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "written").exists()
