"""The example of messages with an order key runs unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "order" / "account.py"


def test_changes_of_each_account_are_published_in_the_order_of_their_commits(tmp_path):
    """Both accounts' messages come in the order in which the database committed the changes."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        'anna {"account":"anna","cents":100} {"account":"anna","cents":250} {"account":"anna","cents":75}',
        'ben {"account":"ben","cents":200} {"account":"ben","cents":500} {"account":"ben","cents":150}',
    ]
