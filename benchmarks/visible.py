"""Time from the commit of a local transaction to its message's arrival at an ordinary consumer in its own process.

`python -m benchmarks.visible BROKER URL TOPIC` is that consumer: it prints `ready`, then reads a count, and prints the
arrival time of each body once this many are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import txcore
from benchmarks.brokers import consume_of
from benchmarks.drive import Drive, Sample
from benchmarks.place import POLICY, Place
from benchmarks.styles import require_accepted

NUMBER_SIZE: Final = 12
WAIT_MAX_S: Final = 30.0
IDLE_PER_S: Final = 50.0
LOADED_PER_S: Final = 1_000.0
LOADED_THREADS: Final = 8
ROOT: Final = Path(__file__).parents[1]


class _Stamping(txcore.TransactionListener):
    """Returns COMMIT and records its time, by the number in the body."""

    def __init__(self) -> None:
        self.committed_s: dict[bytes, float] = {}

    def execute_local_transaction(self, message: txcore.Message, arg: Any) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `TransactionListener`."""
        self.committed_s[message.body[:NUMBER_SIZE]] = time.monotonic()
        return txcore.LocalTransactionState.COMMIT


def visible(place: Place, drive: Drive, *, per_s: float, thread_count: int) -> Sample:
    """Measure the latencies of messages from the listener's COMMIT to the consumer, at a steady rate."""
    listener = _Stamping()
    producer = txcore.TransactionProducer(place.backend(), place.group, listener=listener, policy=POLICY)

    def send(body: bytes) -> None:
        require_accepted(producer.send_message_in_transaction(txcore.Message(place.topic, body)).end)

    return _until_arrived(place, drive, send, listener.committed_s, per_s=per_s, thread_count=thread_count)


def raw_visible(place: Place, drive: Drive, *, per_s: float) -> Sample:
    """Measure the same with the driver alone in one thread, from the hand-over of a message to the driver."""
    publisher = place.raw_publisher()
    handed_over_s: dict[bytes, float] = {}

    def send(body: bytes) -> None:
        publisher.body = body
        handed_over_s[body[:NUMBER_SIZE]] = time.monotonic()
        publisher.publish()

    return _until_arrived(place, drive, send, handed_over_s, per_s=per_s, thread_count=1)


def _until_arrived(
    place: Place,
    drive: Drive,
    send: Callable[[bytes], None],
    begun_s: Mapping[bytes, float],
    *,
    per_s: float,
    thread_count: int,
) -> Sample:
    """Send numbered bodies at a steady rate; return the latencies from *begun_s*, which *send* notes, to arrival."""
    numbers = iter(range(10**NUMBER_SIZE))
    lock = threading.Lock()
    with _consumer(place) as consumer:
        began_s = time.perf_counter()

        def call() -> None:
            with lock:
                number = next(numbers)
            time.sleep(max(began_s + number / per_s - time.perf_counter(), 0.0))
            send(b"%0*d" % (NUMBER_SIZE, number) + place.body[NUMBER_SIZE:])

        sample = drive.threads(call, thread_count)
        arrived_s = _ask(consumer, len(begun_s))
    missing = begun_s.keys() - arrived_s.keys()
    if missing:
        raise RuntimeError(f"{len(missing)} messages of {len(begun_s)} never arrived")
    latencies_s = [max(arrived_s[number] - at_s, 0.0) for number, at_s in begun_s.items()]
    return replace(sample, latencies_s=latencies_s)


@contextmanager
def _consumer(place: Place) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.visible", str(place.broker), place.url.partition("?")[0], place.topic]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the consumer did not start: {' '.join(command)}")
            yield process
        finally:
            process.kill()


def _ask(consumer: subprocess.Popen[str], count: int) -> dict[bytes, float]:
    """Wait for *count* bodies, and return the arrival time of each by its number."""
    assert consumer.stdin is not None
    assert consumer.stdout is not None
    consumer.stdin.write(f"{count}\n")
    consumer.stdin.close()
    return {number.encode(): at_s for number, at_s in json.loads(consumer.stdout.readline()).items()}


def main() -> None:
    """Run the consumer."""
    broker, url, topic = sys.argv[1:]
    arrived_s: dict[str, float] = {}

    def arrived(body: bytes) -> None:
        arrived_s.setdefault(body[:NUMBER_SIZE].decode(), time.monotonic())

    def report() -> None:
        count = int(sys.stdin.readline() or 0)
        deadline_s = time.monotonic() + WAIT_MAX_S
        while len(arrived_s) < count and time.monotonic() < deadline_s:
            time.sleep(0.01)
        print(json.dumps(arrived_s), flush=True)
        os._exit(0)

    threading.Thread(target=report, daemon=True).start()
    consume_of(broker)(url, topic, arrived, lambda: print("ready", flush=True))


if __name__ == "__main__":
    main()
