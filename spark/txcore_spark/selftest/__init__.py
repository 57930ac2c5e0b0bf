"""The self-test on real brokers: histories with known faults, and the audit's verdicts on them."""
