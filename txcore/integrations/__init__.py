"""Thin ties to the frameworks that people use; each module needs its framework, and nothing else imports it."""
