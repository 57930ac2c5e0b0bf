"""The first program of the documentation runs unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart_applies_each_order_once(tmp_path):
    """The program runs twice; its second run makes the second order."""
    for number in (1, 2):
        ended = subprocess.run(
            [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert ended.stderr == ""
        assert ended.stdout == f"order {number}: one parcel with a book\n"


def test_quickstart_is_short():
    """The program has at most fifty lines, comments included."""
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 50


def test_quickstart_needs_nothing_but_the_sql_extra(tmp_path):
    """The program runs without greenlet, which SQLAlchemy 2.1 needs only for asynchronous engines."""
    program = f"import runpy, sys; sys.modules['greenlet'] = None; runpy.run_path({str(PROGRAM)!r})"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "order 1: one parcel with a book\n"), ended.stderr
