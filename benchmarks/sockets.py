"""`python -m benchmarks.sockets run`: 10,000 connections are held against a checker's endpoint, and made anew for 60 s.

Meanwhile every open path is asked, orphans are appended, and a second client sends half a request on each connection.
The run fails if a path is not answered with 200, an orphan is not judged, or the log has more than 200 lines.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Annotated, Final

import sqlalchemy
import typer

import txcore
from benchmarks.readiness import seconds_until
from benchmarks.sidecar import TOPIC, append_orphans, consume, running

PATHS: Final = ("/healthz", "/readyz", "/metrics")
SENT: Final = (b"", b"GET /he", b"POST /console/sign-in HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n")
LOG_LINES_MAX: Final = 200
ORPHANS_COUNT: Final = 40

app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def hold(port: int, count: int, seconds: float) -> None:
    """Hold *count* connections and replace each one that the server closes; print how many were made."""
    soft = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
    open_now, made, end_s = selectors.DefaultSelector(), 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        while len(open_now.get_map()) < count and time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                made += 1
                connection = socket.create_connection(("127.0.0.1", port), timeout=0.5)
                connection.setblocking(False)
                connection.send(SENT[made % len(SENT)])
                open_now.register(connection, selectors.EVENT_READ)
            if made % 100 == 0:
                _drop_closed(open_now, 0)
        _drop_closed(open_now, 0.1)
    print(made)


def _drop_closed(open_now: selectors.BaseSelector, timeout_s: float) -> None:
    for key, _ in open_now.select(timeout_s):
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        with contextlib.suppress(BlockingIOError):
            try:
                if connection.recv(1 << 16):
                    continue
            except ConnectionError:
                pass
            open_now.unregister(connection)
            connection.close()


@app.command()
def run(
    count: Annotated[int, typer.Option(help="connections held at a time")] = 10_000,
    seconds: Annotated[float, typer.Option(help="length of the attack")] = 60.0,
) -> None:
    """Attack a checker, and print what it answered."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        broker, database = f"sqlite:///{folder / 'broker.db'}", f"sqlite:///{folder / 'shop.db'}"
        (folder / "txcore.toml").write_text(
            f'[backends.main]\nurl = "{broker}"\n[databases.shop]\nurl = "{database}"\n'
            '[groups.orders]\ndatabase = "shop"\npartitions = 8\n'
        )
        engine = sqlalchemy.create_engine(database)
        fence = txcore.SqlFence(engine)
        fence.create()
        with txcore.connect(broker) as backend, running(folder) as sidecar:
            seconds_until(sidecar, 200, time.monotonic())
            port = int(sidecar.url.rpartition(":")[2])
            command = [sys.executable, "-m", "benchmarks.sockets", "hold", str(port), str(count // 2), str(seconds)]
            attackers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
            end_s, delays_s, faults, wanted = time.monotonic() + seconds, list[float](), list[str](), set[str]()
            while time.monotonic() < end_s:
                if len(wanted) < ORPHANS_COUNT and len(delays_s) % 20 == 0:
                    wanted |= append_orphans(backend, fence, "orders", TOPIC, 10, lead_s=0.1)
                for path in PATHS:
                    began_s = time.monotonic()
                    try:
                        with urllib.request.urlopen(sidecar.url + path, timeout=5):
                            delays_s.append(time.monotonic() - began_s)
                    except OSError as error:
                        faults.append(f"{path}: {error}")
                time.sleep(0.2)
            connections = sum(int(each.communicate(timeout=30)[0]) for each in attackers)
            found = consume(broker, TOPIC, "sockets", len(wanted))
            memory_mb = sidecar.memory_mb()
        lines = len((folder / "checker.log").read_text().splitlines())
        engine.dispose()
    delays_s.sort()
    print(f"{connections:,} connections in {seconds:g} s; {len(delays_s)} answers, {len(faults)} faults {faults[:3]}")
    print(f"answers: median {delays_s[len(delays_s) // 2] * 1000:.0f} ms, longest {delays_s[-1] * 1000:.0f} ms")
    print(f"orphans: {len(set(found) & wanted)} of {len(wanted)} delivered; log {lines} lines; {memory_mb:.0f} MB")
    is_well = not faults and wanted <= set(found) and lines <= LOG_LINES_MAX
    raise typer.Exit(0 if is_well else 1)


if __name__ == "__main__":
    app()
