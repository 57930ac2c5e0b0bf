"""The audit: a Spark job that proves that databases, logs and targets agree on all brokers, or names what does not."""
