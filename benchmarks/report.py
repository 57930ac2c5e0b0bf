"""From samples to figures, to a table of at most 100 columns, and to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.drive import Sample
from benchmarks.rows import BATCH, Row

WIDTH: Final = 100


def figures(rows: Sequence[Row], samples: Mapping[str, Sequence[Sample]]) -> list[dict[str, Any]]:
    """Return one record per row; a ratio is the median over rounds of quotients within one round."""
    records = []
    for row in rows:
        own = samples[row.key]
        rates = [sample.per_s for sample in own]
        yard = samples[row.against] if row.against else ()
        ratios = [mine.per_s / other.per_s for mine, other in zip(own, yard, strict=False)]
        records.append(
            {
                "key": row.key,
                "broker": row.broker,
                "style": row.style,
                "driver": row.driver,
                "size": row.size,
                "rounds": len(own),
                "call_count": sum(len(sample.latencies_s) for sample in own),
                "transactions_per_s": {"min": min(rates), "median": median(rates), "max": max(rates), "rounds": rates},
                "latency_p50_ms": median(sample.percentile_ms(50) for sample in own),
                "latency_p99_ms": median(sample.percentile_ms(99) for sample in own),
                "against": row.against,
                "ratio": median(ratios) if ratios else None,
            }
        )
    return records


def print_table(records: Sequence[Mapping[str, Any]], head: str, console: Console | None = None) -> None:
    """Print *head* and the table; at most 100 columns wide, also where the terminal is wider."""
    console = console or Console(width=WIDTH, highlight=False)
    console.print(head, markup=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for name, justify in (
        ("broker", "left"),
        ("style", "left"),
        ("load", "right"),
        ("tx/s\nmin", "right"),
        ("tx/s\nmedian", "right"),
        ("tx/s\nmax", "right"),
        ("p50\nms", "right"),
        ("p99\nms", "right"),
        ("ratio", "right"),
        ("to", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type] # rich's literal
    before = None
    for record in records:
        if before not in {None, record["broker"]}:
            table.add_row()
        before = record["broker"]
        rates = record["transactions_per_s"]
        table.add_row(
            record["broker"],
            record["style"],
            _load(record["driver"], record["size"]),
            *(f"{rates[name]:,.0f}" for name in ("min", "median", "max")),
            _milliseconds(record["latency_p50_ms"]),
            _milliseconds(record["latency_p99_ms"]),
            "" if record["ratio"] is None else f"{record['ratio']:.2f}",
            _short(record["against"]),
        )
    console.print(table)


def _load(driver: str, size: int) -> str:
    """Return the concurrency in words."""
    if driver == BATCH:
        return f"batch {size:,}"
    return f"{size:,} {driver if size > 1 else driver.removesuffix('s')}"


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _short(against: str | None) -> str:
    """Return a yardstick's name as the table has room for it."""
    if against is None:
        return "yardstick"
    _, style, _, size = against.split("/")
    return {"raw halves": f"halves x{size}", "business only": "business"}.get(style, style)
