"""The example of crash testing: its bug is found with a readable report, the corrected version passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "crash-testing"


@pytest.fixture
def run():
    """Run pytest as a user of the example does."""

    def pytest_with(*arguments):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    return pytest_with


def test_the_example_passes_as_it_stands(run):
    """Both of its tests."""
    status, output = run("-q")
    assert 0 == status, output
    assert "2 passed" in output


def test_the_report_says_what_would_have_been_lost(run):
    """By command, without a test: the step, and what is left behind it."""
    status, output = run("--txcore-crash", "crashes:WithABug")
    assert 1 == status, output
    assert "LOST order 1: it is in the database, and no message will ever tell" in output
    lines = [line.strip() for line in output.splitlines()]
    assert any(line.startswith("! after database COMMIT:1") for line in lines)
    assert any(line.startswith("no kill") and line.endswith("both: order 1") for line in lines)
    assert "1 failed" in lines[-1]


def test_the_corrected_version_passes_by_command(run):
    """Nothing to report."""
    status, output = run("--txcore-crash", "crashes:PlaceOrder", "-q")
    assert 0 == status, output
    assert "1 passed" in output


def test_the_class_of_the_page_passes(run, tmp_path):
    """Pasted into a file, it is a test."""
    page = (FOLDER.parents[1] / "docs" / "crash-testing.md").read_text(encoding="utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_page.py").write_text(block, encoding="utf-8")
    status, output = run("-q", str(tmp_path / "test_page.py"))
    assert 0 == status, output
    assert "1 passed" in output
