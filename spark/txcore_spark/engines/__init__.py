"""The engines that compute the audit's frames: DuckDB in this process, Spark on one machine or on a cluster."""
