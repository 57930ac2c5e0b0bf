"""A program that uses a backend before a fork, in the child, where the backend must refuse it, and afterwards.

It runs in a process of its own: a forked test runner runs its other tests twice after an error.
"""

from __future__ import annotations

import os

from txcore.errors import UsageError
from txcore_conformance import raw
from txcore_conformance.harness import Harness
from txcore_conformance.kit import Kit, Recorder


def use_across_fork(harness: Harness, group: str, topic: str) -> None:
    """Print a line for each attempt: before the fork, in the child with both backends, and in the parent afterwards.

    Args:
        group: An existing group.
    """
    kit = Kit(harness, group)
    half = raw.half(kit, topic)
    _say("before", raw.append(kit, half)[0].status.value)
    if os.fork() == 0:
        try:
            kit.backend.append_halves(Recorder([half]))
        except UsageError as error:
            _say("child", str(error))
        kit.backend.close(1.0).result(5)
        own = Kit(harness, group)
        _say("own", raw.append(own, raw.half(own, topic))[0].status.value)
        own.close()
        os._exit(0)
    _, status = os.wait()
    _say("parent", f"{raw.append(kit, raw.half(kit, topic))[0].status.value} {status}")
    kit.close()


def _say(what: str, text: str) -> None:
    print(f"{what}: {text}", flush=True)
