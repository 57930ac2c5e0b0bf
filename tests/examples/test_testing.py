"""The example of the test kit passes when it is run as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "testing"


def test_example_passes_unchanged():
    """All four tests of the example pass."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
