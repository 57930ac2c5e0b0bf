"""`python -m benchmarks.scale`: the cost of a transaction as the numbers of transactions and partitions grow.

The processor time per transaction should stay flat; rates depend on the machine's other work. `sent` and `partitions`
measure it for the producer and the broker with more transactions and more partitions. `waiting` measures it for the
checker while other halves wait for a decision. `checkers`: the time of one, two and three checkers for the halves of a
dead producer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import rich
import rich.table
import typer

import txcore
from benchmarks import databases, machine, processes
from benchmarks.brokers import SERVERS, start_server
from benchmarks.orphans import FAR_S, GROUP
from benchmarks.place import BODY_SIZE, POLICY, Place, Stage
from benchmarks.recovery import CALM_S, Scene, decided, scene, wait_for
from benchmarks.sidecar import Sidecar, running, sum_of
from benchmarks.styles import Committing, require_accepted

BATCH: Final = 2_000
COUNT: Final = 20_000
"""Number of transactions of one row, in sweeps that do not vary this number."""
PARTITIONS: Final = (1, 4, 16, 64)
WAITING: Final = (0, 1_000, 10_000, 100_000)
CHECKERS: Final = (1, 2, 3)
BODY: Final = b"x" * BODY_SIZE

Rows = Iterator[dict[str, float]]


def sent(broker: str, count_max: int) -> Rows:
    """Return the cost of a transaction after 10,000, 100,000, ... up to *count_max* of one producer and one group."""
    with _place(broker) as place:
        send, producer = 0, _producer(place, None)
        for power in itertools.count(4):
            count = min(10**power, count_max)
            yield {"transactions": count} | _cost(place, producer, count - send)
            send = count
            if count == count_max:
                return


def partitions(broker: str, _: int) -> Rows:
    """Return the cost of a transaction in groups of 1 to 64 partitions."""
    for count in PARTITIONS:
        with _place(broker) as place:
            producer = _producer(place, count)
            _send(place, producer, BATCH)
            yield {"partitions": count} | _cost(place, producer, COUNT)


def waiting(broker: str, waiting_max: int) -> Rows:
    """Return the cost of a closed half for a checker that holds 0 to *waiting_max* undecided ones."""
    with scene(broker, "listener") as at, running(at.folder) as checker:
        there, closed = 0, 0
        for count in (each for each in WAITING if each <= waiting_max):
            if count:
                at.write_orphans(count - there, FAR_S, BODY_SIZE)
            there = count
            wait_for(lambda: checker.metric("txcore_pending_halves"), count)
            time.sleep(CALM_S)
            before_s = checker.cpu_s()
            backend = txcore.connect(at.url)
            producer = txcore.TransactionProducer(backend, GROUP, listener=Committing(), policy=POLICY)
            _send_to(producer, at.topic, COUNT)
            closed += COUNT
            wait_for(lambda: decided(checker), closed, 1.0)  # each request costs the checker processor time
            cpu_s = checker.cpu_s() - before_s
            backend.close().result(30)
            yield {"waiting": count, "checker_us": cpu_s / COUNT * 1e6, "checker_mb": checker.memory_mb()}


def checkers(broker: str, count: int) -> Rows:
    """Return the time of one, two and three checkers to decide *count* halves that fall due together."""
    for number in CHECKERS:
        yield _shared_by(number, broker, count)


def _shared_by(number: int, broker: str, count: int) -> dict[str, float]:
    with scene(broker, "postgresql") as at, contextlib.ExitStack() as stack:
        said = at.write_orphans(count, 10 + count / 2_000, BODY_SIZE)
        several = [stack.enter_context(running(_copy(at, each))) for each in range(number)]
        time.sleep(max(0.0, said["due_s"] - time.monotonic()))  # until then all halves are read, and none is decided
        done = wait_for(lambda: _all_decided(several), count)
        took_s = time.monotonic() - said["due_s"]
        cpu_s = sum(each.cpu_s() for each in several)
    return {"checkers": number, "decided": done, "from_first_due_s": took_s, "checkers_cpu_s": cpu_s}


SWEEPS: Final[dict[str, tuple[Callable[[str, int], Rows], int]]] = {
    "sent": (sent, 1_000_000),
    "partitions": (partitions, 0),
    "waiting": (waiting, 100_000),
    "checkers": (checkers, 20_000),
}
"""The sweeps by name, each with its default maximum."""


@contextlib.contextmanager
def _place(broker: str) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txcore-scale-")))
        servers = {}
        if broker in SERVERS:
            servers[broker] = start_server(broker)
            stack.callback(servers[broker].close)
        yield stack.enter_context(Place(folder, broker, Stage(databases.SqliteFile(), servers)))


def _producer(place: Place, partition_count: int | None) -> txcore.TransactionProducer:
    return txcore.TransactionProducer(
        place.backend(), place.group, listener=Committing(), policy=POLICY, partition_count=partition_count
    )


def _cost(place: Place, producer: txcore.TransactionProducer, count: int) -> dict[str, float]:
    """Send *count* transactions; returns the cost of each."""
    pid = place.server.pid if place.server is not None else None
    broker_s, own_s, began_s = processes.cpu_s(pid) if pid else 0.0, time.process_time(), time.perf_counter()
    _send(place, producer, count)
    took_s, own_s = time.perf_counter() - began_s, time.process_time() - own_s
    broker_s = (processes.cpu_s(pid) if pid else 0.0) - broker_s
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "per_s": count / took_s,
        "own_us": own_s / count * 1e6,
        "broker_us": broker_s / count * 1e6,
        "memory_max_mb": memory_mb,
    }


def _send(place: Place, producer: txcore.TransactionProducer, count: int) -> None:
    _send_to(producer, place.topic, count)


def _send_to(producer: txcore.TransactionProducer, topic: str, count: int) -> None:
    for start in range(0, count, BATCH):
        batch = ((txcore.Message(topic, BODY, b"12345678"), None) for _ in range(min(BATCH, count - start)))
        for result in producer.send_many(batch):
            require_accepted(result.end)


def _copy(at: Scene, number: int) -> Path:
    """Return a folder of its own for one of several checkers."""
    folder = at.folder / f"checker-{number}"
    folder.mkdir()
    shutil.copy(at.folder / "txcore.toml", folder)
    return folder


def _all_decided(several: Sequence[Sidecar]) -> float:
    """Return the number of halves read, or 0 while one is pending; a half that changed its owner counts twice."""
    pages = [each.get("/metrics") for each in several]
    is_over = not any(sum_of(page, "txcore_pending_halves") for page in pages)
    return sum(sum_of(page, "txcore_halves_total") for page in pages) if is_over else 0.0


def main(
    sweep: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SWEEPS)}; may be repeated.")] = None,
    broker: Annotated[str, typer.Option(help="kafka, rabbitmq, nats or sqlite.")] = "kafka",
    most: Annotated[
        int, typer.Option(min=0, help="Maximum of `sent`, `waiting` or `checkers`; 0: each one's default.")
    ] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Store the figures in this file.")] = None,
) -> None:
    """Measure the costs by size."""
    unknown = [name for name in sweep or () if name not in SWEEPS]
    if unknown or broker not in (*SERVERS, "sqlite"):
        raise typer.BadParameter("see --help for the sweeps and the brokers")
    machine.warn_if_loaded()
    report: dict[str, Any] = {"broker": broker, **machine.occasion(), "load_average_before": machine.load_average()}
    for name in sweep or SWEEPS:
        measure, far = SWEEPS[name]
        rows = report[name] = []
        for row in measure(broker, most or far):
            rows.append(row)
            print(f"{name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in row.items()), flush=True)
        table = rich.table.Table(f"{name}, {broker}", box=None)
        for key in list(rows[0])[1:]:
            table.add_column(key, justify="right")
        for row in rows:
            table.add_row(*(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in row.values()))
        rich.print(table)
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the exit ends the servers
    typer.run(main)
