"""The engines that an audit can run on, by name; the packages that bring them are extras."""

from __future__ import annotations

from typing import Final

DUCKDB: Final = "duckdb"
SPARK: Final = "spark"
ENGINES: Final = (DUCKDB, SPARK)
NO_ENGINE: Final = (
    'the audit needs pyarrow and an engine: pip install "txcore[audit]" brings DuckDB, for one machine; '
    '"txcore[spark]" brings Spark, which needs Java'
)
"""The sentence for an installation without an engine."""
