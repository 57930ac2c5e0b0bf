"""A test kit for services that use txcore: a broker in memory, a clock to be moved, a process that dies where you say.

    pytest_plugins = ["txcore.testing.pytest"]  # in conftest.py: the fixtures txcore_kit, txcore_backend, txcore_clock

    def test_order_is_announced_although_the_service_dies(txcore_kit):
        producer = txcore_kit.producer("shop", fence=fence)
        with txcore_kit.crash_after("database commit"):
            place_order(producer, engine, "tea")
        txcore_kit.assert_not_published("orders.created")
        txcore_kit.drain()
        txcore_kit.assert_published("orders.created", value={"item": "tea"}, count=1)

Nothing sleeps, and no thread and no server is started. It does not replace the crash kit, `txcore_conformance`, which
kills real processes at every step of your transaction.
"""

from __future__ import annotations

from txcore.testing.clock import ManualClock
from txcore.testing.draining import DrainReport, UndecidedError
from txcore.testing.dying import ProcessDied
from txcore.testing.kit import Kit
from txcore.testing.unsettled import Unsettled

__all__ = ["DrainReport", "Kit", "ManualClock", "ProcessDied", "UndecidedError", "Unsettled"]
