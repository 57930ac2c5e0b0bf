"""Programs that tests run in processes of their own, to kill or to freeze them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_conformance.across_fork import use_across_fork
from txcore_nats.testing import NatsHarness

import txcore
from txcore.records import ClaimEventKind


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def hold(url, group, member):
    """Join the group, and print each change of ownership on a line of its own, until killed."""
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
    """See `use_across_fork`."""
    harness = NatsHarness()
    harness.url = url
    use_across_fork(harness, group, topic)


if __name__ == "__main__":
    {"hold": hold, "fork": fork}[sys.argv[1]](*sys.argv[2:])
