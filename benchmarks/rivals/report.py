"""The report: one table of at most 100 columns from the rounds' figures, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.rivals.system import Figures

WIDTH: Final = 100


def records_of(rounds: Mapping[str, Sequence[Figures]]) -> list[dict[str, Any]]:
    """Return one record for each row of each system."""
    records = []
    for system, figures in rounds.items():
        for row in dict.fromkeys(row for each in figures for row in each):
            values = [each[row] for each in figures if row in each]
            records.append(
                {
                    "system": system,
                    "measure": row.measure,
                    "load": row.load,
                    "unit": row.unit,
                    "min": min(values),
                    "median": median(values),
                    "max": max(values),
                    "rounds": values,
                }
            )
    return records


def print_table(records: Sequence[Mapping[str, Any]], head: str) -> None:
    """Print *head* and the table, a block for each system."""
    console = Console(width=WIDTH, highlight=False)
    console.print(head, markup=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for name in ("measure", "load", "min", "median", "max", "unit"):
        table.add_column(name, justify="right" if name in {"min", "median", "max"} else "left", no_wrap=True)
    before = None
    for record in records:
        if record["system"] != before:
            if before is not None:
                table.add_row()
            before = record["system"]
            table.add_row(before)
        cells = [_figure(record[name], record["unit"]) for name in ("min", "median", "max")]
        table.add_row(f"  {record['measure']}", record["load"], *cells, record["unit"])
    console.print(table)


def _figure(value: float, unit: str) -> str:
    return f"{value:,.2f}" if unit in {"ms", "s"} and value < 100 else f"{value:,.0f}"
