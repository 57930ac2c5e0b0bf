"""Kafka in KRaft mode, as one process that is broker and controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from txcore_conformance import progress
from txcore_conformance.brokers.broker import USUAL_PORTS, ManagedBroker
from txcore_conformance.brokers.external import PROXIED_VARIABLE, claim_proxied_listener
from txcore_conformance.brokers.greetings import kafka_answers
from txcore_conformance.brokers.kafka_programs import (
    ARCHIVE,
    QUICK_START,
    java_command,
    kafka_libraries,
    kafka_version,
    new_id,
    write_format,
)
from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.brokers.security import PASSWORD, USER, Security
from txcore_conformance.machine import base_folder, machine_lock
from txcore_conformance.server_packages import ServerUnavailableError

#: Most programs with a proxy in front of one Kafka at once.
_PROXIED_COUNT: Final = 4
_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
#: Topics that are replicated in a cluster, by the prefix of their settings.
_REPLICATED: Final = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


class KafkaBroker(ManagedBroker):
    """One Kafka node; settings by the names of server.properties, underscores for dots.

    For example `kafka(message_max_bytes="2000")`. Besides the clients' listener it has listeners whose advertised
    address is a proxy's, so that a client of that proxy stays there; TLS and credentials add one listener each. A
    request for a missing topic does not create it.
    """

    name = "kafka"
    usual_port = USUAL_PORTS[name]

    def __init__(
        self,
        settings: Mapping[str, str],
        version: str = "",
        security: Security = Security(),  # noqa: B008
        *,
        libraries: Path | None = None,
        java_options: Sequence[str] = QUICK_START,
    ) -> None:
        self._libraries = libraries or kafka_libraries(version)
        self._java_options = java_options
        if libraries is None:
            _archive_classes(self._libraries)
        super().__init__({name.replace("_", "."): value for name, value in settings.items()}, version, security)
        self._number = 1
        self._voters = ""
        self._cluster_id = new_id()
        self._listeners: dict[str, tuple[int, int, str]] = {}
        self._proxy_lock: IO[Any] | None = None

    @classmethod
    def join(cls, nodes: Sequence[Self]) -> None:
        """Make a cluster that stores everything three times and acknowledges a record when two nodes have it."""
        voters = [f"{number}@127.0.0.1:{node._controller_port}" for number, node in enumerate(nodes, 1)]  # noqa: SLF001
        copies = str(min(len(nodes), 3))
        durable = {"default.replication.factor": copies, "min.insync.replicas": "2"}
        durable |= {f"{name}.replication.factor": copies for name in _REPLICATED}
        durable |= {f"{name}.min.isr": "2" for name in _REPLICATED[1:]}
        for number, node in enumerate(nodes, 1):
            node._number = number  # noqa: SLF001
            node._voters = ",".join(voters)  # noqa: SLF001
            node._cluster_id = nodes[0]._cluster_id  # noqa: SLF001
            node._settings = durable | node._settings  # noqa: SLF001

    def remove(self) -> None:
        """End the broker at once, delete its data and close its proxy; idempotent."""
        super().remove()
        if self._proxy_lock is not None:
            self._proxy_lock.close()
            self._proxy_lock = None

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables with which another program uses this broker, also through a proxy."""
        return {**super().environment(), PROXIED_VARIABLE: self._proxied()}

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self._controller_port = self._ports.reserve()
        # Name: port, advertised port, protocol.
        self._listeners = {"PLAIN": (self.port, self.port, "PLAINTEXT")}
        for number in range(_PROXIED_COUNT):
            advertised = self._ports.reserve() if number else self.proxy_port
            self._listeners[f"PROXIED{number}"] = (self._ports.reserve(), advertised, "PLAINTEXT")
        if self.security.tls:
            port = self._ports.reserve()
            self._listeners["TLS"] = (port, port, "SSL")
            self.tls_url = self._url_at(port)
        if self.security.credentials:
            port = self._ports.reserve()
            self._listeners["ACCOUNTS"] = (port, port, "SASL_SSL" if self.security.tls else "SASL_PLAINTEXT")
            self.credentials_url = self._url_at(port, f"{USER}:{PASSWORD}")

    def _proxied(self) -> str:
        pairs = [each[:2] for name, each in self._listeners.items() if name.startswith("PROXIED")]
        return ",".join(f"{port}:{advertised}" for port, advertised in pairs)

    def _properties(self) -> dict[str, str]:
        ports = {name: port for name, (port, _, _) in self._listeners.items()} | {"CONTROLLER": self._controller_port}
        protocols = {name: protocol for name, (_, _, protocol) in self._listeners.items()} | {"CONTROLLER": "PLAINTEXT"}
        one_node = {f"{name}.replication.factor": "1" for name in _REPLICATED}
        one_node |= {f"{name}.min.isr": "1" for name in _REPLICATED[1:]}
        one_node |= {f"{name}.num.partitions": "1" for name in _REPLICATED}
        return {
            "process.roles": "broker,controller",
            "node.id": str(self._number),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self._voters or f"{self._number}@127.0.0.1:{self._controller_port}",
            "listeners": _addresses(ports),
            "advertised.listeners": _addresses({name: port for name, (_, port, _) in self._listeners.items()}),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": "PLAIN",
            "num.network.threads": "2",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            **one_node,
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # A killed node works again when its old session has ended; the default is 9 s.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            "controller.quorum.election.timeout.ms": "500",
            # Transactions of a dead process end soon; the default is 10 s.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1200",
            "log.cleaner.dedupe.buffer.size": "16777216",
            **self._security_properties(),
            **self._settings,
        }

    def _security_properties(self) -> dict[str, str]:
        properties = {}
        if self.certificates is not None:
            properties = {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificates.chain_file("server")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.certificates.ca_file),
                "listener.name.tls.ssl.client.auth": "required" if self.security.client_certificate else "requested",
            }
        if self.security.credentials:
            properties |= {
                "listener.name.accounts.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.accounts.plain.sasl.jaas.config": f'{_PLAIN_LOGIN} user_{USER}="{PASSWORD}";',
            }
        return properties

    def _before_spawn(self) -> None:
        lines = [f"{name}={value}" for name, value in self._properties().items()]
        (self.folder / "server.properties").write_text("\n".join(lines) + "\n", encoding="utf-8")
        data = self.folder / "data"
        if not data.exists():
            data.mkdir()
            write_format(self._libraries, data, self._number, self._cluster_id)

    def _command(self) -> list[str]:
        archive = self._libraries / ARCHIVE
        archived = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
        command = java_command(self._libraries, *self._java_options, *archived)
        return [*command, "kafka.Kafka", str(self.folder / "server.properties")]

    def _check_ready(self) -> None:
        kafka_answers("127.0.0.1", self.port)

    def _read_version(self) -> str:
        return kafka_version(self._libraries)  # the protocol has no version

    def _new_proxy(self) -> Proxy:
        made = claim_proxied_listener(self._proxied())
        if made is None:
            raise ServerUnavailableError(f"{_PROXIED_COUNT} programs have a proxy in front of this kafka already")
        proxy, self._proxy_lock = made
        return proxy

    def _url_at(self, port: int, account: str = "") -> str:
        return f"kafka://{account}@127.0.0.1:{port}" if account else f"kafka://127.0.0.1:{port}"


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _archive_classes(libraries: Path) -> None:
    """Let one run write an archive of its loaded classes; a start with the archive takes a third less time."""
    with machine_lock(base_folder() / "kafka-archive.lock"):
        archive = libraries / ARCHIVE
        if archive.exists():
            return
        progress.say("Kafka starts once to write its archive of classes")
        draft = archive.with_suffix(".draft")
        broker = KafkaBroker({}, libraries=libraries, java_options=[*QUICK_START, f"-XX:ArchiveClassesAtExit={draft}"])
        try:
            broker.start()
            broker.stop()
        finally:
            broker.remove()
        if draft.exists():
            draft.rename(archive)
