"""`python -m benchmarks.soak run`: producers, a checker and its relays for an hour, on all brokers; does memory grow?

Each broker has a producer process with 25 transactions a second: 5 of 100 end with UNKNOWN, so that the checker decides
them by the fence, and 10 of 100 go through the message table. One checker serves all groups. At the end every committed
message must have arrived. The slope of each process's memory is that of a line through its later samples.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import linear_regression
from typing import Annotated, Any, Final

import sqlalchemy
import typer
from txcore_conformance import brokers, servers
from txcore_conformance.demo.consuming import open_consumer

import txcore
from benchmarks.processes import cpu_s, memory_mb
from benchmarks.sidecar import running
from txcore.signals import end_requested

TOPIC: Final = "orders.created"
UNKNOWN_EACH: Final = 20
TABLE_EACH: Final = 10
SAMPLE_S: Final = 10.0
SETTLE_S: Final = 300.0
"""Longest time, in seconds, after the load until the last message has arrived."""

app = typer.Typer(help=__doc__, add_completion=False)


class Forgetful(txcore.TransactionListener):
    """A listener that commits with the fence, and then says that it does not know."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self._engine = engine

    def execute(
        self,
        transaction: txcore.ListenerTransaction,
        message: txcore.Message,  # noqa: ARG002 - the form of a listener
        arg: Any,  # noqa: ARG002
    ) -> txcore.LocalTransactionState:
        """See `TransactionListener.execute`."""
        with self._engine.begin() as connection:
            transaction.fence(connection)
        return txcore.LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half: txcore.HalfView) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `TransactionListener.check_local_transaction`; the checker of this run asks the fence only."""
        return txcore.LocalTransactionState.UNKNOWN


@app.command()
def produce(broker: str, database: str, group: str, rate: float) -> None:
    """Send transactions until SIGTERM, then print their number. Started by `run`."""
    engine = sqlalchemy.create_engine(database)
    fence, count, next_s = txcore.SqlFence(engine), 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        requested = stack.enter_context(end_requested())
        backend = stack.enter_context(txcore.connect(broker))
        policy = txcore.CheckPolicy(immunity_s=5.0)
        half = stack.enter_context(txcore.TransactionProducer(backend, group, fence=fence, policy=policy))
        table = stack.enter_context(txcore.TransactionProducer(backend, group, fence=fence, mode="table"))
        unknown = stack.enter_context(
            txcore.TransactionProducer(
                backend, group, fence=fence, listener=Forgetful(engine), listener_fences=True, policy=policy
            )
        )
        print("ready", flush=True)
        while not requested.wait(max(next_s - time.monotonic(), 0)):
            message = txcore.Message(TOPIC, b"x" * 300, key=str(count % 100).encode())
            if count % UNKNOWN_EACH == 0:
                unknown.send_message_in_transaction(message)
            else:
                with (table if count % TABLE_EACH == 1 else half).transaction(engine) as transaction:
                    transaction.publish(message)
            count += 1
            next_s += 1 / rate
    print(count, flush=True)


def received(url: str, group: str, expected: int) -> tuple[int, int]:
    """Return how many messages arrived and how many of them twice, once all are there, or after `SETTLE_S`."""
    consumer = open_consumer(url, TOPIC, f"{group}-soak")
    seen: set[str | bytes] = set()
    count, end_s = 0, time.monotonic() + SETTLE_S
    while len(seen) < expected and time.monotonic() < end_s:
        messages = consumer.poll(1_000)
        for message in messages:
            seen.add(message.headers["txcore-id"])
        count += len(messages)
        if messages:
            consumer.ack(messages[-1].position)
        else:
            time.sleep(0.2)
    consumer.close()
    return len(seen), count - len(seen)


def print_memory(name: str, samples: list[tuple[float, float]], from_s: float, used_s: float) -> None:
    """Print a process's memory: first, last, and the slope from *from_s* on."""
    later = [each for each in samples if each[0] >= from_s]
    slope = linear_regression(*zip(*later, strict=True)).slope * 3600 if len(later) > 2 else 0.0
    text = f"{samples[0][1]:7.1f} {later[0][1]:7.1f} {samples[-1][1]:7.1f} {slope:+8.2f} {used_s:9.1f}"
    print(f"{name:18} {text}", flush=True)


@app.command()
def run(
    minutes: Annotated[float, typer.Option(help="length of the load")] = 60.0,
    rate: Annotated[float, typer.Option(help="transactions a second on each broker")] = 25.0,
    names: Annotated[str, typer.Option(help="brokers, with commas between")] = "kafka,rabbitmq,nats",
) -> None:
    """Run the load, then compare and print memory."""
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        database = servers.postgresql()
        closing.callback(database.remove)
        database_url = database.fresh_database()
        engine = sqlalchemy.create_engine(database_url)
        txcore.SqlFence(engine).create()
        engine.dispose()
        urls = {}
        for name in names.split(","):
            broker = brokers.start(name, own=True)
            closing.callback(broker.remove)
            urls[name] = broker.url
            open_consumer(broker.url, TOPIC, f"{name}-soak").close()  # makes the topic
        lines = [f'[databases.shop]\nurl = "{database_url}"\n']
        for name, url in urls.items():
            lines.append(f'[backends.{name}]\nurl = "{url}"\n[groups.{name}]\nbackend = "{name}"\ndatabase = "shop"\n')
        (folder / "txcore.toml").write_text("".join(lines))
        sidecar = closing.enter_context(running(folder))
        processes: dict[str, subprocess.Popen[str]] = {}
        for name, url in urls.items():
            command = [sys.executable, "-m", "benchmarks.soak", "produce", url, database_url, name, str(rate)]
            processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            closing.callback(processes[name].kill)
        for process in processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        pids = {"checker and relays": sidecar.process.pid} | {
            f"producer {name}": process.pid for name, process in processes.items()
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < minutes * 60:
            for name, pid in pids.items():
                samples[name].append((now_s, memory_mb(pid)))
            time.sleep(SAMPLE_S)
        print(f"{'process':18} {'MB':>7} {'at 1/3':>7} {'at end':>7} {'MB/h':>8} {'CPU s':>9}", flush=True)
        for name, pid in pids.items():
            print_memory(name, samples[name], minutes * 20, cpu_s(pid))
        is_right = True
        for name, process in processes.items():
            process.send_signal(signal.SIGTERM)
            sent = int(process.communicate(timeout=60)[0])
            found, again = received(urls[name], name, sent)
            print(f"{name:10} sent {sent:,}, arrived {found:,}, again {again:,}", flush=True)
            is_right = is_right and found == sent
        warnings = (folder / "checker.log").read_text()
        print(json.dumps({"log lines of the checker": len(warnings.splitlines())}))
    raise typer.Exit(0 if is_right else 1)


if __name__ == "__main__":
    app()
