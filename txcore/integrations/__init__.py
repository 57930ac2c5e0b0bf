"""Thin integrations with frameworks; each module needs its framework, and no other module imports it."""
