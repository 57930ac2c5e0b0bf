"""The tables of results: their names and columns. None is partitioned: they are small, and compacted by age.

A column with a name that SQL reserves, such as `group` or `end`, would need quotes in every query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

FINDINGS: Final = "findings"
HOURS: Final = "verdicts_by_hour"
COVERAGE: Final = "coverage"
RUNS: Final = "runs"
KEY: Final = ("transaction_id", "verdict", "producer_group")
"""Columns that name a finding."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = pa.list_(pa.string())


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    types: Mapping[str, Any] = {"text": pa.string(), "texts": _TEXTS, "number": pa.int64(), "time": _TIME}
    return pa.schema([(name, types[kind]) for kind, names in columns.items() for name in names.split()])


SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    FINDINGS: _schema(
        {
            "text": "transaction_id verdict producer_group broker severity topic acknowledged_by note",
            "texts": "places details",
            "number": "bucket opened_run seen_run closed_run",
            "time": "born_at opened_at seen_at closed_at acknowledged_at",
        }
    ),
    HOURS: _schema(
        {
            "text": "producer_group broker verdict severity",
            "number": "bucket count transactions run",
            "time": "hour cut_at",
        }
    ),
    COVERAGE: _schema(
        {
            "text": "broker log name producer_group gap",
            "number": "run partition from_position to_position gone_before",
            "time": "cut_at",
        }
    ),
    RUNS: _schema(
        {
            "text": "mode started_by host version report_sha256",
            "number": "run exit_code records transactions halves commits rollbacks pending targets violations warnings "
            "gaps",
            "time": "cut_at since_at until_at",
        }
    ),
}
"""The columns of each table, in the order in which a run writes the tables: `runs` last, as its mark that all are."""
