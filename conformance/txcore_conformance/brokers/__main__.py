"""`python -m txcore_conformance.brokers`: three brokers and a PostgreSQL for manual work, or brokers around a command.

Without `--run`, they take their usual ports where these are free, the program prints their URLs, and they run until
Ctrl-C; `--only kafka,postgresql` starts these only. With `--run kafka,nats -- COMMAND...` the program starts those
brokers on free ports, passes their URLs to the command in the environment, stops them afterwards and ends with the
command's exit status. If a broker in TXCORE_REQUIRE is not available, the program ends with status 1 before the command
runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final

from rich.console import Console

from txcore_conformance import brokers
from txcore_conformance.broker_warnings import WARNINGS_VARIABLE
from txcore_conformance.brokers import manual
from txcore_conformance.machine import die_with_parent

_WIDTH: Final = 80
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m txcore_conformance.brokers", description=__doc__)
    parser.add_argument(
        "--run", metavar="NAMES", default="", help="brokers to start for a command, separated by commas"
    )
    parser.add_argument(
        "--only", metavar="NAMES", default="", help=f"servers for manual work; default: {','.join(manual.NAMES)}"
    )
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="command to run; default: none, the brokers run until Ctrl-C"
    )
    given = parser.parse_args(arguments)
    there = brokers.NAMES if given.run else manual.NAMES
    names = [name.strip() for name in (given.run or given.only or ",".join(there)).split(",") if name.strip()]
    unknown = sorted(set(names) - set(there))
    if unknown:
        parser.error(f"no such broker: {', '.join(unknown)}; there are {', '.join(there)}")
    if bool(given.run) is not bool(given.command):
        parser.error("--run and a command belong together")
    if given.run and given.only:
        parser.error("--only is for manual work, without --run")
    console = Console(stderr=bool(given.run), width=_WIDTH, soft_wrap=False)
    handler = _SignalHandler()
    for number in _SIGNALS:
        signal.signal(number, handler)
    return _run_with(names, given.command, handler, console) if given.run else manual.serve(names, console)


def _run_with(names: Sequence[str], command: Sequence[str], handler: _SignalHandler, console: Console) -> int:
    """Run the command with these brokers and return its exit status, or 1 without a broker that is required."""
    running: dict[str, brokers.Broker] = {}
    try:
        missing = _start_all(names, running, console)
        return 1 if any(map(brokers.is_required, missing)) else _run(command, running, handler)
    except KeyboardInterrupt:
        return 130
    finally:
        for broker in running.values():
            broker.remove()


class _SignalHandler:
    """A signal handler that interrupts the program as Ctrl-C does, and keeps the signal's number."""

    number: int = 0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt


def _start_all(names: Sequence[str], running: dict[str, brokers.Broker], console: Console) -> list[str]:
    """Start brokers in parallel, print the results, and return the names of those that are not available."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(names)) as threads:
        starts = {name: threads.submit(_kept(name, running)) for name in names}
    missing = []
    for name, start in starts.items():
        error = start.exception()
        if isinstance(error, brokers.ServerUnavailableError):
            missing.append(name)
            console.print(f"{name}: {error}", style="red", markup=False, highlight=False)
        elif error is not None:
            raise error
    for text in brokers.warnings():
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)
    if running:
        said = ", ".join(f"{name} {broker.version}" for name, broker in sorted(running.items()))
        console.print(f"brokers: {said} ({time.monotonic() - began_s:.0f} s)", highlight=False)
    return missing


def _kept(name: str, running: dict[str, brokers.Broker]) -> Callable[[], None]:
    def start() -> None:
        running[name] = brokers.start(name)

    return start


def _run(command: Sequence[str], running: Mapping[str, brokers.Broker], handler: _SignalHandler) -> int:
    """Run the command with the brokers in its environment; a signal to this program is sent to the command too."""
    environment = os.environ | brokers.environment(running) | {WARNINGS_VARIABLE: "\n".join(brokers.warnings())}
    process = subprocess.Popen(  # noqa: S603 - the user's own command
        command,
        env=environment,
        preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - no thread of ours is in a lock here
    )
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            if handler.number:  # Ctrl-C at a terminal has reached the command itself
                process.send_signal(handler.number)
        else:
            return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
