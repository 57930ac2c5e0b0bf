"""NATS with JetStream, as one server with a store and a monitoring port."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from txcore_conformance.brokers.broker import USUAL_PORTS, ManagedBroker
from txcore_conformance.brokers.greetings import nats_information
from txcore_conformance.brokers.nats_programs import nats_server
from txcore_conformance.brokers.security import PASSWORD, USER, Security
from txcore_conformance.machine import run

_TIME_MAX_S: Final = 2.0
_MONITOR_PORT: Final = 8222


class NatsBroker(ManagedBroker):
    """One NATS server; settings by the names of its configuration file, dots for nested ones.

    For example `nats(**{"jetstream.sync_interval": "always", "max_payload": "1024"})`. A server accepts one kind of
    client only: with TLS, `url` and `tls_url` are the same; with credentials, both contain them.
    """

    name = "nats"
    usual_port = USUAL_PORTS[name]

    def __init__(self, settings: Mapping[str, str], version: str = "", security: Security = Security()) -> None:  # noqa: B008
        self._program = nats_server(version)
        super().__init__(settings, version, security)
        self._cluster: dict[str, str] = {}

    @classmethod
    def join(cls, nodes: Sequence[Self]) -> None:
        """Make a cluster whose stores sync before they acknowledge; each stream sets its own replication.

        Servers before 2.10 have no such setting: they write acknowledged messages within two minutes.
        """
        routes = {node: node._ports.reserve() for node in nodes}  # noqa: SLF001 - of the same class
        for node, port in routes.items():
            others = [f'"nats://127.0.0.1:{each}"' for other, each in routes.items() if other is not node]
            node._cluster = {  # noqa: SLF001
                "cluster.name": "txcore",
                "cluster.listen": f'"127.0.0.1:{port}"',
                "cluster.no_advertise": "true",
                "cluster.routes": f"[{', '.join(others)}]",
            }
            if _knows_sync_interval(node._program):  # noqa: SLF001
                node._cluster["jetstream.sync_interval"] = "always"  # noqa: SLF001

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self.monitor_url = f"http://127.0.0.1:{self._reserve(_MONITOR_PORT)}"
        account = f"{USER}:{PASSWORD}" if self.security.credentials else ""
        self.url = self._url_at(self.port, account)
        self.credentials_url = self.url if account else ""
        self.tls_url = self.url if self.security.tls else ""

    def _before_spawn(self) -> None:
        settings = {
            "server_name": f"txcore-{self.port}",
            "listen": f'"127.0.0.1:{self.port}"',
            "http": f'"{self.monitor_url.removeprefix("http://")}"',
            "jetstream.store_dir": f'"{self.folder / "data"}"',
        }
        settings |= self._cluster | self._security_settings() | self._settings
        (self.folder / "server.conf").write_text(_configuration(settings), encoding="utf-8")

    def _security_settings(self) -> dict[str, str]:
        settings = {}
        if self.security.credentials:
            settings["authorization.users"] = f'[{{user: "{USER}", password: "{PASSWORD}"}}]'
        if self.certificates is not None:
            settings |= {
                "tls.cert_file": f'"{self.certificates.cert_file("server")}"',
                "tls.key_file": f'"{self.certificates.key_file("server")}"',
                "tls.ca_file": f'"{self.certificates.ca_file}"',
                "tls.verify": "true" if self.security.client_certificate else "false",
            }
        return settings

    def _command(self) -> list[str]:
        return [str(self._program), "-c", str(self.folder / "server.conf")]

    def _check_ready(self) -> None:
        with urllib.request.urlopen(f"{self.monitor_url}/healthz", timeout=_TIME_MAX_S) as answer:  # noqa: S310
            assert json.load(answer)["status"] == "ok"

    def _read_version(self) -> str:
        return str(nats_information("127.0.0.1", self.port)["version"])

    def _url_at(self, port: int, account: str = "") -> str:
        if not account and self.security.credentials:
            account = f"{USER}:{PASSWORD}"
        return f"nats://{account}@127.0.0.1:{port}" if account else f"nats://127.0.0.1:{port}"


def _knows_sync_interval(program: Path) -> bool:
    major, minor = run([str(program), "--version"]).rpartition(" v")[2].split(".")[:2]
    return (int(major), int(minor)) >= (2, 10)


def _configuration(settings: Mapping[str, str]) -> str:
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *folders, last = name.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(tree: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name} {{", *_lines(value, indent + "  "), f"{indent}}}"]
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines
