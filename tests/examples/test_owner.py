"""The example of a message that a checker in the same process publishes runs unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "owner" / "embedded.py"


def test_order_is_published_by_the_embedded_checker(tmp_path):
    """The end is accepted before anything is visible, and a checker in the process publishes the message."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        "end: ACCEPTED",
        "visible without a checker: []",
        "published by the owner: book",
    ]
