"""The proof on real brokers: histories with known faults, written past the protocol, and what the audit finds of them."""
