"""Programs that tests run in processes of their own, to kill, to freeze or to fork them."""

from __future__ import annotations

import gc
import os
import sys
import time

import txcore
from txcore.errors import UsageError
from txcore.records import ClaimEventKind, LogKind


def hold(url, group, member):
    """Join the group, and print each change of ownership on a line of its own, until killed."""
    backend = txcore.connect(url)
    backend.ensure_group(group).result(20)
    claim = backend.claim(group, member)
    while True:
        for event in claim.poll():
            say(f"{event.kind.value} {event.partition}")
            if event.kind is ClaimEventKind.REVOKING:
                claim.give_up(event.partition)
        time.sleep(0.02)


def fork(url, group, _):
    """Use a backend and fork; the child tries the parent's backend, drops it, uses its own, and ends."""
    backend = txcore.connect(url)
    backend.ensure_group(group, 2).result(20)
    producer = txcore.TransactionProducer(backend, group)
    reader = backend.read(group, LogKind.HALF, 0)
    reader.read(1)
    claim = backend.claim(group, "parent")
    while not any(event.kind is ClaimEventKind.ASSIGNED for event in claim.poll()):
        time.sleep(0.01)
    # All clients are connected now. A thread that looks up an address during the fork would leave a lock of glibc taken
    # in the child (getaddrinfo's list of interfaces), so that no client could connect there.
    pid = os.fork()
    if pid == 0:
        try:
            backend.ensure_group(group)
        except UsageError:
            say("child: refused")
        try:
            transaction = producer.begin()
            transaction.publish(txcore.Message("orders", b"body"))
            transaction.prepare()
        except UsageError as error:
            say(f"child: {type(error).__name__}: {error}")
        backend.close().result(5)
        del backend, producer, transaction, reader, claim
        gc.collect()
        own = txcore.connect(url)
        say(f"child: {own.ensure_group(group).result(20)} partitions")
        own.close().result(5)
        sys.exit(0)
    say(f"child ended with {os.waitpid(pid, 0)[1]}")
    say(f"parent: {backend.ensure_group(group).result(20)} partitions")
    backend.close().result(10)


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"hold": hold, "fork": fork}[sys.argv[1]](*sys.argv[2:])
