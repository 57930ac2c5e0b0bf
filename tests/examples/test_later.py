"""The example of a delayed message that a payment cancels runs unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "later" / "unpaid.py"


def test_order_is_closed_unless_it_is_paid_in_time(tmp_path):
    """The paid order's timer never fires, the other one does, and a payment after it is refused."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        "payment for the book: CANCELLED",
        "closed unpaid: pen",
        "payment for the pen: TOO_LATE",
    ]
