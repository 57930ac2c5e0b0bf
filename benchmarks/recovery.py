"""`python -m benchmarks.recovery`: the halves of a dead producer, and the time that a new checker needs for them.

Without `--old` or `--waiting`: *count* orphaned halves are written by a process that is killed with SIGKILL, then a
checker process is started. `--old`: a checker restarts on a long log with 100 undecided halves. `--waiting`: the
memory of a checker that holds so many undecided halves.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy
import typer
from txcore_conformance.demo.consuming import open_consumer

import txcore
from benchmarks import databases, machine
from benchmarks.brokers import SERVERS, start_server, url_of
from benchmarks.orphans import FAR_S, GROUP, PARTITIONS, TIMEOUT_S
from benchmarks.place import BODY_SIZE
from benchmarks.sidecar import Sidecar, consume, running, sum_of

ROOT: Final = Path(__file__).parents[1]
TOPIC: Final = "recovered"
READER: Final = "bench"
LISTENER: Final = "listener"
UNDECIDED: Final = 100
WAIT_S: Final = 600.0
CALM_S: Final = 6.0
"""Time, in seconds, without a carried half after which the checkpoint is complete: it is stored every 2 s."""
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """A running broker and the configuration of a checker; *database* is empty if a listener answers."""

    folder: Path
    url: str
    topic: str
    database: str

    def write_orphans(self, count: int, lead_s: float, size: int) -> dict[str, Any]:
        """Let a process write halves, kill it, and return its report of them."""
        command = [sys.executable, "-m", "benchmarks.orphans", self.url, self.topic, str(count), str(lead_s), str(size)]
        command += ["--database", self.database] if self.database else []
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.kill()
        if not line:
            raise RuntimeError("the producer did not write its halves")
        said: dict[str, Any] = json.loads(line)
        return said


@contextlib.contextmanager
def scene(broker: str, fence: str) -> Iterator[Scene]:
    """Start the broker and the database of a run, and stop them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txcore-recovery-")))
        if broker in SERVERS:
            server = start_server(broker)
            stack.callback(server.close)
            url = server.url
        else:
            url = url_of(broker, folder)
        database = ""
        answers = 'listener = "benchmarks.orphans:Parity"'
        databases_section = ""
        if fence != LISTENER:
            business = databases.start_database(fence)
            stack.callback(business.close)
            database = business.create(folder)
            txcore.SqlFence(sqlalchemy.create_engine(database)).create()
            answers, databases_section = 'database = "main"', f'[databases.main]\nurl = "{database}"\n'
        group = f"[groups.{GROUP}]\n{answers}\npartitions = {PARTITIONS}\n"
        config = f'[backends.main]\nurl = "{url}"\n{databases_section}{group}'
        (folder / "txcore.toml").write_text(config, encoding="utf-8")
        consumer = open_consumer(url, TOPIC, READER)
        topic = consumer.topic
        consumer.close()
        backend = txcore.connect(url)
        backend.ensure_group(GROUP, PARTITIONS).result(TIMEOUT_S)
        backend.close().result(TIMEOUT_S)
        yield Scene(folder, url, topic, database)


def orphans(at: Scene, count: int, lead_s: float, size: int) -> dict[str, Any]:
    """Return the time that a checker took, and its deliveries."""
    said = at.write_orphans(count, lead_s, size)
    began_s = time.monotonic()
    with running(at.folder) as checker:
        done = wait_for(lambda: decided(checker), count)
        ended_s = time.monotonic()
        uncertain = checker.metric("txcore_broker_errors_total")
        cpu_s, memory_mb = checker.cpu_s(), checker.memory_mb()
    ids = consume(at.url, at.topic, READER, said["committed"])
    return {
        "count": count,
        "decided": done,
        "uncertain": uncertain,
        "from_start_s": ended_s - began_s,
        "from_first_due_s": ended_s - said["due_s"],
        "due_after_start_s": said["due_s"] - began_s,
        "expected": said["committed"],
        "delivered": len(ids),
        "duplicates": len(ids) - len(set(ids)),
        "checker_cpu_s": cpu_s,
        "checker_memory_mb": memory_mb,
    }


def restart(at: Scene, old: int) -> dict[str, Any]:
    """Return the time in which a checker finds the undecided halves of a long log: the first one, and one after it."""
    from benchmarks.old_log import write_old_log  # noqa: PLC0415 - needs Kafka's driver

    began_s = time.monotonic()
    write_old_log(at.url, at.topic, old, UNDECIDED)
    written_s = time.monotonic() - began_s
    first_s, first_read = _find(at, _settle)
    again_s, again_read = _find(at, lambda _: None)
    return {
        "old": old,
        "undecided": UNDECIDED,
        "written_in_s": written_s,
        "first_start_s": first_s,
        "first_halves_read": first_read,
        "restart_s": again_s,
        "restart_halves_read": again_read,
    }


