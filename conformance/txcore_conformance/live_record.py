"""The journals of processes under test, and the causes for duplicates in them.

Every hand-over of targets to a backend is an *attempt*: begun, and settled or not. A second copy of a target needs a
cause: an attempt without a recorded end, or with an ambiguous answer; a fault during an attempt (its process paused, or
the broker or the network disturbed, so that the driver may have sent again); or a partition that changed its owner
during the attempt. All times are of the machine's wall clock, which the processes of one run share.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from txcore.port import Backend, SettlesEach
from txcore.records import Outcome, Status

BEFORE_S: Final = 3.0
"""Time, in seconds, after its thaw in which a process may begin an attempt that it decided before the freeze."""
AFTER_S: Final = 2.0
"""Time, in seconds, after an attempt in which its op may still be queued, or its driver may repeat a request."""
EVERYBODY: Final = frozenset({"broker", "network"})


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of *subject*: a process by its name, "broker" or "network"."""

    kind: str
    subject: str
    started_s: float
    ended_s: float


@dataclass(slots=True)
class Attempt:
    """One hand-over of targets: its sender, its begin and end, and its answer ("" before the answer)."""

    transaction_id: bytes
    by: str
    actor: str
    started_s: float
    settled_s: float = 0.0
    status: str = ""
    is_checkers: bool = False


class Journal:
    """Lines of one process, each written at once, so that no line of a killed process is lost."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, what: str, *fields: Any) -> None:
        """Append one line with the time; thread safe."""
        line = json.dumps([what, round(time.time(), 4), *fields], default=str)
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Recording:
    """A backend whose attempts are recorded; all other calls pass unchanged."""

    def __init__(self, inner: Backend, journal: Journal) -> None:
        self._inner = inner
        self._journal = journal
        self._numbers = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def release(self, batch: Any, claim: Any = None) -> None:
        """Hand over releases, and record those with targets."""
        first = next(self._numbers)
        for index, item in enumerate(batch.items):
            if item.targets:
                number = f"{first}.{index}"
                self._journal.write("release", number, item.half.transaction_id.hex(), item.by, claim is not None)
        self._inner.release(cast("Any", _Watched(batch, f"{first}.", self._journal)), claim)


class _Watched(SettlesEach):
    """A batch whose settling is recorded first."""

    def __init__(self, batch: Any, prefix: str, journal: Journal) -> None:
        self._batch = batch
        self._prefix = prefix
        self._journal = journal
        self._lock = threading.Lock()
        self.items = batch.items

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        if self.items[index].targets:
            self._journal.write("settled", f"{self._prefix}{index}", outcome.status.value)
        self._batch.settle(index, outcome)


def read_lines(path: Path) -> list[list[Any]]:
    """Return a journal's complete lines; a line that a kill cut off is left out."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.endswith(b"]")]


def attempts_in(actor: str, lines: Iterable[Sequence[Any]]) -> list[Attempt]:
    """Return the attempts of one journal."""
    found: dict[str, Attempt] = {}
    for what, at_s, *fields in lines:
        if what == "release":
            number, identity, by, is_checkers = fields
            found[number] = Attempt(bytes.fromhex(identity), by, actor, at_s, is_checkers=is_checkers)
        elif what == "settled":
            attempt = found[fields[0]]
            attempt.settled_s, attempt.status = at_s, fields[1]
    return list(found.values())


def causes_of(
    attempts: Iterable[Attempt], faults: Sequence[Fault], claims: Mapping[str, Sequence[float]]
) -> dict[bytes, list[str]]:
    """Return, by transaction, a cause for each second copy of a target that the history allows.

    Args:
        claims: Times at which each checker (by the name in its attempts) claimed a partition.
    """
    by_id: dict[bytes, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_id[attempt.transaction_id].append(attempt)
    general = [fault for fault in faults if fault.subject in EVERYBODY]
    own: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        own[fault.subject].append(fault)
    found = {}
    for identity, group in by_id.items():
        causes = [cause for attempt in group for cause in _causes_in(attempt, [*general, *own.get(attempt.actor, ())])]
        causes += _takeovers(group, claims)
        if causes:
            found[identity] = causes
    return found


def _causes_in(attempt: Attempt, faults: Iterable[Fault]) -> list[str]:
    end_s = attempt.settled_s or float("inf")
    causes = []
    if not attempt.status:
        causes.append("never settled")
    elif attempt.status in {Status.UNKNOWN.value, Status.REFUSED.value}:
        causes.append("ambiguous answer")
    for fault in faults:
        if attempt.started_s <= fault.ended_s + BEFORE_S and end_s >= fault.started_s - AFTER_S:
            is_counted = fault.kind.startswith("kill-") and not attempt.status and fault.subject == attempt.actor
            if not is_counted:
                causes.append(fault.kind)
    return causes


def _takeovers(attempts: Sequence[Attempt], claims: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a cause for each checker that claimed before another one's attempt was over."""
    checkers = sorted((each for each in attempts if each.is_checkers), key=lambda each: each.started_s)
    found = []
    for former, later in itertools.combinations(checkers, 2):
        end_s = former.settled_s or float("inf")
        if former.by != later.by and any(
            former.started_s - BEFORE_S <= at_s <= end_s + AFTER_S for at_s in claims.get(later.by, ())
        ):
            found.append("takeover")
    return found
