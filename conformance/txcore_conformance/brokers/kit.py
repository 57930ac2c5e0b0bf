"""The kit of a broker plugin's own tests: connections with options, other processes, durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

from txcore.port import Backend
from txcore_conformance.brokers.broker import Broker
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.children import Children
from txcore_conformance.kit import Kit

T = TypeVar("T")


class BrokerKit(Kit):
    """The conformance kit with connections to one broker; *programs* is the file for `Children`.

    Attributes:
        broker: The broker under test.
        opened: The connections that `close` closes.
        child: Starts another process; see `Children.start`.
    """

    def __init__(self, harness: BrokerHarness, programs: Path) -> None:
        super().__init__(harness)
        self.broker: Broker = harness.broker
        self.opened: list[Backend] = []
        self._broker_harness = harness
        self._children = Children(programs)
        self.child = self._children.start

    def address(self, *, proxied: bool = False, **options: object) -> str:
        """Return the URL under test with more *options*."""
        base = self.broker.proxied_url if proxied else self.broker.url
        query = urlencode(dict(parse_qsl(self._broker_harness.url_options.removeprefix("?"))) | options)
        return f"{base}?{query}"

    def connect(self, *, proxied: bool = False, partition_count: int | None = 2, **options: object) -> Backend:
        """Return a connection with *options* after creating its group; it is closed at the end."""
        backend = self._broker_harness.open(self.address(proxied=proxied, **options))
        self.opened.append(backend)
        if partition_count:
            self.wait(backend.ensure_group(self.group, partition_count))
        return backend

    def close(self) -> None:
        """Kill the other processes and close everything."""
        self._children.reap()
        for backend in self.opened:
            backend.close(5.0).result(10.0)
        super().close()

    @staticmethod
    def lasts_s(call: Callable[[], T]) -> tuple[float, T]:
        """Return the duration of *call* in seconds, and its result."""
        began_s = time.monotonic()
        result = call()
        return time.monotonic() - began_s, result