def memory(at: Scene, waiting: int, size: int) -> dict[str, Any]:
    """Return the growth of the checker's memory for each 100,000 undecided halves."""
    with running(at.folder) as checker:
        wait_for(lambda: checker.metric("txcore_partitions"), PARTITIONS)
        time.sleep(CALM_S)
        before_mb = checker.memory_mb()
        at.write_orphans(waiting, FAR_S, size)
        wait_for(lambda: checker.metric("txcore_pending_halves"), waiting)
        time.sleep(CALM_S)
        after_mb = checker.memory_mb()
    return {
        "waiting": waiting,
        "body_size": size,
        "before_mb": before_mb,
        "after_mb": after_mb,
        "per_100k_mb": (after_mb - before_mb) / waiting * 100_000,
    }


def decided(checker: Sidecar) -> float:
    """Return the number of halves that were read and are closed; a timed-out end counts after its op is read back.

    A half that was carried forward is read a second time, and counts once.
    """
    page = checker.get("/metrics")
    read, carried = sum_of(page, "txcore_halves_total"), sum_of(page, "txcore_carried_total")
    return read - carried - sum_of(page, "txcore_pending_halves")


def _find(at: Scene, then: Callable[[Sidecar], None]) -> tuple[float, float]:
    """Start a checker; returns the time when it held all undecided halves, and the half records read by then."""
    began_s = time.monotonic()
    with running(at.folder) as checker:
        # Before the ops are read, decided halves seem undecided.
        wait_for(lambda: -checker.metric("txcore_pending_halves") if _is_claimed(checker) else -FAR_S, -UNDECIDED)
        found_s, read = time.monotonic() - began_s, checker.metric("txcore_halves_total")
        then(checker)
    return found_s, read


def _is_claimed(checker: Sidecar) -> bool:
    partitions = checker.get(f"/api/v1/groups/{GROUP}")["partitions"]
    found = sum(each["pending"] for each in partitions)
    return bool(sum(each["is_claimed"] for each in partitions) == PARTITIONS and found >= UNDECIDED)


def _settle(checker: Sidecar) -> None:
    """Wait until no half is carried forward for `CALM_S`, so that the checkpoint has been stored after the last one."""
    carried, since_s = -1.0, time.monotonic()
    while time.monotonic() - since_s < CALM_S:
        now = checker.metric("txcore_carried_total")
        if now != carried:
            carried, since_s = now, time.monotonic()
        time.sleep(POLL_S)


def wait_for(value: Callable[[], float], wanted: float, pause_s: float = POLL_S) -> float:
    """Return *value* as soon as it has reached *wanted*, or after `WAIT_S`."""
    deadline_s = time.monotonic() + WAIT_S
    while (now := value()) < wanted and time.monotonic() < deadline_s:
        time.sleep(pause_s)
    return now


def main(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq or nats.")] = "kafka",
    count: Annotated[int, typer.Option(min=2, help="Orphaned halves.")] = 10_000,
    fence: Annotated[str, typer.Option(help="Source of the answers: postgresql, sqlite or listener.")] = "postgresql",
    old: Annotated[int, typer.Option(min=0, help="Resolved transactions in the log; Kafka only.")] = 0,
    waiting: Annotated[int, typer.Option(min=0, help="Undecided halves whose memory is measured.")] = 0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a body.")] = BODY_SIZE,
    lead_s: Annotated[
        float, typer.Option(help="Seconds from the first half until all are due; 0: chosen by the count.")
    ] = 0.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Store the figures in this file.")] = None,
) -> None:
    """Measure one recovery; the exit code is 1 when something was lost, repeated or left."""
    if broker not in (*SERVERS, "sqlite") or fence not in (*databases.NAMES, LISTENER) or (old and broker != "kafka"):
        raise typer.BadParameter("see --help for the brokers and for --fence; --old is for Kafka")
    machine.warn_if_loaded()
    before = {"load_average_before": machine.load_average()[0]}
    fence = LISTENER if old or waiting else fence
    with scene(broker, fence) as at:
        if old:
            found = restart(at, old)
        elif waiting:
            found = memory(at, waiting, size)
        else:
            found = orphans(at, count, lead_s or 5 + count / 2_000, size)
    found = {"broker": broker, "answers": fence, **found, **before, "load_average": os.getloadavg()[0]}
    for name, value in found.items():
        print(f"{name:>20}  {value:,.1f}" if isinstance(value, float) else f"{name:>20}  {value}")
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    is_whole = found.get("delivered") == found.get("expected") and not found.get("duplicates")
    raise typer.Exit(0 if is_whole else 1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the exit ends the servers
    typer.run(main)
