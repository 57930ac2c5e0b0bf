"""Temporal's test server, an ordinary jar from Maven: the whole service in one Java process, in memory."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from txcore_conformance.brokers import maven
from txcore_conformance.brokers.kafka_programs import QUICK_START
from txcore_conformance.machine import base_folder, made_once
from txcore_conformance.processes import ManagedProcess

_JAR: Final = ("io.temporal", "temporal-test-server", "1.28.0")


class TemporalServer(ManagedProcess):
    """The server; `address` is for clients."""

    name = "temporal"

    def __init__(self) -> None:
        self._libraries = made_once(base_folder() / f"temporal_{_JAR[2]}", self._fetch)
        super().__init__()
        self.address = ""

    @staticmethod
    def _fetch(target: Path) -> None:
        maven.fetch(target, _JAR)

    def _assign_ports(self) -> None:
        self.port = self._ports.reserve()
        self.address = f"127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        program = ["-cp", f"{self._libraries}/*", "io.temporal.testserver.TestServer", str(self.port)]
        return [str(maven.java()), *QUICK_START, *program]

    def _check_ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 5).close()
