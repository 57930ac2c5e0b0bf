"""Brokers that another program started, named by the environment: they can only be used."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import SplitResult

from txcore.backends.options import split_url
from txcore_conformance.brokers.broker import USUAL_PORTS, Broker
from txcore_conformance.brokers.greetings import amqp_start, amqp_version, nats_information
from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.machine import lock_port, run
from txcore_conformance.server_packages import ServerUnavailableError

PROXIED_VARIABLE: Final = "TXCORE_KAFKA_PROXIED"
CONTROL_VARIABLE: Final = "TXCORE_RABBITMQ_CONTROL"
CONTROL_TIME_MAX_S: Final = 300.0


class ExternalBroker(Broker):
    """A broker that another program started.

    Args:
        name: kafka, rabbitmq or nats.
        url: URL of the broker; of several hosts, the first one is used.
    """

    can_be_killed = False

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        prefix = f"TXCORE_{name.upper()}"
        self.monitor_url = os.environ.get(f"{prefix}_MONITOR_URL", "")
        self.folder = Path(os.environ.get(f"{prefix}_FOLDER") or Path.cwd())
        self.version = os.environ.get(f"{prefix}_RUNNING", "")
        if not self.version:
            with contextlib.suppress(OSError, ValueError, LookupError, AssertionError):
                self.version = self._read_version()
        self._port_lock: IO[str] | None = None

    def start(self) -> None:
        """Refuse."""
        self._refuse()

    def stop(self) -> None:
        """Do nothing: the broker's owner stops it."""

    def kill(self) -> None:
        """Refuse."""
        self._refuse()

    def pause(self) -> None:
        """Refuse."""
        self._refuse()

    def resume(self) -> None:
        """Refuse."""
        self._refuse()

    def remove(self) -> None:
        """Close the proxy; the broker's owner stops the broker."""
        super().remove()
        if self._port_lock is not None:
            self._port_lock.close()
            self._port_lock = None

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl by the command in TXCORE_RABBITMQ_CONTROL."""
        command = os.environ.get(CONTROL_VARIABLE, "") if self.name == "rabbitmq" else ""
        if not command:
            return super().control(*arguments)
        return run(shlex.split(command), *arguments, timeout_s=CONTROL_TIME_MAX_S)

    def _refuse(self) -> None:
        raise ServerUnavailableError(f"this {self.name} was not started by this program")

    def _address(self) -> tuple[str, int]:
        parts = self._parts()
        return parts.hostname or "127.0.0.1", parts.port or USUAL_PORTS[self.name]

    def _parts(self) -> SplitResult:
        parts = split_url(self.url)
        return parts._replace(netloc=parts.netloc.partition(",")[0])

    def _read_version(self) -> str:
        if self.name == "rabbitmq":
            return amqp_version(amqp_start(*self._address()))
        if self.name == "nats":
            return str(nats_information(*self._address())["version"])
        return ""  # Kafka's protocol has no version

    def _new_proxy(self) -> Proxy:
        if self.name != "kafka":
            return Proxy(self._address())
        made = claim_proxied_listener(os.environ.get(PROXIED_VARIABLE, ""))
        if made is None:
            raise ServerUnavailableError("this kafka has no listener left whose advertised address is a proxy's")
        proxy, self._port_lock = made
        return proxy

    def _url_at(self, port: int, account: str = "") -> str:
        parts = self._parts()
        account = account or parts.netloc.rpartition("@")[0]
        place = f"127.0.0.1:{port}"
        return parts._replace(netloc=f"{account}@{place}" if account else place).geturl()


def claim_proxied_listener(pairs: str) -> tuple[Proxy, IO[Any]] | None:
    """Return a proxy on the first pair `listener:advertised` that no other program holds, and its lock."""
    for pair in filter(None, pairs.split(",")):
        listener, _, advertised = pair.partition(":")
        lock = lock_port(f"{advertised}.proxy")
        if lock is not None:
            return Proxy(("127.0.0.1", int(listener)), int(advertised)), lock
    return None
