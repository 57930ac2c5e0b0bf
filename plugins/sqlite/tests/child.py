"""Programs that tests run in processes of their own: `child.py PROGRAM PATH …`."""

from __future__ import annotations

import importlib.util
import os
import sys
from itertools import count
from pathlib import Path

from txcore_sqlite import Options, SqliteBackend
from txcore_sqlite.consumer import SqliteConsumer

from txcore import wire
from txcore.errors import UsageError
from txcore.records import LogKind, OpKind, Status

spec = importlib.util.spec_from_file_location("kit", Path(__file__).with_name("conftest.py"))
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)


def say(*words):
    print(*words, flush=True)  # noqa: T201 - the parent reads it


def stream(kit, backend):
    """Write transactions until killed; print the id of each one after it is durable."""
    for _ in count():
        halves = [kit.half(body=os.urandom(100)) for _ in range(7)]
        kit.append(backend, *halves)
        outcomes = kit.release(backend, *[kit.end(half) for half in halves])
        for half, outcome in zip(halves, outcomes, strict=True):
            if outcome.status is Status.DURABLE:
                say(half.transaction_id.hex())


def batches(kit, backend, number):
    """Write 30 batches of 10 transactions into partition *number*."""
    for _ in range(30):
        halves = [kit.half(topics=(f"topic{number}", "shared"), partition=int(number)) for _ in range(10)]
        appended = kit.append(backend, *halves)
        released = kit.release(backend, *[kit.end(half) for half in halves])
        assert {outcome.status for outcome in appended + released} == {Status.DURABLE}


def contest(kit, backend, kind):
    """Try to end every half of partition 0 in one way; print how often that end was stored."""
    say("ready")
    sys.stdin.readline()
    won = 0
    for record in kit.log(backend, LogKind.HALF):
        half = wire.decode_half(record.body)
        read = conftest.HalfRecord(kit.GROUP, 0, half.transaction_id, 0, record.body, half.messages)
        (outcome,) = kit.release(backend, kit.end(read, OpKind[kind]))
        assert outcome.status in {Status.DURABLE, Status.SUPERSEDED}
        won += outcome.status is Status.DURABLE
    say(won)


def hold(kit, backend, member):
    """Claim every partition and hold all of them until killed."""
    claim = backend.claim(kit.GROUP, member)
    held = set()
    while len(held) < 4:
        held |= {event.partition for event in claim.poll()}
    say("held")
    sys.stdin.readline()


def consume(kit, backend, topic):
    """Poll without acknowledging, then wait until killed."""
    consumer = SqliteConsumer(backend, topic, "readers")
    say(len(kit.until(consumer.poll)))
    sys.stdin.readline()


def fork(kit, backend):
    """Use a started backend in a forked child."""
    kit.append(backend, kit.half())
    if os.fork() == 0:
        try:
            backend.append_halves(conftest.Recorder([kit.half()]))
        except UsageError as error:
            say("child:", error)
        backend.close().result(5)
        own = SqliteBackend(kit.path)
        say("own:", kit.append(own, kit.half())[0].status.value)
        own.close().result(5)
        os._exit(0)
    os.wait()
    say("parent:", kit.append(backend, kit.half())[0].status.value)
    backend.close().result(5)


if __name__ == "__main__":
    program, path, *rest = sys.argv[1:]
    opened = SqliteBackend(Path(path), Options(busy_timeout_s=20.0, lease_s=0.5))
    opened.ensure_group(conftest.GROUP, 4).result(20)
    kit = conftest.Kit(Path(path))
    kit._ids = conftest.IdFactory(conftest.SystemClock(), conftest.random.SystemRandom())
    {each.__name__: each for each in (stream, batches, contest, hold, consume, fork)}[program](kit, opened, *rest)
