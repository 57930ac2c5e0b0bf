"""The report: figures of the samples, a table of at most 128 columns, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.drive import Sample, percentile_ms
from benchmarks.place import BODY_SIZE
from benchmarks.rows import BATCH, RAW, Row

WIDTH: Final = 128


def figures(rows: Sequence[Row], samples: Mapping[str, Sequence[Sample]]) -> list[dict[str, Any]]:
    """Return one record per row; a ratio is the median over rounds of quotients within one round."""
    records = []
    for row in rows:
        own = samples[row.key]
        rates = [sample.per_s for sample in own]
        yard = samples[row.against] if row.against else ()
        pairs = list(zip(own, yard, strict=False))
        count = sum(sample.count for sample in own)
        records.append(
            {
                "key": row.key,
                "broker": row.broker,
                "style": row.style,
                "driver": row.driver,
                "size": row.size,
                "body_size": row.body_size,
                "rounds": len(own),
                "call_count": sum(len(sample.latencies_s) for sample in own),
                "transactions_per_s": {"min": min(rates), "median": median(rates), "max": max(rates), "rounds": rates},
                "latency_p50_ms": median(sample.percentile_ms(50) for sample in own),
                "latency_p99_ms": median(sample.percentile_ms(99) for sample in own),
                "own_cpu_us": sum(sample.own_cpu_s for sample in own) / count * 1e6,
                "driver_cpu_us": sum(sample.driver_cpu_s for sample in own) / count * 1e6,
                "broker_cpu_us": sum(sample.broker_cpu_s for sample in own) / count * 1e6,
                "database_cpu_us": sum(sample.database_cpu_s for sample in own) / count * 1e6,
                "by_round": [_round(sample) for sample in own],
                "steps_ms": _steps(own),
                "against": row.against,
                "ratio": median(mine.per_s / other.per_s for mine, other in pairs) if pairs else None,
                "latency_p50_ratio": median(mine.percentile_ms(50) / other.percentile_ms(50) for mine, other in pairs)
                if pairs
                else None,
            }
        )
    return records


def print_table(records: Sequence[Mapping[str, Any]], head: str, console: Console | None = None) -> None:
    """Print *head* and the tables; no wider than `WIDTH`, also where the terminal is wider."""
    console = console or Console(width=WIDTH, highlight=False)
    console.print(head, markup=False)
    rates = _table("broker", "style", "load", ">tx/s\nmin", ">tx/s\nmedian", ">tx/s\nmax", ">p50\nms", ">p99\nms")
    for name in ("CPU us own/\ndriver/\nbroker/SQL", "ratio\ntx/s", "ratio\np50"):
        rates.add_column(name, justify="right", no_wrap=True)
    rates.add_column("to", no_wrap=True)
    before = None
    for record in records:
        if before not in {None, record["broker"]}:
            rates.add_row()
        before = record["broker"]
        per_s = record["transactions_per_s"]
        rates.add_row(
            record["broker"],
            _style(record),
            _load(record["driver"], record["size"]),
            *(f"{per_s[name]:,.0f}" for name in ("min", "median", "max")),
            _milliseconds(record["latency_p50_ms"]),
            _milliseconds(record["latency_p99_ms"]),
            "/".join(f"{record[f'{name}_cpu_us']:,.0f}" for name in ("own", "driver", "broker", "database")),
            "" if record["ratio"] is None else f"{record['ratio']:.2f}",
            f"{record['latency_p50_ratio']:.2f}" if record["ratio"] is not None and record["size"] == 1 else "",
            _short(record["against"]),
        )
    console.print(rates)
    steps = _table("broker", "style", "load", "step", ">p50\nms", ">p99\nms")
    for record in records:
        for name, values in record["steps_ms"].items():
            load = _load(record["driver"], record["size"])
            percentiles = (_milliseconds(values["p50"]), _milliseconds(values["p99"]))
            steps.add_row(record["broker"], _style(record), load, name, *percentiles)
    if steps.row_count:
        console.print(steps)


def print_profiles(profiles: Mapping[str, Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the processor time of each row by kind of code, and the functions that used most."""
    console = console or Console(width=WIDTH, highlight=False)
    for key, profile in profiles.items():
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in sorted(profile["shares"].items()))
        console.print(f"\n{key}: {profile['cpu_s']:.1f} s of CPU: {shares}", markup=False)
        for each in profile["top"]:
            console.print(f"  {each['share']:6.1%}  {each['kind']:6.6}  {each['function']}", markup=False)


def _table(*names: str) -> Table:
    """Return an empty table; a name after ">" is that of a column of numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for name in names:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    return table


def _round(sample: Sample) -> dict[str, float]:
    """Return the figures of one round, for ratios that are taken within a round."""
    return {
        "per_s": sample.per_s,
        "latency_p50_ms": sample.percentile_ms(50),
        "own_cpu_us": sample.own_cpu_s / sample.count * 1e6,
        "driver_cpu_us": sample.driver_cpu_s / sample.count * 1e6,
        "broker_cpu_us": sample.broker_cpu_s / sample.count * 1e6,
        "database_cpu_us": sample.database_cpu_s / sample.count * 1e6,
    }


def _steps(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Return the percentiles of each step, medians of the rounds."""
    return {
        name: {
            f"p{percent}": median(percentile_ms(sample.steps_s[name], percent) for sample in samples)
            for percent in (50, 99)
        }
        for name in samples[0].steps_s
    }


def _style(record: Mapping[str, Any]) -> str:
    return str(record["style"]) + ("" if record["body_size"] == BODY_SIZE else f", {record['body_size']} B")


def _load(driver: str, size: int) -> str:
    """Return the concurrency in words."""
    if driver == BATCH:
        return f"batch {size:,}"
    return f"{size:,} {driver if size > 1 else driver.removesuffix('s')}"


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _short(against: str | None) -> str:
    """Return the short form of a yardstick's name for the table."""
    if against is None:
        return ""
    _, style, driver, size, _ = against.split("/")
    if style == "raw halves":
        return f"halves x{size}"
    return f"{RAW}, pipelined" if (style, driver) == (RAW, BATCH) else style.partition(",")[0]
