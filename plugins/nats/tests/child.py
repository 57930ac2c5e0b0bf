"""Programs that tests run in processes of their own, to kill or to freeze them."""

from __future__ import annotations

import sys
import time

import txcore
from txcore.records import ClaimEventKind


def hold(url, group, member):
    """Join the group, and say each change of ownership on a line of its own, until killed."""
    backend = txcore.connect(url)
    backend.ensure_group(group).result(20)
    claim = backend.claim(group, member)
    while True:
        for event in claim.poll():
            sys.stdout.write(f"{event.kind.value} {event.partition}\n")
            sys.stdout.flush()
            if event.kind is ClaimEventKind.REVOKING:
                claim.give_up(event.partition)
        time.sleep(0.02)


if __name__ == "__main__":
    {"hold": hold}[sys.argv[1]](*sys.argv[2:])
