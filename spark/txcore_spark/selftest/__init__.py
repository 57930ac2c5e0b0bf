"""The proof on real brokers: histories with known faults, and what the audit says of them."""
