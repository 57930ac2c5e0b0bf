"""The kit as fixtures: `pytest_plugins = ["txcore.testing.pytest"]` in conftest.py, or `-p txcore.testing.pytest`.

Each test has a kit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txcore.memory import MemoryBackend
from txcore.testing import Kit, ManualClock


@pytest.fixture
def txcore_kit() -> Iterator[Kit]:
    """The kit: producers, checkers, `drain`, crashes and assertions on one broker in memory."""
    with Kit() as kit:
        yield kit


@pytest.fixture
def txcore_backend(txcore_kit: Kit) -> MemoryBackend:
    """The kit's backend, for a service that takes one."""
    return txcore_kit.backend


@pytest.fixture
def txcore_clock(txcore_kit: Kit) -> ManualClock:
    """The kit's clock: `txcore_clock.advance(seconds)`."""
    return txcore_kit.clock
