"""The audit of an outbox table that another library made: each row against the messages in its topic, on DuckDB."""
