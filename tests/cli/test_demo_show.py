"""The demo's screen: every line fits 80 columns, also those about what was not planned."""

from __future__ import annotations

import io

from rich.console import Console
from txcore_conformance.demo import show
from txcore_conformance.demo.supervisor import Progress


def test_failure_of_a_process_fits_the_screen():
    """A process that failed by itself has a long text; the screen wraps it."""
    console = Console(file=io.StringIO(), width=80)
    progress = Progress()
    progress.failures.append("worker 3: " + "sqlite3.OperationalError: database is locked " * 30)
    show._show_trouble(console, progress)
    lines = console.file.getvalue().splitlines()
    assert "a process failed by itself" in lines[0]
    assert max(map(len, lines)) <= 80
