"""Brokers and a PostgreSQL for manual work: on the ports that people expect, with progress, until Ctrl-C."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.table import Table

from txcore.backends.options import split_url
from txcore_conformance import brokers, progress, servers
from txcore_conformance.processes import ManagedProcess

DATABASE: Final = "postgresql"
NAMES: Final = (*brokers.NAMES, DATABASE)
_LOOK_EVERY_S: Final = 1.0
_LINE_EVERY_S: Final = 10.0
_GROUP: Final = "shop"
#: PostgreSQL's settings of a server that is to be durable, unlike a test's.
_DURABLE: Final = {"fsync": "on", "full_page_writes": "on"}

Server = brokers.Broker | servers.DatabaseServer


def serve(names: Sequence[str], console: Console) -> int:
    """Start the servers that are available, print how to use them, and run until Ctrl-C; returns the exit status."""
    running: dict[str, Server] = {}
    try:
        _start_all(names, running, console)
        if not running:
            return 1
        _show(running, console)
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        for server in running.values():
            server.remove()
    return 0


def _start_all(names: Sequence[str], running: dict[str, Server], console: Console) -> None:
    """Start the servers in parallel; print each step that takes long, and each server when it is ready or missing."""
    shown = _Progress(console, names)
    with ThreadPoolExecutor(len(names)) as threads, shown:
        starts = {threads.submit(_started, name, running, shown): name for name in names}
        left: set[Future[None]] = set(starts)
        while left:
            done, left = wait(left, _LOOK_EVERY_S, return_when="FIRST_COMPLETED")
            for start in done:
                shown.end(starts[start], running.get(starts[start]), start.exception())
            shown.refresh()
    for text in brokers.warnings():
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)


def _started(name: str, running: dict[str, Server], shown: _Progress) -> None:
    with progress.heard(shown.listener(name)):
        running[name] = start(name)


def start(name: str) -> Server:
    """Return a running server, on its usual ports where they are free.

    Raises:
        ServerUnavailableError: the server is not available here.
    """
    if name == DATABASE:
        return servers.postgresql(takes_usual_ports=True, **_DURABLE)
    return brokers.start(name, takes_usual_ports=True)


class _Progress:
    """The state of each start: on a terminal one line that changes, elsewhere a line every ten seconds."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._steps = dict.fromkeys(names, "starts")
        self._began_s = self._line_s = time.monotonic()
        self._status = Status("", console=console)

    def __enter__(self) -> None:
        if self._console.is_terminal:
            self._status.start()
            self.refresh()

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def listener(self, name: str) -> Callable[[str], None]:
        """Return the function to which the start of one server reports its steps."""

        def hear(text: str) -> None:
            self._steps[name] = text
            self._print(f"{name}: {text}")

        return hear

    def end(self, name: str, server: Server | None, error: BaseException | None) -> None:
        """Print that a server runs, or why not.

        Raises:
            BaseException: *error*, unless it says that the server is not available here.
        """
        self._steps.pop(name)
        if server is not None:
            self._print(f"{name}: ready after {time.monotonic() - self._began_s:.0f} s")
            self._say_if_elsewhere(name, server)
        elif isinstance(error, brokers.ServerUnavailableError):
            self._print(f"{name}: {error}", "red")
        elif error is not None:
            raise error

    def refresh(self) -> None:
        """Show how long the servers that are not ready have been starting."""
        now_s = time.monotonic()
        states = ", ".join(f"{name} ({step})" for name, step in self._steps.items())
        text = f"{now_s - self._began_s:.0f} s, not ready yet: {states}"
        if self._console.is_terminal:
            self._status.update(text)
        elif self._steps and now_s - self._line_s >= _LINE_EVERY_S:
            self._line_s = now_s
            self._print(text)

    def _say_if_elsewhere(self, name: str, server: Server) -> None:
        if not isinstance(server, ManagedProcess):
            self._print(f"{name}: runs already, as the environment says: {server.url}")
        elif server.port != server.usual_port:
            text = f"{name}: another program uses port {server.usual_port}, so this one is on {server.port}"
            self._print(text, "yellow")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False)


def _show(running: Mapping[str, Server], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("server", "version", "address", "monitoring"):
        table.add_column(title, overflow="fold")
    for name, server in sorted(running.items()):
        address = split_url(server.url).netloc.rpartition("@")[2]
        if isinstance(server, brokers.Broker):
            table.add_row(name, server.version, address, server.monitor_url)
        else:
            table.add_row(name, _version(server), address, "")
    lines = [f"export {name}={value}" for name, value in variables(running).items()]
    console.print()
    console.print(table)
    console.print("\nIn another terminal, for the commands and programs of the documentation:\n", highlight=False)
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    folders = {server.folder.parent for server in running.values() if isinstance(server, ManagedProcess)}
    where = f"Logs and data are in {folders.pop()}. " if folders else ""
    console.print(f"\n{where}Ctrl-C ends the servers and deletes all.", highlight=False)


def variables(running: Mapping[str, Server]) -> dict[str, str]:
    """Return what the tests read (a URL of each server), and what the command txcore reads."""
    started = {name: server for name, server in sorted(running.items()) if isinstance(server, brokers.Broker)}
    found = {name: value for name, value in brokers.environment(started).items() if name.endswith("_URL")}
    first = next((started[name].url for name in brokers.NAMES if name in started), "")
    database = running[DATABASE].url if DATABASE in running else ""
    found |= {
        "TXCORE_POSTGRES_URL": database,
        "TXCORE_BROKER": os.environ.get("TXCORE_BROKER", first),
        "TXCORE_DATABASE": os.environ.get("TXCORE_DATABASE", database),
        "TXCORE_GROUP": os.environ.get("TXCORE_GROUP", _GROUP),
    }
    return {name: value for name, value in found.items() if value}


def _version(server: servers.DatabaseServer) -> str:
    from sqlalchemy import create_engine  # noqa: PLC0415 - not needed without a database
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    with create_engine(server.url, poolclass=NullPool).connect() as connection:
        return ".".join(map(str, connection.dialect.server_version_info or ()))
