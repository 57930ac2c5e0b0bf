"""`python -m benchmarks.readiness`: seconds from a fault until `/readyz` is red, and from its cure until it is green.

Real brokers and a real PostgreSQL are killed, frozen and cut off under a running `txcore checker`. A cure begins when
the server answers its own protocol again, or at the signal that lets it continue.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy
import typer
from txcore_conformance import brokers, servers

import txcore
from benchmarks.sidecar import Sidecar, running
from txcore.sqlfence.schema import tables_named

LOOK_S: Final = 0.05
WAIT_S: Final = 120.0
TABLE: Final = "txcore_tx"
SETTLING_S: Final = {"rabbitmq": 190.0}
"""Time, in seconds, that a new broker runs before it is killed. RabbitMQ 4.3.6 forgot all of its streams when it was
killed half a minute after it had made the first one."""

app = typer.Typer(help=__doc__, add_completion=False)


@dataclass(frozen=True)
class Fault:
    """One fault: what makes it, and what cures it."""

    name: str
    begin: Callable[[], Any]
    cure: Callable[[], Any]


def readiness(sidecar: Sidecar) -> tuple[int, list[str]]:
    """Return the status of `/readyz` and its reasons; `/healthz` must be well at the same time."""
    with urllib.request.urlopen(f"{sidecar.url}/healthz", timeout=5):
        pass
    try:
        with urllib.request.urlopen(f"{sidecar.url}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)["reasons"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["reasons"]


def seconds_until(sidecar: Sidecar, status: int, since_s: float) -> tuple[float, list[str]]:
    """Wait for a status of `/readyz`; return the seconds since then, and its reasons."""
    while time.monotonic() - since_s < WAIT_S:
        found, reasons = readiness(sidecar)
        if found == status:
            return time.monotonic() - since_s, reasons
        time.sleep(LOOK_S)
    raise RuntimeError(f"/readyz did not become {status} within {WAIT_S:g} s: {reasons}")


def measure(sidecar: Sidecar, name: str, fault: Fault, hold_s: float) -> None:
    """Make a fault, hold it, cure it, and print how long the checker needed to see both."""
    seconds_until(sidecar, 200, time.monotonic())
    began_s = time.monotonic()
    fault.begin()
    red_s, reasons = seconds_until(sidecar, 503, began_s)
    time.sleep(max(began_s + hold_s - time.monotonic(), 0))
    fault.cure()
    green_s, _ = seconds_until(sidecar, 200, time.monotonic())
    print(f"{name:10} {fault.name:18} red after {red_s:5.1f} s, green after {green_s:5.1f} s  {reasons[0]}", flush=True)


@contextlib.contextmanager
def checking(folder: Path, broker_url: str, database_url: str) -> Iterator[Sidecar]:
    """Run a checker of one group on the broker and the database."""
    (folder / "txcore.toml").write_text(
        f'[backends.main]\nurl = "{broker_url}"\n[databases.shop]\nurl = "{database_url}"\n'
        '[groups.orders]\ndatabase = "shop"\npartitions = 4\n'
    )
    with running(folder) as sidecar:
        yield sidecar


@contextlib.contextmanager
def message_table_locked(database_url: str) -> Iterator[None]:
    """Hold a lock on the message table, so that the relay waits."""
    engine = sqlalchemy.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"LOCK TABLE {tables_named(TABLE).message} IN ACCESS EXCLUSIVE MODE"))
        yield
    engine.dispose()


def faults_of(server: Any, name: str) -> Iterator[Fault]:
    """Yield the faults of a server's own processes, after a time that it may need for the next one."""
    yield Fault(f"{name} frozen", server.pause, server.resume)
    time.sleep(SETTLING_S.get(server.name, 0.0))
    yield Fault(f"{name} killed", server.kill, server.start)


@app.command()
def main(
    names: Annotated[str, typer.Option(help="brokers, with commas between")] = "kafka,rabbitmq,nats",
    hold_s: Annotated[float, typer.Option(help="least time from fault to cure")] = 15.0,
) -> None:
    """Measure every fault on each broker."""
    for name in names.split(","):
        with contextlib.ExitStack() as closing, tempfile.TemporaryDirectory() as folder:
            database = servers.postgresql()
            closing.callback(database.remove)
            broker = brokers.start(name, own=True)
            closing.callback(broker.remove)
            database_url = database.fresh_database()
            engine = sqlalchemy.create_engine(database_url)
            txcore.SqlFence(engine, table=TABLE).create()
            engine.dispose()
            with checking(Path(folder), broker.url, database_url) as sidecar:
                for fault in [*faults_of(broker, "broker"), *faults_of(database, "database")]:
                    measure(sidecar, name, fault, hold_s)
                lock = closing.enter_context(contextlib.ExitStack())
                take = partial(lock.enter_context, message_table_locked(database_url))
                measure(sidecar, name, Fault("relay stuck", take, lock.close), hold_s)
            proxy = broker.proxy
            with checking(Path(folder), broker.proxied_url, database_url) as sidecar:
                measure(sidecar, name, Fault("broker cut off", proxy.freeze, proxy.forward), hold_s)


if __name__ == "__main__":
    app()
