"""The unit of `examples/deploy`: times that fit together, and an exposure that systemd itself measures."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from txcore.config import CheckerSection
from txcore.sidecar import life

UNIT = Path(__file__).parents[2] / "examples" / "deploy" / "txcore-checker.service"
EXPOSURE_MAX = 2.9
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


@pytest.fixture
def unit(tmp_path):
    """The unit with a program that exists on this machine."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/txcore/bin/txcore", "/bin/true"))
    return copy


def test_the_unit_gives_it_time_and_does_not_repeat_a_wrong_configuration():
    """The unit has a longer stop time-out than the checker's shutdown, and no restart after exit code 2."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT, encoding="utf-8")
    service = parser["Service"]
    assert int(service["TimeoutStopSec"]) > CheckerSection().shutdown_s
    assert ("notify", "2") == (service["Type"], service["RestartPreventExitStatus"])
    assert "-HUP" in service["ExecReload"]
    assert 4 == life.NOT_DRAINED


@needs_systemd
def test_systemd_understands_the_unit(unit):
    """The verifier of systemd finds no mistake."""
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


@needs_systemd
def test_the_unit_has_an_exposure_below_3(unit):
    """The exposure level of `systemd-analyze security` is below 3.0; without the unit's limits it is above 9."""
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert level, done.stdout + done.stderr
    assert float(level[1]) <= EXPOSURE_MAX
