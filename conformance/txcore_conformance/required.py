"""Servers that a test needs: without one the test is skipped, or fails if TXCORE_REQUIRE names the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from txcore_conformance.server_packages import ServerUnavailableError
from txcore_conformance.servers import is_required

T = TypeVar("T")


def obtained(name: str, start: Callable[[], T]) -> T:
    """Return the result of *start*; if the server *name* is unavailable, skip the test, or fail if it is required."""
    try:
        return start()
    except ServerUnavailableError as error:
        if is_required(name):
            pytest.fail(f"{name} is required by TXCORE_REQUIRE: {error}")
        pytest.skip(f"{name}: {error}")
