"""RabbitMQ as one node with a name server (epmd) of its own, so that runs do not see each other."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

from txcore_conformance.brokers.broker import USUAL_PORTS, ManagedBroker
from txcore_conformance.brokers.external import CONTROL_TIME_MAX_S, CONTROL_VARIABLE
from txcore_conformance.brokers.greetings import amqp_start, amqp_version
from txcore_conformance.brokers.rabbitmq_programs import Installation, rabbitmq_installation
from txcore_conformance.brokers.security import PASSWORD, USER, Security
from txcore_conformance.machine import run
from txcore_conformance.processes import ManagedProcess

_TIME_MAX_S: Final = 5.0
_MONITOR_PORT: Final = 15672
_STARTED: Final = b"Server startup complete"
_GUEST: Final = "guest:guest"


class NameServer(ManagedProcess):
    """An epmd, through which Erlang nodes and their tools find each other."""

    name = "epmd"

    def __init__(self, installation: Installation) -> None:
        super().__init__()
        self._installation = installation
        self.port = 0

    def _assign_ports(self) -> None:
        self.port = self._ports.reserve()

    def _command(self) -> list[str]:
        return self._installation.command("epmd", "-address", "127.0.0.1", "-port", str(self.port))

    def _check_ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), _TIME_MAX_S).close()


class RabbitmqBroker(ManagedBroker):
    """One RabbitMQ node; settings by the names of rabbitmq.conf.

    For example `rabbitmq(**{"vm_memory_high_watermark.absolute": "100MB"})`. The user guest always exists.
    """

    name = "rabbitmq"
    usual_port = USUAL_PORTS[name]

    def __init__(self, settings: Mapping[str, str], version: str = "", security: Security = Security()) -> None:  # noqa: B008
        self._installation = rabbitmq_installation(version)
        super().__init__(settings, version, security)
        self._name_server = NameServer(self._installation)
        self._shares_name_server = False
        self._cookie = os.urandom(10).hex()
        self._cluster: dict[str, str] = {}
        self._log_size = 0

    @classmethod
    def join(cls, nodes: Sequence[Self]) -> None:
        """Make a cluster whose minority pauses itself; streams and quorum queues have a member on each node."""
        first = nodes[0]
        for node in nodes:
            if node is not first:
                node._name_server.remove()  # noqa: SLF001 - of the same class
            node._name_server = first._name_server  # noqa: SLF001
            node._shares_name_server = True  # noqa: SLF001
            node._cookie = first._cookie  # noqa: SLF001
            node._cluster = {  # noqa: SLF001
                "cluster_formation.peer_discovery_backend": "classic_config",
                "cluster_partition_handling": "pause_minority",
            } | {f"cluster_formation.classic_config.nodes.{i}": each.node for i, each in enumerate(nodes, 1)}
        first._start_name_server()  # noqa: SLF001

    def start(self) -> None:
        """Start the node on the same ports and data as before, and wait until it answers its own protocol."""
        is_first = not (self.folder / "data").exists()
        super().start()
        if is_first and self.security.credentials:
            self.control("add_user", USER, PASSWORD)
            self.control("set_permissions", USER, ".*", ".*", ".*")

    def kill(self) -> None:
        """Kill every process of the node; a name server that other nodes use continues."""
        super().kill()
        if not self._shares_name_server:
            self._name_server.kill()

    def stop(self) -> None:
        """Stop the node in order and wait; a name server that other nodes use continues."""
        super().stop()
        if not self._shares_name_server:
            self._name_server.stop()

    def remove(self) -> None:
        """End the node at once and delete its data; idempotent."""
        super().remove()
        self._name_server.remove()

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl on the node and return its output; raises ServerUnavailableError."""
        return run(self._control_command(), *arguments, timeout_s=CONTROL_TIME_MAX_S)

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables with which another program uses this broker, rabbitmqctl included."""
        return {**super().environment(), CONTROL_VARIABLE: shlex.join(self._control_command())}

    def _control_command(self) -> list[str]:
        variables = [f"{name}={value}" for name, value in self._environment().items()]
        return ["env", "-i", *variables, *self._installation.command("rabbitmqctl", "-q", "-n", self.node)]

    def _assign_ports(self) -> None:
        super()._assign_ports()
        self._distribution_port = self._ports.reserve()
        self.node = f"txcore-{self.port}@localhost"
        self.monitor_url = f"http://127.0.0.1:{self._reserve(_MONITOR_PORT)}"
        if self.security.tls:
            self._tls_port = self._ports.reserve()
            self.tls_url = self._url_at(self._tls_port)
        if self.security.credentials:
            port = self._tls_port if self.security.tls else self.port
            self.credentials_url = self._url_at(port, f"{USER}:{PASSWORD}")

    def _before_spawn(self) -> None:
        settings = {
            "listeners.tcp.default": f"127.0.0.1:{self.port}",
            "disk_free_limit.absolute": "50MB",
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": self.monitor_url.rpartition(":")[2],
        }
        settings |= self._cluster | self._security_settings() | self._settings
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines), encoding="utf-8")
        (self.folder / "rabbitmq-env.conf").touch()
        plugins = "rabbitmq_management" + (",rabbitmq_auth_mechanism_ssl" if self.security.client_certificate else "")
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].\n", encoding="utf-8")
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(self._cookie, encoding="ascii")
            cookie.chmod(0o400)
        self._log_size = self._log_file().stat().st_size if self._log_file().exists() else 0
        self._start_name_server()

    def _start_name_server(self) -> None:
        if not self._name_server.is_running:
            self._name_server.kill()  # so that its end is noticed
            self._name_server.start()

    def _security_settings(self) -> dict[str, str]:
        if self.certificates is None:
            return {}
        by_certificate = {
            "auth_mechanisms.1": "PLAIN",
            "auth_mechanisms.2": "EXTERNAL",
            "ssl_cert_login_from": "common_name",
        }
        return {
            **(by_certificate if self.security.client_certificate else {}),
            "listeners.ssl.default": f"127.0.0.1:{self._tls_port}",
            "ssl_options.cacertfile": str(self.certificates.ca_file),
            "ssl_options.certfile": str(self.certificates.cert_file("server")),
            "ssl_options.keyfile": str(self.certificates.key_file("server")),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "true" if self.security.client_certificate else "false",
        }

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._name_server.port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            # Makes the script become the server instead of staying its parent.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_LOG": "-color",
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

    def _children(self) -> list[int]:
        shared = [] if self._shares_name_server or not self._name_server.is_running else [self._name_server.pid]
        return [*super()._children(), *shared]

    def _check_ready(self) -> None:
        amqp_start("127.0.0.1", self.port)
        self._wait_for_end_of_boot()

    def _wait_for_end_of_boot(self) -> None:
        """Wait, for a while, for the end of the boot in the log: a stop in the last moments of the boot kills it."""
        deadline = time.monotonic() + _TIME_MAX_S
        while time.monotonic() < deadline:
            with self._log_file().open("rb") as log:
                log.seek(self._log_size)
                if _STARTED in log.read():
                    return
            time.sleep(0.02)

    def _read_version(self) -> str:
        return amqp_version(amqp_start("127.0.0.1", self.port))

    def _url_at(self, port: int, account: str = "") -> str:
        return f"rabbitmq://{account or _GUEST}@127.0.0.1:{port}/"
