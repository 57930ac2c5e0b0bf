"""NATS with JetStream: one server with a store and a monitoring port."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any, Final

from txcore_conformance.brokers.broker import ManagedBroker
from txcore_conformance.brokers.programs import nats_server

_TIME_MAX_S: Final = 2.0


class NatsBroker(ManagedBroker):
    """One NATS server; settings by the names of its configuration file, dots for nested ones.

    For example `nats(**{"jetstream.sync_interval": "always", "max_payload": "1024"})`.
    """

    name = "nats"

    def __init__(self, settings: dict[str, str], version: str = "") -> None:
        self._program = nats_server(version)
        super().__init__(settings)

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self.monitor_url = f"http://127.0.0.1:{self._ports.reserve()}"

    def _before_spawn(self) -> None:
        settings = {
            "server_name": f"txcore-{self.port}",
            "listen": f'"127.0.0.1:{self.port}"',
            "http": f'"{self.monitor_url.removeprefix("http://")}"',
            "jetstream.store_dir": f'"{self.folder / "data"}"',
            "logtime": "true",
        } | self._settings
        (self.folder / "server.conf").write_text(_configuration(settings), encoding="utf-8")

    def _command(self) -> list[str]:
        return [str(self._program), "-c", str(self.folder / "server.conf")]

    def _check_ready(self) -> None:
        with urllib.request.urlopen(f"{self.monitor_url}/healthz", timeout=_TIME_MAX_S) as answer:  # noqa: S310
            assert json.load(answer)["status"] == "ok"

    def _tell_version(self) -> str:
        return str(server_information(self.port)["version"]).removeprefix("v")

    def _url_at(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"


def server_information(port: int) -> dict[str, Any]:
    """Return the INFO with which a NATS server greets."""
    with socket.create_connection(("127.0.0.1", port), _TIME_MAX_S) as connection, connection.makefile("rb") as lines:
        information: dict[str, Any] = json.loads(lines.readline().removeprefix(b"INFO "))
        return information


def _configuration(settings: dict[str, str]) -> str:
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *folders, last = name.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(tree: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name} {{", *_lines(value, indent + "  "), f"{indent}}}"]
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines
