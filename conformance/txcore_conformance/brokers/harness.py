"""Base of the harnesses of all broker plugins: a broker, and a private one for tests that kill or pause it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import txcore
from txcore.port import Backend
from txcore_conformance import brokers
from txcore_conformance.brokers.broker import Broker
from txcore_conformance.harness import Harness


class BrokerHarness(Harness):
    """A harness on a real broker; a plugin adds the functions that make and read its topics with a plain client.

    Attributes:
        broker_name: Its name in TXCORE_REQUIRE: kafka, rabbitmq, nats, or that of a broker whose harness overrides
            `new_broker`.
        url_options: The query of the URL under test, with its question mark.
        broker: The broker under test, set by `start`.
    """

    broker_name: ClassVar[str]
    url_options: ClassVar[str] = ""
    broker: Broker

    def __init__(self, broker: Broker | None = None) -> None:
        self._given = broker
        self._is_owner = False

    def start(self) -> None:
        """Start the broker.

        Raises:
            ServerUnavailableError: the broker is not available here.
        """
        self.broker = self._given or self.new_broker(own=False)
        self._is_owner = self._is_owner or self._given is None
        self.url = self.broker.url + self.url_options

    def new_broker(self, *, own: bool, **options: Any) -> Broker:
        """Return a running broker; with *own* or *options* (`brokers.start`) a new one, which no other program uses."""
        return brokers.start(self.broker_name, own=own, **options)

    def stop(self) -> None:
        """Remove the broker if it was started here."""
        if self._is_owner:
            self.broker.remove()

    def private(self) -> Self:
        """Return the same harness, started, on a new broker that may be killed; its `stop` removes that broker."""
        made = type(self)(self.new_broker(own=True))
        made._is_owner = True  # noqa: SLF001 - of the same class
        made.start()
        return made

    def open_silenceable(self) -> tuple[Backend, Callable[[bool], None]]:
        """See `Harness.open_silenceable`; the connection has a proxy that moves no byte while reads are silenced."""
        proxy = self.broker.proxy

        def silence(is_silent: bool) -> None:  # noqa: FBT001 - the suite's signature
            if is_silent:
                proxy.freeze()
            else:
                proxy.forward()

        return self.open(self.broker.proxied_url + self.url_options), silence

    def open(self, url: str = "") -> Backend:
        """Return a new connection to *url*, by default the one under test; the caller closes it."""
        return txcore.connect(url or self.url)
