"""The audit: a Spark job that proves that databases, logs and targets of all brokers agree, or reports findings."""
