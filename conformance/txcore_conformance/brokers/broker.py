"""What tests may do with a broker, whoever runs it."""

from __future__ import annotations

import abc
import os
from pathlib import Path

from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.processes import ManagedProcess
from txcore_conformance.server_packages import ServerUnavailableError


class Broker(abc.ABC):
    """A broker to which tests may do anything. Not thread safe.

    Attributes:
        name: kafka, rabbitmq or nats.
        version: Its version as it tells it itself; "" when it tells nothing.
        url: txcore URL without options.
        can_be_killed: False for a broker that somebody else runs, which can only be used.
        monitor_url: HTTP monitoring of NATS or management API of RabbitMQ; "" when there is none.
        folder: Logs, settings and data; the current folder for a broker that somebody else runs.
    """

    name: str
    version: str = ""
    url: str
    can_be_killed: bool = True
    monitor_url: str = ""
    folder: Path
    _proxy: Proxy | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Start, on the same port and data as before, and wait until it answers its own protocol."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop in order and wait; nothing happens when it does not run."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill every process of it with SIGKILL and wait until they are gone."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Stop every process of it with SIGSTOP: connections stay open and silent."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Let the paused processes go on."""

    def remove(self) -> None:
        """End it at once, delete its data and close its proxy; twice is once."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    @property
    def proxy(self) -> Proxy:
        """The proxy in front of the broker, listening from the first use on."""
        if self._proxy is None:
            self._proxy = self._new_proxy()
        return self._proxy

    @property
    def proxied_url(self) -> str:
        """The broker's URL through `proxy`: whatever a client learns from it leads to the proxy again."""
        return self._url_at(self.proxy.port)

    def control(self, *arguments: str) -> str:
        """Run the broker's command-line tool (rabbitmqctl) and return its output.

        Raises:
            ServerUnavailableError: there is none, or it failed.
        """
        raise ServerUnavailableError(f"{self.name} has no command-line tool here: {' '.join(arguments)}")

    @abc.abstractmethod
    def _new_proxy(self) -> Proxy: ...

    @abc.abstractmethod
    def _url_at(self, port: int) -> str: ...


class ManagedBroker(ManagedProcess, Broker):
    """A broker of this program's own: `port` for clients, `proxy_port` kept for the proxy.

    Args:
        settings: Go into the server's own configuration, by its names.
    """

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self.port = 0
        self.proxy_port = 0

    @abc.abstractmethod
    def _tell_version(self) -> str:
        """Return the version of the running server."""

    def start(self) -> None:
        """Start, on the same ports and data as before, and wait until it answers its own protocol."""
        super().start()
        self.version = self._tell_version()

    def remove(self) -> None:
        """End it at once, delete its data and close its proxy; twice is once."""
        if os.getpid() != self._owner:
            return
        Broker.remove(self)
        self.kill()
        super().remove()

    def _assign_ports(self) -> None:
        self.port = self._ports.reserve()
        self.proxy_port = self._ports.reserve()
        self.url = self._url_at(self.port)

    def _new_proxy(self) -> Proxy:
        return Proxy(self.port, self.proxy_port)


class ExternalBroker(Broker):
    """A broker that somebody else runs; it can only be used.

    Args:
        name: kafka, rabbitmq or nats.
        url: Where it is.
        monitor_url: Its HTTP monitoring.
    """

    can_be_killed = False

    def __init__(self, name: str, url: str, monitor_url: str = "") -> None:
        self.name = name
        self.url = url
        self.monitor_url = monitor_url
        self.folder = Path.cwd()

    def start(self) -> None:
        """Refuse."""
        self._refuse()

    def stop(self) -> None:
        """Leave it to its owner."""

    def kill(self) -> None:
        """Refuse."""
        self._refuse()

    def pause(self) -> None:
        """Refuse."""
        self._refuse()

    def resume(self) -> None:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> None:
        raise ServerUnavailableError(f"this {self.name} is run by somebody else")

    def _new_proxy(self) -> Proxy:
        raise ServerUnavailableError(f"this {self.name} is run by somebody else, without a way through a proxy")

    def _url_at(self, port: int) -> str:
        head, _, tail = self.url.rpartition(":")
        return f"{head}:{port}{tail.lstrip('0123456789')}"
