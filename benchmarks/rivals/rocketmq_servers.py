"""RocketMQ's servers, from its published Maven artifacts: a name server and one broker, as in its quick start.

Its start script asks for 8 GB of heap; here the broker has 2 GB, as the quick start advises for small machines. A
broker with the proxy in its process serves the clients of other languages too, which speak gRPC.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Final

from txcore_conformance.brokers import maven
from txcore_conformance.machine import base_folder, made_once
from txcore_conformance.processes import ManagedProcess

VERSION: Final = "5.5.0"
_ARTIFACTS: Final = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-client")
_PROXY_ARTIFACTS: Final = ("rocketmq-namesrv", "rocketmq-proxy", "rocketmq-tools")
_ADMIN_TIME_MAX_S: Final = 60.0
#: Options of its start scripts for Java 9 and later, with a smaller heap.
_BROKER_OPTIONS: Final = (
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:MaxDirectMemorySize=4g",
)


def libraries() -> Path:
    """Return the folder with the jars of both servers and the Java client, fetched once per machine.

    Raises:
        ServerUnavailableError: there is no Maven, or Maven could not fetch the jars.
    """
    return _fetched(f"rocketmq_{VERSION}", _ARTIFACTS)


def proxy_libraries() -> Path:
    """Return the folder with the jars of the servers, the proxy and the admin tool, fetched once per machine.

    Raises:
        ServerUnavailableError: there is no Maven, or Maven could not fetch the jars.
    """
    return _fetched(f"rocketmq_proxy_{VERSION}", _PROXY_ARTIFACTS)


def _fetched(folder: str, artifacts: tuple[str, ...]) -> Path:
    jars = [("org.apache.rocketmq", name, VERSION) for name in artifacts]
    return made_once(base_folder() / folder, lambda target: maven.fetch(target, *jars))


class _Server(ManagedProcess):
    """One of RocketMQ's servers."""

    entry: str
    options: tuple[str, ...]

    def __init__(self, jars: Path, settings: dict[str, str]) -> None:
        self._jars = jars
        self._settings = settings
        super().__init__()

    @property
    def address(self) -> str:
        """Address at which it listens."""
        return f"127.0.0.1:{self.port}"

    def _assign_ports(self) -> None:
        self.port = self._ports.reserve()

    def _before_spawn(self) -> None:
        settings = {"listenPort": str(self.port), "bindAddress": "127.0.0.1"} | self._settings
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "server.properties").write_text(lines, encoding="utf-8")

    def _command(self) -> list[str]:
        opened = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
        command = [str(maven.java()), *self.options, *_home(self.folder), *opened, "-cp", f"{self._jars}/*", self.entry]
        return [*command, *self._arguments()]

    def _arguments(self) -> list[str]:
        return ["-c", str(self.folder / "server.properties")]

    def _check_ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 1).close()


class NameServer(_Server):
    """The name server, which clients and tools ask for the broker."""

    name = "rocketmq-namesrv"
    entry = "org.apache.rocketmq.namesrv.NamesrvStartup"
    options = ("-server", "-Xms256m", "-Xmx256m")


class Broker(_Server):
    """A broker, for clients in Java."""

    name = "rocketmq-broker"
    entry = "org.apache.rocketmq.broker.BrokerStartup"
    options = _BROKER_OPTIONS

    def _before_spawn(self) -> None:
        store = self.folder / "store"
        self._settings |= {
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
        }
        super()._before_spawn()


class BrokerWithProxy(Broker):
    """A broker with the proxy in its process; `endpoint` is the address for clients that speak gRPC."""

    name = "rocketmq-proxy"
    entry = "org.apache.rocketmq.proxy.ProxyStartup"
    ready_time_max_s = 180.0

    @property
    def endpoint(self) -> str:
        """Address of the proxy."""
        return f"127.0.0.1:{self._endpoint_port}"

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self._endpoint_port = self._ports.reserve()
        self._remoting_port = self._ports.reserve()

    def _before_spawn(self) -> None:
        super()._before_spawn()
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self._settings["namesrvAddr"],
            "localServeAddr": "127.0.0.1",
            "grpcServerPort": self._endpoint_port,
            "remotingListenPort": self._remoting_port,
        }
        (self.folder / "proxy.json").write_text(json.dumps(settings), encoding="utf-8")

    def _arguments(self) -> list[str]:
        files = ["-bc", str(self.folder / "server.properties"), "-pc", str(self.folder / "proxy.json")]
        return ["-pm", "local", *files]

    def _check_ready(self) -> None:
        super()._check_ready()
        socket.create_connection(("127.0.0.1", self._endpoint_port), 1).close()

    def admin(self, *arguments: str) -> str:
        """Run a command of `mqadmin` against this broker's name server, and return what it printed."""
        # A JVM of few resources: it sends one request.
        java = [str(maven.java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", *_home(self.folder)]
        tool = ["-cp", f"{self._jars}/*", "org.apache.rocketmq.tools.command.MQAdminStartup"]
        command = [*java, *tool, *arguments, "-n", self._settings["namesrvAddr"]]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=_ADMIN_TIME_MAX_S,
            env=os.environ | {"HOME": str(self.folder)},
        )
        if "SubCommandException" in done.stdout + done.stderr:  # its status is 0 then
            raise RuntimeError(f"mqadmin {' '.join(arguments)}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


def _home(folder: Path) -> list[str]:
    return [f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}"]
