"""RocketMQ, driven by a small Java client, with its defaults (asynchronous master, asynchronous flush).

Recovery is measured with its defaults (every 30 s a check of undecided transactions older than 6 s), and with both
at 1 s.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from txcore_conformance.brokers import maven
from txcore_conformance.machine import base_folder, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program

from benchmarks.rivals import rocketmq_servers
from benchmarks.rivals.system import Figures, MissingError, Plan, Row

SOURCE: Final = Path(__file__).with_name("RocketmqLoad.java")
_LOAD_TIME_MAX_S: Final = 300.0
EAGER_CHECKS: Final = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}


class RocketMQ:
    """The system RocketMQ; see the module."""

    name = f"RocketMQ {rocketmq_servers.VERSION}"

    def prepare(self) -> None:
        """Fetch the jars, once per machine, and compile the client."""
        try:
            self._libraries = rocketmq_servers.libraries()
            self._classes = base_folder() / "rocketmq_load"
            run([_compiler(), "-nowarn", "-d", str(self._classes)], "-cp", f"{self._libraries}/*", str(SOURCE))
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
        names = rocketmq_servers.NameServer(self._libraries, {})
        broker = None
        try:
            names.start()
            broker = rocketmq_servers.Broker(self._libraries, {"namesrvAddr": names.address} | settings)
            broker.start()
            arguments = [names.address, part, f"{plan.seconds:g}", str(plan.rate), f"{amount:g}"]
            home = f"-Duser.home={broker.folder}"
            command = [str(maven.java()), home, "-cp", f"{self._classes}:{self._libraries}/*", SOURCE.stem, *arguments]
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


def _compiler() -> str:
    found = find_program("javac")
    if found is None:
        raise ServerUnavailableError("javac is not installed")
    return str(found)
