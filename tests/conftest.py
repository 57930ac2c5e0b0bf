"""What is too heavy for every run: clusters of three, and versions that must be fetched; `make heavy` runs them."""

from __future__ import annotations

import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in whatever a script runs in the background; the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

HEAVY_FIXTURES = {"trio", "clustered"}
"""Fixtures that start three nodes of one broker."""


def pytest_collection_modifyitems(items):
    """Mark what needs such a fixture; tests that fetch another version are marked where they stand."""
    for item in items:
        if HEAVY_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.heavy)
