"""RabbitMQ: one node with a name server (epmd) of its own, so that no two runs meet."""

from __future__ import annotations

import os
import shlex
import socket
import struct
import subprocess
from typing import IO, Final

from txcore_conformance.brokers.broker import ExternalBroker, ManagedBroker
from txcore_conformance.brokers.rabbitmq_programs import rabbitmq_installation
from txcore_conformance.machine import run, spawn

_TIME_MAX_S: Final = 5.0
_CONTROL_TIME_MAX_S: Final = 120.0
_HEADER: Final = b"AMQP\x00\x00\x09\x01"


class RabbitmqBroker(ManagedBroker):
    """One RabbitMQ node; settings by the names of rabbitmq.conf.

    For example `rabbitmq(**{"vm_memory_high_watermark.absolute": "100MB"})`. The user is guest, password guest.
    """

    name = "rabbitmq"

    def __init__(self, settings: dict[str, str], version: str = "") -> None:
        self._installation = rabbitmq_installation(version)
        super().__init__(settings)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._epmd_log: IO[bytes] | None = None

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self._distribution_port = self._ports.reserve()
        self._epmd_port = self._ports.reserve()
        self.node = f"txcore-{self.port}@localhost"
        self.monitor_url = f"http://127.0.0.1:{self._ports.reserve()}"

    def _before_spawn(self) -> None:
        settings = {
            "listeners.tcp.default": f"127.0.0.1:{self.port}",
            "disk_free_limit.absolute": "50MB",
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": self.monitor_url.rpartition(":")[2],
        } | self._settings
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines), encoding="utf-8")
        (self.folder / "rabbitmq-env.conf").write_text("", encoding="utf-8")
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n", encoding="utf-8")
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(os.urandom(10).hex(), encoding="utf-8")
            cookie.chmod(0o400)
        self._start_epmd()

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            # Makes the script become the server instead of staying its parent.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _command(self) -> list[str]:
        return self._installation.command("rabbitmq-server")

    def _start_epmd(self) -> None:
        if self._epmd is not None and self._epmd.poll() is None:
            return
        self._epmd_log = self._epmd_log or (self.folder / "epmd.log").open("ab")
        command = self._installation.command("epmd", "-port", str(self._epmd_port))
        self._epmd = spawn(command, self._epmd_log, self.folder, self.death_signal, environment=self._environment())

    def _end_all(self) -> None:
        super()._end_all()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        if self._epmd_log is not None:
            self._epmd_log.close()
            self._epmd_log = None

    def _children(self) -> list[int]:
        own = [self._epmd.pid] if self._epmd is not None else []
        return [*super()._children(), *own]

    def _check_ready(self) -> None:
        greeting(self.port)

    def _tell_version(self) -> str:
        return version_in(greeting(self.port))

    def _url_at(self, port: int) -> str:
        return f"rabbitmq://guest:guest@127.0.0.1:{port}/"

    def control_command(self) -> list[str]:
        """Return the command to which rabbitmqctl's arguments are added, complete with its environment."""
        environment = [f"{name}={value}" for name, value in self._environment().items() if not name.startswith("RUN")]
        return ["env", "-i", *environment, *self._installation.command("rabbitmqctl", "-q", "-n", self.node)]

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl on the node."""
        return run(self.control_command(), *arguments, timeout_s=_CONTROL_TIME_MAX_S)


class ExternalRabbitmq(ExternalBroker):
    """A RabbitMQ that somebody else runs; TXCORE_RABBITMQ_CONTROL may say how to reach its rabbitmqctl."""

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl where TXCORE_RABBITMQ_CONTROL says how."""
        command = os.environ.get("TXCORE_RABBITMQ_CONTROL", "")
        if not command:
            return super().control(*arguments)
        return run(shlex.split(command), *arguments, timeout_s=_CONTROL_TIME_MAX_S)


def greeting(port: int) -> bytes:
    """Return the Connection.Start with which a RabbitMQ answers AMQP's header."""
    with socket.create_connection(("127.0.0.1", port), _TIME_MAX_S) as connection:
        connection.sendall(_HEADER)
        head = connection.recv(7, socket.MSG_WAITALL)
        kind, _channel, size = struct.unpack(">BHI", head)
        assert kind == 1, head
        return connection.recv(size, socket.MSG_WAITALL)


def version_in(start: bytes) -> str:
    """Return the server property `version` of a Connection.Start."""
    _, _, rest = start.partition(b"\x07versionS")
    (size,) = struct.unpack(">I", rest[:4])
    return rest[4 : 4 + size].decode()
