"""The table of the crash kit's results."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from txcore_conformance.crash import Step, Tally


def show(tallies: Mapping[Step, Tally]) -> int:
    """Print a table of the results and return the number of steps with violations."""
    table = Table("program", "step", "kills", "violations")
    wrong = 0
    for step, tally in tallies.items():
        problems = [*tally.violations, *(["never reached"] if tally.missed and not tally.kills else [])]
        wrong += bool(problems)
        table.add_row(step.program, step.failpoint, str(tally.kills), "; ".join(problems) or "none")
    console = Console()
    console.print(table)
    kills = sum(tally.kills for tally in tallies.values())
    console.print(f"{kills} kills at {len(tallies)} steps, {wrong} steps with violations")
    return wrong
