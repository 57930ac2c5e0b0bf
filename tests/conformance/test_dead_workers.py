"""A test run whose worker dies reports the cause of its death."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.parametrize(
    ("death", "expected"),
    [
        ("faulthandler._sigsegv()", ["ended by SIGSEGV", "Fatal Python error: Segmentation fault", "in test_it"]),
        ("os.kill(os.getpid(), 9)", ["ended by SIGKILL"]),
        ("os._exit(3)", ["ended with status 3"]),
    ],
)
def test_the_report_contains_the_cause_of_a_workers_death(tmp_path, outside, death, expected):
    """The report has the signal, with the stack of a fault, or the exit status."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_it.py").write_text(f"import faulthandler, os\ndef test_it():\n    {death}\n", encoding="utf-8")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "xdist",
            "-n",
            "1",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            tmp_path,
        ],
        env=outside,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    failures = run.stdout[run.stdout.index("FAILURES") :]
    assert [] == [text for text in expected if text not in failures], run.stdout
    assert 1 == run.returncode
