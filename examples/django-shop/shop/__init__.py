"""The shop."""
