"""Programs that tests run in processes of their own, to kill or to freeze them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_conformance import raw
from txcore_conformance.kit import Kit, Recorder
from txcore_nats.testing import NatsHarness

import txcore
from txcore.errors import UsageError
from txcore.records import ClaimEventKind


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def hold(url, group, member):
    """Join the group, and say each change of ownership on a line of its own, until killed."""
    backend = txcore.connect(url)
    backend.ensure_group(group).result(20)
    claim = backend.claim(group, member)
    while True:
        for event in claim.poll():
            say(event.kind.value, event.partition)
            if event.kind is ClaimEventKind.REVOKING:
                claim.give_up(event.partition)
        time.sleep(0.02)


def fork(url, group, topic):
    """Use a backend, then in a forked child, where a new one works, then in the parent again."""
    harness = NatsHarness()
    harness.url = url
    kit = Kit(harness, group)
    half = raw.half(kit, topic)
    say("before:", raw.append(kit, half)[0].status.value)
    if os.fork() == 0:
        try:
            kit.backend.append_halves(Recorder([half]))
        except UsageError as error:
            say("child:", error)
        kit.backend.close(1.0).result(5)
        own = Kit(harness, group)
        say("own:", raw.append(own, raw.half(own, topic))[0].status.value)
        own.close()
        os._exit(0)
    _, status = os.wait()
    say("parent:", raw.append(kit, raw.half(kit, topic))[0].status.value, status)
    kit.close()


if __name__ == "__main__":
    {"hold": hold, "fork": fork}[sys.argv[1]](*sys.argv[2:])
