"""RocketMQ: its name server and broker from its published Maven artifacts, driven by a small Java client.

It is set up as in its quick start: one name server, one broker, its defaults (asynchronous master, asynchronous
flush). Its start script asks for 8 GB of heap; here it has 2 GB, as the quick start advises for small machines.
Recovery is measured with its defaults (every 30 s a check of undecided transactions older than 6 s), and with both
at 1 s.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Final

from txcore_conformance.machine import base_folder, made_once, run
from txcore_conformance.processes import ManagedProcess
from txcore_conformance.server_packages import ServerUnavailableError, find_program

from benchmarks.rivals.system import Figures, MissingError, Plan, Row

VERSION: Final = "5.5.0"
SOURCE: Final = Path(__file__).with_name("RocketmqLoad.java")
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DEPENDENCY: Final = (
    "<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_POM: Final = (
    "<project><modelVersion>4.0.0</modelVersion>"
    "<groupId>txcore</groupId><artifactId>rocketmq-for-benchmarks</artifactId><version>1</version>"
    "<dependencies>{}</dependencies></project>"
)
_ARTIFACTS: Final = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-client")
_FETCH_TIME_MAX_S: Final = 900.0
_LOAD_TIME_MAX_S: Final = 300.0
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
EAGER_CHECKS: Final = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}


class _Server(ManagedProcess):
    """One of RocketMQ's two servers."""

    entry: str
    options: tuple[str, ...]

    def __init__(self, libraries: Path, settings: dict[str, str]) -> None:
        self._libraries = libraries
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
        home = [f"-Duser.home={self.folder}", f"-Drocketmq.home.dir={self.folder}"]
        opened = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
        command = [_program("java"), *self.options, *home, *opened, "-cp", f"{self._libraries}/*", self.entry]
        return [*command, "-c", str(self.folder / "server.properties")]

    def _check_ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 1).close()


class _NameServer(_Server):
    name = "rocketmq-namesrv"
    entry = "org.apache.rocketmq.namesrv.NamesrvStartup"
    options = ("-server", "-Xms256m", "-Xmx256m")


class _Broker(_Server):
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


class RocketMQ:
    """The system RocketMQ; see the module."""

    name = f"RocketMQ {VERSION}"

    def prepare(self) -> None:
        """Fetch the jars, once per machine, and compile the client."""
        try:
            self._libraries = made_once(base_folder() / f"rocketmq_{VERSION}", _fetch)
            self._classes = base_folder() / "rocketmq_load"
            run([_program("javac"), "-nowarn", "-d", str(self._classes)], "-cp", f"{self._libraries}/*", str(SOURCE))
        except ServerUnavailableError as error:
            raise MissingError(f"{self.name} is not available here: {error}") from error

    def measure(self, plan: Plan) -> Figures:
        """Measure the rates, each recovery and the overload, each with newly started servers."""
        found = self._drive(plan, "rates", 0.0, {})
        if plan.has_incidents:
            found |= self._drive(plan, "recovery", plan.in_doubt, {})
            found |= self._drive(plan, "recovery", plan.in_doubt, EAGER_CHECKS, ", checks each 1 s")
            found |= self._drive(plan, "overload", plan.overload_s, {})
        return found

    def _drive(
        self, plan: Plan, part: str, amount: float, settings: dict[str, str], words: str = ""
    ) -> dict[Row, float]:
        names = _NameServer(self._libraries, {})
        broker = None
        try:
            names.start()
            broker = _Broker(self._libraries, {"namesrvAddr": names.address} | settings)
            broker.start()
            arguments = [names.address, part, f"{plan.seconds:g}", str(plan.rate), f"{amount:g}"]
            home = f"-Duser.home={broker.folder}"
            command = [_program("java"), home, "-cp", f"{self._classes}:{self._libraries}/*", SOURCE.stem, *arguments]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_LOAD_TIME_MAX_S, cwd=broker.folder
            )
            if done.returncode != 0:
                raise RuntimeError(f"the Java client failed: {done.stderr[-2000:]}")
            return dict(_figure(line, words) for line in done.stdout.splitlines() if line.count("\t") == 3)
        finally:
            if broker is not None:
                broker.kill()
                broker.remove()
            names.kill()
            names.remove()


def _figure(line: str, words: str) -> tuple[Row, float]:
    measure, load, unit, value = line.split("\t")
    return Row(measure, load + words, unit), float(value)


def _fetch(target: Path) -> None:
    pom = target / "pom.xml"
    pom.write_text(_POM.format("".join(_DEPENDENCY.format(name, VERSION) for name in _ARTIFACTS)), encoding="utf-8")
    command = [_program("mvn"), "-q", "-B", "-Dstyle.color=never", "-f", str(pom), _COPY, "-DincludeScope=runtime"]
    run(command, f"-DoutputDirectory={target}", timeout_s=_FETCH_TIME_MAX_S)


def _program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise ServerUnavailableError(f"{name} is not installed")
    return str(found)
