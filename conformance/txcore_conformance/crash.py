"""The crash kit: real processes, killed by SIGKILL at every step of the flow; then a checker, then the oracle.

    python -m txcore_conformance.crash --harness txcore_sqlite.testing:SqliteHarness --cycles 200
    python -m txcore_conformance.crash --harness txcore_sqlite.testing:SqliteHarness --list
    python -m txcore_conformance.crash --harness txcore_nats.testing:NatsHarness --cycles 200 --broker-kills 20
    python -m txcore_conformance.crash --harness txcore_kafka.testing:KafkaHarness --cycles 200 --database mariadb
    python -m txcore_conformance.crash --harness txcore_nats.testing:NatsHarness --cycles 100 --release owner --ordered

There is no list of steps: a run without a kill finds every command that the flows yield, so a new step of the protocol
is covered from its first day. Kills rotate over a few groups, so that the next process meets the halves of a dead one,
and no run waits until a broker detects a dead checker. `--broker-kills` kills the broker itself under a live workload
of producers and a checker.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from txcore import Message
from txcore.port import Backend
from txcore.producer.arguments import ReleaseName
from txcore.records import FINAL_KINDS
from txcore_conformance import oracle, servers
from txcore_conformance.forks import ForkServer
from txcore_conformance.harness import Harness
from txcore_conformance.kit import Kit
from txcore_conformance.oracle import History

IMMUNITY_S: Final = 1.0
"""Immunity, in seconds: long enough for a producer's own end on a busy machine, and short enough for one wait."""
TRIES_MAX: Final = 3
LISTINGS: Final = 2
"""Number of runs that list a program's steps."""
PRODUCER_GROUPS: Final = 4
CHECKER_GROUPS: Final = 16
"""Number of groups over which kills rotate: a broker must detect a dead checker before its group's next turn."""
JUDGES: Final = 4
PROGRESS_EVERY: Final = 25


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One step at which a process is killed: its program and its failpoint."""

    program: str
    failpoint: str

    def __str__(self) -> str:
        return f"{self.program}: {self.failpoint}"


@dataclass(frozen=True, slots=True)
class Kill:
    """One killed process: its step, its group, and the times between which it died (wall clock, milliseconds)."""

    step: Step
    group: str
    started_ms: int
    ended_ms: int


@dataclass(slots=True)
class Tally:
    """Results of one step.

    Attributes:
        retries: Runs in a group of their own after a run without the step, because some steps come by chance.
        missed: Kills that were given up.
    """

    kills: int = 0
    retries: int = 0
    missed: int = 0
    violations: list[str] = field(default_factory=list)


class CrashKit:
    """Kills processes on one harness's broker. A context manager; needs a harness with a `url`.

    Args:
        database: SQLAlchemy URL of the local database; a SQLite file of its own when empty.
        release: What publishes the halves.
        is_ordered: All messages of a group but those without an answer have one order key; needs an owner's release.
    """

    def __init__(
        self, harness: Harness, database: str = "", release: ReleaseName = "producer", *, is_ordered: bool = False
    ) -> None:
        if not harness.url:
            raise ValueError("no other process can reach this backend")
        self._harness = harness
        self._release: ReleaseName = release
        self._order_key = "crash" if is_ordered else ""
        self._folder = tempfile.TemporaryDirectory(prefix="txcore-crash-")
        self._database = database or f"sqlite:///{Path(self._folder.name) / 'service.db'}"
        self._server = ForkServer("txcore_conformance.crash_child")
        self._backend: Backend | None = None
        self._killed: list[Kill] = []
        self._committed: dict[str, set[bytes]] = {}  #: ids that the database committed during a group's programs
        self._known: set[bytes] = set()
        self._topics: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        from txcore_conformance.crash_child import Orders  # noqa: PLC0415 - needs SQLAlchemy

        Orders(self._database).create()
        self._backend = self._harness.open()
        for name in ("crash-a", "crash-b"):
            topic = self._harness.topic(f"{name}-{secrets.token_hex(4)}")
            self._harness.create_topic(topic)
            self._topics += (topic,)
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        if self._backend is not None:
            self._backend.close(10).result(20)
        self._folder.cleanup()

    def steps(self, programs: Sequence[str]) -> list[Step]:
        """Return every step of *programs* in order, from runs of each program without a kill.

        A step that is not in every run happens by chance, and is left out.
        """
        found = []
        for program in programs:
            listings = [self._listing(program) for _ in range(LISTINGS)]
            found += [Step(program, name) for name in listings[0] if all(name in listing for listing in listings)]
        return found

    def _listing(self, program: str) -> list[str]:
        path = Path(self._folder.name) / "steps"
        group = self._group(program)
        status = self._run(program, group, "", str(path))
        if status:
            raise RuntimeError(f"the {program} program ended with {status} without a kill")
        if violations := self._judge(group):
            raise RuntimeError(f"{program} without a kill: {[text for _, text in violations]}")
        return path.read_text(encoding="utf-8").splitlines()

    def kill_at(self, step: Step, tally: Tally, group: str = "") -> bool:
        """Run the step's program until it dies at the step, in *group* or a new one; `judge` judges the run later.

        Returns:
            Whether a process died.
        """
        for tries in range(TRIES_MAX):
            if tries:
                group = ""
                tally.retries += 1
            started_ms = now_ms()
            if group:
                self._prepare(step.program, group)
            group = group or self._group(step.program)
            status = self._run(step.program, group, step.failpoint)
            self._killed.append(Kill(step, group, started_ms, now_ms()))
            if status == -signal.SIGKILL:
                tally.kills += 1
                return True
            if status:
                tally.violations.append(f"the program ended with status {status}")
                return False
        tally.missed += 1
        return False

    def groups(self, count: int) -> list[str]:
        """Make groups, each for many kills."""
        return [self._group("") for _ in range(count)]

    def judge(self, tallies: dict[Step, Tally], say: Callable[[str], None] = lambda _: None) -> None:
        """Let a checker finish the halves of dead processes, and judge every group."""
        killed, self._killed = self._killed, []
        by_group: dict[str, list[Kill]] = {}
        for kill in killed:
            by_group.setdefault(kill.group, []).append(kill)
        with ThreadPoolExecutor(JUDGES) as pool:
            judged = pool.map(self._judge, by_group, by_group.values())
            for number, (kills, violations) in enumerate(zip(by_group.values(), judged, strict=True), 1):
                for identity, text in violations:
                    tallies[_culprit(identity, kills).step].violations.append(text)
                if number % PROGRESS_EVERY == 0 or number == len(by_group):
                    say(f"{number} of {len(by_group)} groups judged")

    def _judge(self, group: str, kills: Sequence[Kill] = ()) -> list[tuple[bytes, str]]:
        from txcore_conformance import crash_child  # noqa: PLC0415

        assert self._backend is not None
        orders = crash_child.Orders(self._database)
        try:
            crash_child.check_all(self._backend, self._job("checker", group), orders)
        except TimeoutError as error:
            return [(bytes(16), str(error))]
        history = History(at_rest=True, topics=set(self._topics))
        for identity in self._committed[group]:
            history.committed(identity)  # This includes a transaction that no log holds, which is then lost.
        most = oracle.causes_of_a_crash(self._backend.capabilities, self._release)
        for identity, journey in oracle.journeys(self._backend, group).items():
            half = journey.half
            is_known = half is not None and half.messages[0].body != crash_child.UNKNOWN_BODY
            if identity not in self._committed[group] and is_known:
                history.rolled_back(identity)
            final_ms = min((op.at_ms for _, op in journey.ops if op.kind in FINAL_KINDS), default=None)
            for kill in kills:
                if most and is_cause(kill, identity, final_ms):
                    history.caused(identity, f"killed {kill.step}")
        violations, _ = oracle.judge_group(self._harness, self._backend, group, history)
        return [(violation.transaction_id, str(violation)) for violation in violations]

    # -- preparing -------------------------------------------------------------------------------------------------

    def _group(self, program: str) -> str:
        assert self._backend is not None
        group = f"crash-{secrets.token_hex(5)}"
        self._backend.ensure_group(group, 1).result(30)
        self._committed[group] = set()
        self._prepare(program, group)
        return group

    def _prepare(self, program: str, group: str) -> None:
        if program == "checker":
            self._leave_orphans(group)

    def _leave_orphans(self, group: str) -> None:
        """Leave one half of each kind: both fenced ends, both listener ends, and one without any answer."""
        from txcore import SqlFence  # noqa: PLC0415
        from txcore_conformance.crash_child import INSERT, UNKNOWN_BODY, Orders, engine_of  # noqa: PLC0415

        assert self._backend is not None
        kit, topic, engine = Kit(self._harness, group), self._topics[0], engine_of(self._database)
        kit.adopt(self._backend)
        message = self._job("checker", group).message
        for body in (b"fenced commit", b"fenced rollback"):
            transaction = kit.hasty_producer(fence=SqlFence(engine), release=self._release).begin()
            transaction.publish(message(topic, body))
            with engine.connect() as connection:
                connection.begin()
                transaction.prepare(connection)
                connection.execute(INSERT, {"id": transaction.transaction_id})
                (connection.commit if body.endswith(b"commit") else connection.rollback)()
        orders, two = Orders(self._database), (message(topic, b"commit"), message(topic, b"two"))
        orders.commit(kit.orphan(*two, release=self._release).transaction_id)
        for orphan in (message(topic, b"rollback"), Message(topic, UNKNOWN_BODY)):  # a parked half would hold the key
            kit.orphan(orphan, release=self._release)
        if self._release == "owner":
            orders.commit((reported := kit.orphan(*two, release=self._release)).transaction_id)
            reported.commit()

    def _job(self, program: str, group: str, failpoint: str = "", steps: str = "") -> Any:
        from txcore_conformance.crash_child import Job  # noqa: PLC0415

        parts = (self._topics, self._database, IMMUNITY_S, failpoint, steps, self._release, self._order_key)
        return Job(program, self._harness.url, group, *parts)

    def _run(self, program: str, group: str, failpoint: str, steps: str = "") -> int:
        """Run a program in a process of its own and return its exit status."""
        from txcore_conformance.crash_child import Orders  # noqa: PLC0415

        status = self._server.run(self._job(program, group, failpoint, steps).to_json())
        committed = Orders(self._database).committed()
        self._committed[group] |= committed - self._known
        self._known |= committed
        return status


def is_cause(kill: Kill, identity: bytes, final_ms: int | None) -> bool:
    """Return whether a kill, of the producer or of a checker before the decision, may double a transaction's targets.

    Args:
        final_ms: Time at which the transaction's first final op was written.
    """
    born_ms = int.from_bytes(identity[:6], "big")
    if kill.step.program == "checker":
        return born_ms <= kill.ended_ms and (final_ms is None or final_ms >= kill.started_ms)
    return kill.started_ms <= born_ms <= kill.ended_ms


def _culprit(identity: bytes, kills: Sequence[Kill]) -> Kill:
    """Return the kill during whose run a transaction was born, otherwise the last kill."""
    born_ms = int.from_bytes(identity[:6], "big")
    return next((kill for kill in kills if kill.started_ms <= born_ms <= kill.ended_ms), kills[-1])


def now_ms() -> int:
    """Return the wall clock time in milliseconds, as in ids."""
    return time.time_ns() // 1_000_000


def kill_everywhere(
    harness: Harness,
    programs: Sequence[str],
    cycles: int = 0,
    *,
    first_only: bool = False,
    database: str = "",
    release: ReleaseName = "producer",
    is_ordered: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[Step, Tally]:
    """Kill *programs* at their steps in turn: as many processes as there are steps, or *cycles*.

    A kill at the next step replaces a kill that was given up, unless as many kills were given up as were requested.
    With *first_only* the kit kills no process at a step's second time.
    """
    with CrashKit(harness, database, release, is_ordered=is_ordered) as kit:
        steps = [step for step in kit.steps(programs) if not first_only or step.failpoint.endswith(":1")]
        tallies = {step: Tally() for step in steps}
        count = cycles or len(steps)
        say(f"{len(steps)} steps found; {count} processes will be killed")
        producers_groups = itertools.cycle(kit.groups(min(PRODUCER_GROUPS, count)))
        checkers_groups = itertools.cycle(kit.groups(min(CHECKER_GROUPS, count) if "checker" in programs else 0))
        killed = 0
        for step in itertools.islice(itertools.cycle(steps), 2 * count):
            group = next(checkers_groups if step.program == "checker" else producers_groups)
            if not kit.kill_at(step, tallies[step], group):
                continue
            killed += 1
            if killed % PROGRESS_EVERY == 0:
                say(f"{killed} of {count} killed")
            if killed == count:
                break
        kit.judge(tallies, say)
    return tallies


@contextlib.contextmanager
def started(name: str) -> Iterator[Harness]:
    """Start the harness that `module:Class` names."""
    from txcore_conformance.pytest_plugin import load_harness  # noqa: PLC0415 - needs pytest

    harness = load_harness(name)()
    harness.start()
    try:
        yield harness
    finally:
        harness.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if an invariant broke or a step was never reached."""
    from txcore_conformance.crash_child import PROGRAMS  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m txcore_conformance.crash", description=__doc__)
    parser.add_argument("--harness", required=True, metavar="MODULE:CLASS")
    parser.add_argument("--cycles", type=int, default=0, help="processes to kill in all; 0 for one at each step")
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="only these programs; may be repeated")
    parser.add_argument("--broker-kills", type=int, default=0, metavar="N", help="then kill the broker itself N times")
    parser.add_argument("--database", choices=("sqlite", "postgresql", "mariadb"), default="sqlite")
    parser.add_argument("--release", choices=("producer", "owner"), default="producer", help="what publishes halves")
    parser.add_argument("--ordered", action="store_true", help="give all messages one order key; with --release owner")
    parser.add_argument("--list", action="store_true", help="list the steps without a kill")
    chosen = parser.parse_args(arguments)
    if chosen.ordered and chosen.release != "owner":
        parser.error("--ordered needs --release owner: only a partition's owner keeps an order")
    programs = chosen.program or PROGRAMS
    with started(chosen.harness) as harness, servers.database_url(chosen.database) as database:
        if not harness.url:
            parser.error(f"{chosen.harness} has no url: no other process can reach it")
        if chosen.list:
            with CrashKit(harness, database, chosen.release, is_ordered=chosen.ordered) as kit:
                for step in kit.steps(programs):
                    print(step)
            return 0
        options: dict[str, Any] = {"database": database, "release": chosen.release, "say": _say}
        tallies = kill_everywhere(harness, programs, chosen.cycles, is_ordered=chosen.ordered, **options)
        from txcore_conformance.crash_table import show  # noqa: PLC0415 - needs Rich

        is_wrong = bool(show(tallies))
        if chosen.broker_kills:
            from txcore_conformance.chaos_kills import kill_broker, lines_of  # noqa: PLC0415 - needs SQLAlchemy

            report = kill_broker(harness, chosen.broker_kills, _say, chosen.release)
            print("\n".join(lines_of(report)))
            is_wrong |= bool(report.problems)
        return int(is_wrong)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
