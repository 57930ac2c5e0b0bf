"""The example of crash testing: pytest finds its bug with a readable report, and the corrected version passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "crash-testing"
PAGE = ROOT / "docs" / "crash-testing.md"


@pytest.fixture
def run(outside):
    """Run pytest as a user of the example does."""

    def pytest_with(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=FOLDER,
            env=outside,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    return pytest_with


def test_example_passes_unchanged(run):
    """Both tests of the example pass."""
    status, output = run("-q")
    assert 0 == status, output
    assert "2 passed" in output


def test_report_names_the_lost_messages(run):
    """The command reports each step and its effect, as the page shows it."""
    status, output = run("--txcore-crash", "crashes:WithABug")
    assert 1 == status, output
    assert "1 failed" in output.splitlines()[-1]
    shown = PAGE.read_text(encoding="utf-8").partition("\nWithABug: killed")[2].partition("```")[0]
    lines = [line for line in f"WithABug: killed{shown}".splitlines() if line.strip() not in {"", "..."}]
    assert [] == [line for line in lines if line not in output.splitlines()]


def test_the_corrected_version_passes_by_command(run):
    """The command reports no failure."""
    status, output = run("--txcore-crash", "crashes:PlaceOrder", "-q")
    assert 0 == status, output
    assert "1 passed" in output


def test_the_class_of_the_page_passes(run, tmp_path):
    """The class of the page is a test when the page's two first programs are pasted into files."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, block in zip(("conftest.py", "test_page.py"), blocks, strict=False):
        (tmp_path / name).write_text(block, encoding="utf-8")
    status, output = run("-q", str(tmp_path / "test_page.py"))
    assert 0 == status, output
    assert "1 passed" in output
