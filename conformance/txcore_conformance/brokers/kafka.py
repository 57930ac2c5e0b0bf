"""Kafka in KRaft mode: one process that is broker and controller."""

from __future__ import annotations

import base64
import os
import socket
import struct
from typing import Final

from txcore_conformance.brokers.broker import ManagedBroker
from txcore_conformance.brokers.programs import kafka_libraries, kafka_version, program
from txcore_conformance.brokers.proxy import Proxy
from txcore_conformance.machine import run

_TIME_MAX_S: Final = 2.0
_JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
#: ApiVersions, version 0: key 18, correlation 1, no client id.
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class KafkaBroker(ManagedBroker):
    """One Kafka node; settings by the names of server.properties, underscores for dots.

    For example `kafka(message_max_bytes="2000")`. Besides the clients' listener it has one whose advertised address is
    the proxy's, so that a client which came through the proxy stays there.
    """

    name = "kafka"

    def __init__(self, settings: dict[str, str], version: str = "") -> None:
        self._libraries = kafka_libraries(version)
        self._java = program("java", "default-jre-headless")
        super().__init__({name.replace("_", "."): value for name, value in settings.items()})

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self._controller_port = self._ports.reserve()
        self._behind_proxy_port = self._ports.reserve()

    def _properties(self) -> dict[str, str]:
        listeners = {"PLAINTEXT": self.port, "PROXIED": self._behind_proxy_port, "CONTROLLER": self._controller_port}
        advertised = {"PLAINTEXT": self.port, "PROXIED": self.proxy_port}
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": _addresses(listeners),
            "advertised.listeners": _addresses(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            "controller.quorum.election.timeout.ms": "500",
            "log.cleaner.dedupe.buffer.size": "16777216",
        } | self._settings

    def _before_spawn(self) -> None:
        lines = [f"{name}={value}" for name, value in self._properties().items()]
        (self.folder / "server.properties").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not (self.folder / "data").exists():
            self._format()

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster_id]
        run([*self._start_of_command(), *tool, "-c", str(self.folder / "server.properties")])

    def _start_of_command(self) -> list[str]:
        # A fallback for both loggers; the libraries' own settings would be silent or far too loud.
        logging = self._libraries / "logging.properties"
        options = [f"-Dlog4j2.configurationFile={logging}", f"-Dlog4j.configuration=file:{logging}"]
        return [str(self._java), *_JAVA_OPTIONS, "-Xmx384m", *options, "-cp", f"{self._libraries}/*"]

    def _command(self) -> list[str]:
        return [*self._start_of_command(), "kafka.Kafka", str(self.folder / "server.properties")]

    def _check_ready(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), _TIME_MAX_S) as connection:
            connection.sendall(_API_VERSIONS)
            _size, _correlation, error = struct.unpack(">iih", connection.recv(10, socket.MSG_WAITALL))
            assert error == 0

    def _tell_version(self) -> str:
        # The protocol does not say it.
        return kafka_version(self._libraries)

    def _url_at(self, port: int) -> str:
        return f"kafka://127.0.0.1:{port}"

    def _new_proxy(self) -> Proxy:
        return Proxy(self._behind_proxy_port, self.proxy_port)


def _addresses(listeners: dict[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())
