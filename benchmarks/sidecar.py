"""`python -m benchmarks.sidecar COMMAND`: the checker process measured against the promises to operators.

*orphans*: orphaned halves, the SQL fence alone; from an empty folder, as a user would start it. *idle*: three groups
with eight partitions each and no halves. *takeovers*: one of three checkers is killed repeatedly under load.
*garbage*: records that are not halves. *outage*: the HTTP callback is down for a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy
import typer
from txcore_conformance.demo.consuming import open_consumer
from txcore_conformance.kit import Recorder

import txcore
from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.ids import IdFactory, partition_of
from txcore.port import Backend
from txcore.records import Half, HalfRecord, Status, TargetMessage

CLOCK: Final = SystemClock()
TOPIC: Final = "orders.created"
BATCH: Final = 500
FENCE_BATCH: Final = 1_000
WAIT_S: Final = 300.0
SETTLE_S: Final = 15.0
"""Time, in seconds, without work after which a checker is idle."""

app = typer.Typer(help=__doc__, add_completion=False)


@dataclass
class Sidecar:
    """A running `txcore checker` in *folder*."""

    folder: Path
    process: subprocess.Popen[bytes]
    url: str = ""

    def find_url(self) -> None:
        """Wait until the checker has printed its URL."""
        log = self.folder / "checker.log"
        for _ in range(600):
            match = re.search(r"http=(http://\S+)", log.read_text())
            if match:
                self.url = match[1]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the checker did not start: {log.read_text()}")

    def get(self, path: str) -> Any:
        """Return the response of a path."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            body = answer.read()
        return json.loads(body) if path.startswith("/api") else body.decode()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all labels."""
        return sum_of(self.get("/metrics"), name)

    def cpu_s(self) -> float:
        """Return the checker's CPU time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Return the checker's resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def sum_of(page: str, name: str) -> float:
    """Return the sum of a metric over all labels, from one page of metrics."""
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name}{{"))


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Sidecar]:
    """Run `txcore checker` in *folder*."""
    with (folder / "checker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "txcore.cli", "checker", "--set", "http.port=0", *arguments],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    sidecar = Sidecar(folder, process)
    try:
        sidecar.find_url()
        yield sidecar
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        print(f"ended with {code}")


@contextlib.contextmanager
def broker_url(name: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a broker: a file, one that the environment names, or one that is started here."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'broker.db'}"
    elif "://" in name:
        yield name
    else:
        from txcore_conformance import brokers  # noqa: PLC0415 - brokers are optional

        broker = brokers.start(name)
        try:
            yield broker.url
        finally:
            broker.remove()


def append_orphans(
    backend: Backend, fence: txcore.SqlFence | None, group: str, topic: str, count: int, lead_s: float = 6.0
) -> set[str]:
    """Append *count* orphaned halves, every second one committed; returns the ids of the committed ones.

    All fall due together, *lead_s* after the first append, or at once if appending takes longer than that.
    """
    ids = IdFactory(CLOCK, system_randomness())
    partitions = backend.ensure_group(group, 8).result(30)
    made = [ids.new() for _ in range(count)]
    committed = made[::2]
    for start in range(0, len(committed) if fence is not None else 0, FENCE_BATCH):
        assert fence is not None
        assert isinstance(fence.engine, sqlalchemy.Engine)
        with fence.engine.begin() as connection:
            for identity in committed[start : start + FENCE_BATCH]:
                fence.insert(connection, identity, group)
    size = min(BATCH, backend.capabilities.batch_count_max)
    due_s = CLOCK.elapsed_s() + lead_s
    for start in range(0, count, size):
        records = []
        for identity in made[start : start + size]:
            partition = partition_of(identity, partitions)
            messages = [TargetMessage(topic, b"k", b'{"order": 1}', {})]
            immunity_ms = max(round((due_s - CLOCK.elapsed_s()) * 1000), 1)
            is_fenced = fence is not None
            half = Half(
                1, identity, group, partition, 0, CLOCK.wall_ms(), immunity_ms, 0, 0, is_fenced, "orphan", messages
            )
            records.append(HalfRecord(group, partition, identity, 0, wire.encode_half(half), messages))
        batch = Recorder(records)
        backend.append_halves(batch)
        assert {each.status for each in batch.wait(backend, 60.0)} == {Status.DURABLE}
    return {wire.target_id(identity, 0) for identity in committed}


def consume(url: str, topic: str, group: str, expected: int) -> list[str]:
    """Return the ids of the delivered messages, once *count* have arrived and no more follow."""
    consumer = open_consumer(url, topic, group)
    found: list[str] = []
    quiet_at_s = time.monotonic() + 60
    while time.monotonic() < quiet_at_s:
        batch = consumer.poll(1_000)
        for message in batch:
            value = message.headers["txcore-id"]
            found.append(value if isinstance(value, str) else value.decode())
        if batch:
            consumer.ack(batch[-1].position)
            quiet_at_s = time.monotonic() + (2 if len(found) >= expected else 60)
        else:
            time.sleep(0.05)
    consumer.close()
    return found


@app.command()
def orphans(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    database: Annotated[str, typer.Option(help="The fence's database; a file of its own when empty.")] = "",
    count: Annotated[int, typer.Option(min=2, help="Halves.")] = 10_000,
    lead_s: Annotated[float, typer.Option(min=1, help="Seconds from the first append until all are due.")] = 40.0,
) -> None:
    """Resolve orphaned halves with the fence alone, and print the time since the first due time."""
    with tempfile.TemporaryDirectory(prefix="txcore-orphans-") as name, broker_url(broker, Path(name)) as url:
        folder = Path(name)
        database = database or f"sqlite:///{folder / 'shop.db'}"
        subprocess.run([sys.executable, "-m", "txcore.cli", "config", "init"], cwd=folder, check=True)
        file = folder / "txcore.toml"
        text = file.read_text().replace("sqlite:///broker.db", url).replace("sqlite:///shop.db", database)
        file.write_text(text)
        assert url in tomllib.loads(text)["backends"]["main"]["url"]
        fence = txcore.SqlFence(sqlalchemy.create_engine(database))
        fence.create()
        topic = open_consumer(url, TOPIC, "bench").topic
        backend = txcore.connect(url)
        backend.ensure_group("orders", 8).result(60)
        with running(folder) as sidecar:
            while sidecar.metric("txcore_partitions") < 8:
                time.sleep(0.1)
            began_s = time.monotonic()
            committed = append_orphans(backend, fence, "orders", topic, count, lead_s)
            first_due_s = began_s + lead_s
            print(f"{count} halves appended in {time.monotonic() - began_s:.1f} s, all due after {lead_s:g} s")
            time.sleep(max(first_due_s - time.monotonic(), 0.0))
            done = 0.0
            while done < count and time.monotonic() < first_due_s + WAIT_S:
                time.sleep(0.1)
                done = sidecar.metric("txcore_ends_total")
            end_s = time.monotonic()
            print(f"resolved {done:.0f} in {end_s - first_due_s:.1f} s after the first due time")
            print(f"cpu {sidecar.cpu_s():.1f} s, memory {sidecar.memory_mb():.0f} MB")
            ids = consume(url, topic, "bench", len(committed))
            missing, extra = committed - set(ids), set(ids) - committed
            print(
                f"delivered {len(ids)}, lost {len(missing)}, leaked {len(extra)}, repeated {len(ids) - len(set(ids))}"
            )
            print(f"load average {os.getloadavg()[0]:.1f}")
        backend.close().result(10)
        if missing or extra:
            raise typer.Exit(1)


@app.command()
def idle(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds to measure.")] = 30.0,
) -> None:
    """Measure the cost of three idle groups of eight partitions."""
    with tempfile.TemporaryDirectory(prefix="txcore-idle-") as name, broker_url(broker, Path(name)) as url:
        folder = Path(name)
        database = f"sqlite:///{folder / 'shop.db'}"
        txcore.SqlFence(sqlalchemy.create_engine(database)).create()
        groups = "".join(f'[groups.g{n}]\ndatabase = "main"\npartitions = 8\n' for n in range(3))
        (folder / "txcore.toml").write_text(
            f'[backends.main]\nurl = "{url}"\n[databases.main]\nurl = "{database}"\n{groups}'
        )
        with running(folder) as sidecar:
            deadline_s = time.monotonic() + 60
            while sidecar.metric("txcore_partitions") < 24 and time.monotonic() < deadline_s:
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            before_s, began_s = sidecar.cpu_s(), time.monotonic()
            time.sleep(seconds)
            share = (sidecar.cpu_s() - before_s) / (time.monotonic() - began_s)
            print(
                f"idle, {sidecar.metric('txcore_partitions'):.0f} partitions: {share:.2%} of a core, "
                f"{sidecar.memory_mb():.0f} MB"
            )


@app.command()
def takeovers(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    kills: Annotated[int, typer.Option(min=1, help="Checkers to kill.")] = 50,
    load: Annotated[int, typer.Option(min=2, help="Orphaned halves between two kills.")] = 40,
) -> None:
    """Kill one of three checkers repeatedly under load; print the time that its partitions were without an owner."""
    with (
        tempfile.TemporaryDirectory(prefix="txcore-takeovers-") as name,
        broker_url(broker, Path(name)) as url,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        database = f"sqlite:///{folder / 'shop.db'}"
        (folder / "txcore.toml").write_text(
            f'[backends.main]\nurl = "{url}"\n[databases.main]\nurl = "{database}"\n'
            '[groups.orders]\ndatabase = "main"\npartitions = 8\n'
        )
        fence = txcore.SqlFence(sqlalchemy.create_engine(database))
        fence.create()
        topic = open_consumer(url, TOPIC, "bench").topic
        backend = txcore.connect(url)
        backend.ensure_group("orders", 8).result(30)
        places = [folder / str(number) for number in range(3)]
        checkers = []
        for place in places:
            place.mkdir()
            (place / "txcore.toml").symlink_to(folder / "txcore.toml")
            checkers.append(stack.enter_context(killable(place)))
        _await_partitions(checkers, 8)
        committed: set[str] = set()
        times_s = []
        for number in range(kills):
            committed |= append_orphans(backend, fence, "orders", topic, load)
            victim = checkers[number % 3]
            victim.process.kill()
            victim.process.wait()
            began_s = time.monotonic()
            _await_partitions([each for each in checkers if each is not victim], 8)
            times_s.append(time.monotonic() - began_s)
            checkers[number % 3] = stack.enter_context(killable(victim.folder))
            _await_partitions(checkers, 8)
        ids = consume(url, topic, "bench", len(committed))
        missing, extra = committed - set(ids), set(ids) - committed
        times_s.sort()
        print(f"{kills} kills: takeover p50 {times_s[len(times_s) // 2]:.1f} s, max {times_s[-1]:.1f} s")
        print(f"delivered {len(ids)}, lost {len(missing)}, leaked {len(extra)}, repeated {len(ids) - len(set(ids))}")
        print(f"load average {os.getloadavg()[0]:.1f}")
        backend.close().result(10)
        if missing or extra:
            raise typer.Exit(1)


@app.command()
def outage(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    count: Annotated[int, typer.Option(min=1, help="Halves without a fence.")] = 5_000,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds that the callback stays down.")] = 60.0,
) -> None:
    """Stop the HTTP callback while halves wait for it; print the cost, and the time until they are decided."""
    with tempfile.TemporaryDirectory(prefix="txcore-outage-") as name, broker_url(broker, Path(name)) as url:
        folder = Path(name)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        (folder / "txcore.toml").write_text(
            f'[backends.main]\nurl = "{url}"\n[groups.orders]\npolicy.check_max = 1\n'
            f'callback.url = "http://127.0.0.1:{port}/"\n'
        )
        open_consumer(url, TOPIC, "bench").close()
        backend = txcore.connect(url)
        append_orphans(backend, None, "orders", TOPIC, count)
        with running(folder) as sidecar:
            while sidecar.metric("txcore_source_up") or sidecar.metric("txcore_pending_halves") < count:
                time.sleep(0.1)
            before_s, asked, began_s = (
                sidecar.cpu_s(),
                sidecar.metric("txcore_callback_requests_total"),
                time.monotonic(),
            )
            time.sleep(seconds)
            share = (sidecar.cpu_s() - before_s) / (time.monotonic() - began_s)
            asked = sidecar.metric("txcore_callback_requests_total") - asked
            print(f"{count} halves wait: {share:.1%} of a core, {asked / seconds:.2f} requests/s, ", end="")
            print(
                f"{sidecar.metric('txcore_parked_total'):.0f} parked, {sidecar.metric('txcore_ends_total'):.0f} ended"
            )
            server = ThreadingHTTPServer(("127.0.0.1", port), Committing)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            began_s = time.monotonic()
            while sidecar.metric("txcore_ends_total") < count and time.monotonic() < began_s + WAIT_S:
                time.sleep(0.1)
            print(
                f"back: {sidecar.metric('txcore_ends_total'):.0f} ended in {time.monotonic() - began_s:.1f} s, ", end=""
            )
            print(f"{sidecar.metric('txcore_parked_total'):.0f} parked, load average {os.getloadavg()[0]:.1f}")
            server.shutdown()
        backend.close().result(10)


class Committing(BaseHTTPRequestHandler):
    """Answers COMMIT to everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"state": "COMMIT"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def killable(folder: Path) -> Iterator[Sidecar]:
    """Run a checker that the block may kill."""
    with (folder / "checker.log").open("wb") as log:
        command = [sys.executable, "-m", "txcore.cli", "checker", "--set", "http.port=0"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    sidecar = Sidecar(folder, process)
    try:
        sidecar.find_url()
        yield sidecar
    finally:
        process.terminate()
        process.wait(60)


def _await_partitions(checkers: list[Sidecar], count: int) -> None:
    """Wait until *checkers* hold *count* partitions, each claimed."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        claimed = set()
        for each in checkers:
            partitions = each.get("/api/v1/groups/orders")["partitions"]
            claimed |= {partition["partition"] for partition in partitions if partition["is_claimed"]}
        if len(claimed) == count:
            return
        time.sleep(0.05)
    raise RuntimeError(f"{count} partitions were not claimed within {WAIT_S:g} s")


@app.command()
def garbage(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    count: Annotated[int, typer.Option(min=1, help="Records.")] = 10_000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of each record.")] = 200,
) -> None:
    """Append records that are not halves; print the memory of parking them, and whether later halves are decided."""
    with tempfile.TemporaryDirectory(prefix="txcore-garbage-") as name, broker_url(broker, Path(name)) as url:
        folder = Path(name)
        database = f"sqlite:///{folder / 'shop.db'}"
        (folder / "txcore.toml").write_text(
            f'[backends.main]\nurl = "{url}"\n[databases.main]\nurl = "{database}"\n'
            '[groups.orders]\ndatabase = "main"\n'
        )
        fence = txcore.SqlFence(sqlalchemy.create_engine(database))
        fence.create()
        topic = open_consumer(url, TOPIC, "bench").topic
        backend = txcore.connect(url)
        partitions = backend.ensure_group("orders", 8).result(30)
        ids = IdFactory(CLOCK, system_randomness())
        with running(folder) as sidecar:
            before_mb = sidecar.memory_mb()
            for start in range(0, count, BATCH):
                made = [ids.new() for _ in range(min(BATCH, count - start))]
                records = [
                    HalfRecord("orders", partition_of(identity, partitions), identity, 0, os.urandom(size), ())
                    for identity in made
                ]
                batch = Recorder(records)
                backend.append_halves(batch)
                assert {each.status for each in batch.wait(backend, 60.0)} == {Status.DURABLE}
            began_s = time.monotonic()
            append_orphans(backend, fence, "orders", topic, 2)
            parked = ends = 0.0
            while (parked < count or ends < 2) and time.monotonic() < began_s + WAIT_S:
                time.sleep(0.1)
                parked, ends = sidecar.metric("txcore_parked_total"), sidecar.metric("txcore_ends_total")
            status = Path(f"/proc/{sidecar.process.pid}/status").read_text()
            peak_mb = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]
            print(f"parked {parked:.0f} of {count} records of {size} bytes, {ends:.0f} of 2 halves after them done")
            print(f"{time.monotonic() - began_s:.1f} s; memory {before_mb:.0f} MB before, {peak_mb:.0f} MB at most")
        backend.close().result(10)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the exit ends the servers
    app()
