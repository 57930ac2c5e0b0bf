"""A live run: real producers and checkers as processes on one group, faults, rest, and the oracle's verdict.

A `Crew` starts the processes (`live_actor`), freezes, kills and replaces them, waits until everything is decided and
reads the logs back. Its `faults` and the processes' journals give the causes of second copies (`live_record`).
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txcore.ids import id_text
from txcore.port import Backend
from txcore.producer.arguments import ReleaseName
from txcore.records import OpKind
from txcore.runtime import instrumentation
from txcore_conformance import oracle
from txcore_conformance.harness import Harness
from txcore_conformance.live_actor import ActorJob
from txcore_conformance.live_orders import NEVER_KNOWN, Orders
from txcore_conformance.live_record import Fault, attempts_in, causes_of, read_lines
from txcore_conformance.live_undecided import Undecided
from txcore_conformance.machine import spawn, stacks_of, wait_until_stopped
from txcore_conformance.oracle import History

PARTITION_COUNT: Final = 4
STOP_TIME_MAX_S: Final = 45.0
POLL_S: Final = 0.05
CALL_TIMEOUT_S: Final = 30.0
IMMUNITY_SPARE_S: Final = 2.0


@dataclass(slots=True)
class Process:
    """One running actor; `ended_as` is its exit status after its end."""

    role: str
    name: str
    popen: subprocess.Popen[bytes]
    journal: Path
    rate: float
    is_frozen: bool = False
    is_dismissed: bool = False

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal; do nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)


@dataclass(slots=True)
class Verdict:
    """Findings of the oracle.

    Attributes:
        problems: All violations, as sentences; empty if there are none.
        transactions: Number of transactions in the logs, by their end.
        duplicates: Number of second copies of targets, by their transaction's first cause.
        lost, leaked: Number of committed transactions that miss a target; number of targets without a commit.
        ordered: Number of published transactions with an order key.
    """

    problems: list[str] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)
    targets: int = 0
    duplicates: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    leaked: int = 0
    ordered: int = 0


class Crew:
    """Producers, checkers, their database and their topics. A context manager; one thread per method at a time."""

    def __init__(self, harness: Harness, folder: Path, *, seed: str = "", url: str = "", database: str = "") -> None:
        self.harness = harness
        self.folder = folder
        self.faults: list[Fault] = []
        self.processes: list[Process] = []
        self.group = f"live-{secrets.token_hex(5)}"
        self.seed = seed or secrets.token_hex(4)
        self.release: ReleaseName = "producer"  #: what publishes the halves; set before any process starts
        self.order_keys = 0  #: number of order keys, as `release`
        self.rolled_back: set[bytes] = set()  #: ids of transactions that an operator has rolled back
        self._url = url or harness.url
        self._database = database or f"sqlite:///{folder / 'service.db'}"
        self._counts: Counter[str] = Counter()
        self._backend: Backend | None = None
        self.orders = Orders(self._database)
        self.topics: tuple[str, ...] = ()

    def __enter__(self) -> Crew:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.orders.create()
        for name in ("live-a", "live-b"):
            topic = self.harness.topic(f"{name}-{secrets.token_hex(5)}")
            self.harness.create_topic(topic)
            self.topics += (topic,)
        self.backend.ensure_group(self.group, PARTITION_COUNT).result(CALL_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.is_running:
                process.send(signal.SIGKILL)
                process.popen.wait()
        if self._backend is not None:
            self._backend.close(CALL_TIMEOUT_S / 3).result(CALL_TIMEOUT_S)
        self.orders.close()

    @property
    def backend(self) -> Backend:
        """Connection of the oracle, not through the proxy."""
        if self._backend is None:
            self._backend = self.harness.open()
        return self._backend

    @property
    def immunity_s(self) -> float:
        """Immunity, in seconds: the backend's whole delivery time, and some time for a producer on a busy machine."""
        return self.backend.capabilities.release_time_max_s + IMMUNITY_SPARE_S

    # -- processes --------------------------------------------------------------------------------------------------

    def start(self, role: str, *, rate: float = 20.0) -> Process:
        """Start a process; it is at work when its journal has a line `ready`."""
        self._counts[role] += 1
        name = f"{role}-{self._counts[role]}"
        journal = self.folder / f"{name}.jsonl"
        journal.touch()
        job = ActorJob(
            role,
            name,
            self._url,
            self.group,
            self.topics,
            self._database,
            str(journal),
            self.immunity_s,
            f"{self.seed}-{name}",
            rate,
            release=self.release,
            order_keys=self.order_keys,
        )
        command = [sys.executable, "-m", "txcore_conformance.live_actor", job.to_json()]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = Process(role, name, spawn(command, log, Path.cwd(), signal.SIGKILL), journal, rate)
        self.processes.append(process)
        return process

    def at_work(self, *, checkers: bool) -> list[Process]:
        """Return the running processes of a kind that are not frozen."""
        return [
            each
            for each in self.processes
            if (each.role == "checker") is checkers and each.is_running and not (each.is_frozen or each.is_dismissed)
        ]

    def kill(self, process: Process) -> None:
        """Kill a process by SIGKILL."""
        started_s = time.time()
        process.is_dismissed = True
        process.send(signal.SIGKILL)
        process.popen.wait()
        self.faults.append(Fault(f"kill-{kind_of(process)}", process.name, started_s, time.time()))

    def freeze(self, process: Process) -> float:
        """Stop a process until `thaw`; returns the time of the stop."""
        process.is_frozen, started_s = True, time.time()
        process.send(signal.SIGSTOP)
        wait_until_stopped([process.popen.pid])
        return started_s

    def thaw(self, process: Process, started_s: float) -> None:
        """Let a frozen process run again."""
        self.faults.append(Fault(f"pause-{kind_of(process)}", process.name, started_s, time.time()))
        process.send(signal.SIGCONT)
        process.is_frozen = False

    @contextlib.contextmanager
    def fault(self, kind: str, subject: str) -> Iterator[None]:
        """Record the time of the block as a fault of the broker or of the network."""
        started_s = time.time()
        try:
            yield
        finally:
            self.faults.append(Fault(kind, subject, started_s, time.time()))

    def dismiss(self, processes: Iterable[Process]) -> list[str]:
        """Ask processes to end, wait, and return the errors of their ends."""
        asked = list(processes)
        for process in asked:
            process.is_dismissed = True
            process.send(signal.SIGTERM)
        problems = []
        deadline_s = time.monotonic() + STOP_TIME_MAX_S
        for process in asked:
            try:
                status = process.popen.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                stacks = stacks_of(process.popen, self.folder / f"{process.name}.log")
                process.send(signal.SIGKILL)
                process.popen.wait()
                problems.append(f"{process.name} did not end within {STOP_TIME_MAX_S:g} s after SIGTERM:\n{stacks}")
            else:
                was_early = status == -signal.SIGTERM and not process.journal.stat().st_size
                if status and not was_early:
                    problems.append(f"{process.name} ended with {status}: {last_line(self.folder, process.name)}")
        return problems

    def unexpected_ends(self) -> list[str]:
        """Return the processes that ended without a request or a kill."""
        return [
            f"{each.name} ended by itself with {each.popen.returncode}: {last_line(self.folder, each.name)}"
            for each in self.processes
            if not each.is_dismissed and not each.is_running
        ]

    # -- looking ----------------------------------------------------------------------------------------------------

    def count(self, what: str, *, process: Process | None = None) -> int:
        """Return the number of lines *what* in the journals, of one process or of all."""
        journals = [process.journal] if process else [each.journal for each in self.processes]
        return sum(journal.read_bytes().count(b'["' + what.encode() + b'"') for journal in journals)

    def accepted(self) -> int:
        """Return the number of transactions that ended with every target confirmed."""
        return sum(each.journal.read_bytes().count(b'"ACCEPTED"') for each in self.processes)

    @staticmethod
    def claimed(process: Process) -> dict[int, float]:
        """Return the partitions that a checker has claimed and not given up, and the times of the claims."""
        held: dict[int, float] = {}
        for what, at_s, *fields in read_lines(process.journal):
            if what != "event" or "partition" not in fields[1]:
                continue
            if fields[0] == instrumentation.CHECKER_CLAIMED:
                held[fields[1]["partition"]] = at_s
            elif fields[0] == instrumentation.CHECKER_STOOD_DOWN:
                held.pop(fields[1]["partition"], None)
        return held

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> float:
        """Wait for *condition* and return the time that it took.

        Raises:
            TimeoutError: it did not come true, or a process ended by itself; the text names *what*.
        """
        started_s = time.monotonic()
        while not condition():
            ended = self.unexpected_ends()
            if ended or time.monotonic() - started_s > timeout_s:
                raise TimeoutError("; ".join([f"{what} did not come true within {timeout_s:g} s", *ended]))
            time.sleep(POLL_S)
        return time.monotonic() - started_s

    def wait_for_rest(self, timeout_s: float, watch: Callable[[], None] = lambda: None) -> float:
        """Wait until every half is decided or parked and return the time that it took; call *watch* from time to time.

        Raises:
            TimeoutError: some halves are still open; the text names a few.
        """
        committed = self.orders.committed()
        undecided = Undecided(self.backend, self.group)

        def is_at_rest() -> bool:
            watch()
            return not undecided.look(committed)

        try:
            return self.until(is_at_rest, "the decision of every half", timeout_s)
        except TimeoutError as error:
            open_ids = undecided.look(committed)
            names = ", ".join(id_text(identity) for identity in sorted(open_ids)[:5])
            raise TimeoutError(f"{error}; {len(open_ids)} are open: {names}") from None
        finally:
            undecided.close()

    # -- judging ----------------------------------------------------------------------------------------------------

    def causes(self) -> dict[bytes, list[str]]:
        """Return, by transaction, the causes of second copies that faults and journals show."""
        attempts = []
        claims: dict[str, list[float]] = {}
        for process in self.processes:
            lines = read_lines(process.journal)
            attempts += attempts_in(process.name, lines)
            claims[f"c:{process.name}"] = [
                line[1] for line in lines if line[0] == "event" and line[2] == instrumentation.CHECKER_CLAIMED
            ]
        return causes_of(attempts, self.faults, claims)

    def judge(self) -> Verdict:
        """Read everything back and judge it as at rest."""
        history = History(at_rest=True, topics=set(self.topics))
        committed = self.orders.committed()
        for identity in committed:
            history.committed(identity)
        for identity, journey in oracle.journeys(self.backend, self.group).items():
            half = journey.half
            is_known = half is not None and not half.messages[0].body.startswith(NEVER_KNOWN)
            if (is_known and identity not in committed) or identity in self.rolled_back:
                history.rolled_back(identity)
        is_once = oracle.is_released_once(self.backend.capabilities, self.release)
        for identity, reasons in () if is_once else self.causes().items():
            for reason in reasons:
                history.caused(identity, reason)
        violations, facts = oracle.judge_group(self.harness, self.backend, self.group, history)
        transactions: Counter[str] = Counter()
        duplicates: Counter[str] = Counter()
        verdict = Verdict([str(violation) for violation in violations])
        names = {violation.transaction_id: violation.invariant.name for violation in violations}
        verdict.lost = sum(name in {"S3", "S8"} for name in names.values())
        verdict.leaked = sum(name in {"S2", "S5"} for name in names.values())
        for each in facts:
            verdict.targets += len(each.targets)
            half = each.journey.half
            verdict.ordered += half is not None and bool(half.order_key and each.targets)
            final = OpKind(each.journey.final).name.lower() if each.journey.final else ""
            transactions[final or ("parked" if each.journey.is_parked else "open")] += 1
            extra = len(each.targets) - len({target.index for target in each.targets})
            if extra:
                reasons = history.reasons.get(each.journey.transaction_id) or ["no cause"]
                duplicates[reasons[0]] += extra
        verdict.transactions, verdict.duplicates = dict(transactions), dict(duplicates.most_common())
        return verdict


def kind_of(process: Process) -> str:
    """Return "producer" or "checker"."""
    return "checker" if process.role == "checker" else "producer"


def last_line(folder: Path, name: str) -> str:
    """Return the last line of a process's log."""
    lines: Sequence[str] = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "no output"
