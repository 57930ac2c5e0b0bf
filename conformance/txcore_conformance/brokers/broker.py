"""The broker as tests use it, started by this program or by another one."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.brokers.security import Certificates, Security, make_certificates
from txcore_conformance.processes import ManagedProcess
from txcore_conformance.server_packages import ServerUnavailableError

#: The clients' port of each broker, unless a configuration names another one.
USUAL_PORTS: Final = {"kafka": 9092, "rabbitmq": 5672, "nats": 4222}


class Broker(abc.ABC):
    """A broker that tests may use, kill, pause and cut off. Not thread safe.

    Attributes:
        name: kafka, rabbitmq or nats.
        version: Version that the broker reports; "" if it reports none.
        url: txcore URL without options.
        tls_url: URL of its TLS listener; "" without one.
        credentials_url: URL with user and password; "" without such a user.
        can_be_killed: False for a broker that another program started, which can only be used.
        monitor_url: HTTP monitoring of NATS or management API of RabbitMQ; "" when there is none.
        folder: Logs, settings and data; `server.log` is the broker's output.
    """

    name: str
    version: str = ""
    url: str
    tls_url: str = ""
    credentials_url: str = ""
    can_be_killed: bool = True
    monitor_url: str = ""
    folder: Path
    certificates: Certificates | None = None
    _proxy: Proxy | None = None

    @property
    def is_running(self) -> bool:
        """Whether the broker was started and has not ended; True if another program started it."""
        return True

    @abc.abstractmethod
    def start(self) -> None:
        """Start the broker on the same port and data as before, and wait until it answers its own protocol."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the broker in order and wait; do nothing if the broker does not run."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill every process of the broker with SIGKILL and wait until they are gone."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Stop every process of the broker with SIGSTOP: connections stay open and silent."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Let the paused processes continue."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the broker within the block, and resume it after any exception too."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def remove(self) -> None:
        """End the broker at once, delete its data and close its proxy; idempotent."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    @property
    def proxy(self) -> Proxy:
        """Proxy in front of the broker, which listens from its first use."""
        if self._proxy is None:
            self._proxy = self._new_proxy()
        return self._proxy

    @property
    def proxied_url(self) -> str:
        """URL of the broker through `proxy`: every address that the broker returns is the proxy's."""
        return self._url_at(self.proxy.port)

    @property
    def ca_file(self) -> Path:
        """File of the authority that signed the server's certificate, PEM."""
        return self._certificates().ca_file

    @property
    def stranger_ca_file(self) -> Path:
        """File of an authority that did not sign the server's certificate, PEM."""
        return self._certificates().stranger_ca_file

    @property
    def cert_file(self) -> Path:
        """File of a client's certificate that the server accepts, PEM."""
        return self._certificates().cert_file("client")

    @property
    def key_file(self) -> Path:
        """File of the key of `cert_file`, PEM, not encrypted."""
        return self._certificates().key_file("client")

    def control(self, *arguments: str) -> str:
        """Run the broker's command-line tool (rabbitmqctl) and return its output.

        Raises:
            ServerUnavailableError: the broker has no such tool, or the tool failed.
        """
        raise ServerUnavailableError(f"{self.name} has no command-line tool here: {' '.join(arguments)}")

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables with which another program uses this broker."""
        prefix = f"TXCORE_{self.name.upper()}"
        return {
            f"{prefix}_URL": self.url,
            f"{prefix}_MONITOR_URL": self.monitor_url,
            f"{prefix}_FOLDER": str(self.folder),
            f"{prefix}_RUNNING": self.version,
        }

    @abc.abstractmethod
    def _new_proxy(self) -> Proxy: ...

    @abc.abstractmethod
    def _url_at(self, port: int, account: str = "") -> str: ...

    def _certificates(self) -> Certificates:
        if self.certificates is None:
            raise ServerUnavailableError(f"this {self.name} was started without tls=True")
        return self.certificates


class ManagedBroker(ManagedProcess, Broker):
    """A broker that this program starts: `port` is for clients, `proxy_port` is reserved for the proxy.

    Args:
        settings: Entries of the server's own configuration, by its names.
        version: Version as in `brokers.start`.
        security: Requirements on its clients.
    """

    ready_time_max_s = 120.0

    def __init__(self, settings: Mapping[str, str], version: str = "", security: Security = Security()) -> None:  # noqa: B008
        super().__init__()
        self._settings = dict(settings)
        self.version_asked_for = version
        self.security = security
        self.port = 0
        self.proxy_port = 0
        if security.tls:
            self.certificates = make_certificates(self.folder / "certificates")

    @classmethod
    def join(cls, nodes: Sequence[Self]) -> None:
        """Make one durable cluster of nodes that have not run yet; their ports are known.

        Raises:
            ServerUnavailableError: this kind of broker has none.
        """
        raise ServerUnavailableError(f"no cluster of {len(nodes)} nodes of {cls.name} here")

    @abc.abstractmethod
    def _read_version(self) -> str:
        """Return the version of the running server."""

    def start(self) -> None:
        """Start, on the same ports and data as before, and wait until it answers its own protocol."""
        super().start()
        self.version = self._read_version()

    def prepare(self) -> None:
        """Choose the ports, which `start` does otherwise."""
        if not self._ports.numbers:
            self._assign_ports()

    def remove(self) -> None:
        """End the broker at once, delete its data and close its proxy; idempotent."""
        if os.getpid() != self._owner:
            return
        Broker.remove(self)
        self.kill()
        super().remove()

    def _assign_ports(self) -> None:
        self.port = self._reserve(self.usual_port)
        self.proxy_port = self._ports.reserve()
        self.url = self._url_at(self.port)

    def _new_proxy(self) -> Proxy:
        return Proxy(("127.0.0.1", self.port), self.proxy_port)
