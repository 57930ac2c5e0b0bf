"""The examples of tests pass when they are run as their users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("folder", ["testing", "fastapi-service"])
def test_example_passes_unchanged(folder, outside):
    """All four tests of the example pass; those of FastAPI kill the service at every step."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "anyio"]
    done = subprocess.run(
        command, cwd=EXAMPLES / folder, env=outside, capture_output=True, text=True, check=False, timeout=300
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
