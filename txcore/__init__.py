"""txcore: transactional (half) messages for the brokers that people already run."""
