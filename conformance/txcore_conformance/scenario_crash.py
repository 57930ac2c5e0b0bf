"""Runs an application's scenario once for each of its steps, kills it there, lets a checker finish, and compares.

Both or neither: a message must announce every record in the database, and no message may announce another record.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from txcore import Checker, CheckPolicy
from txcore.port import Backend
from txcore.wire import HEADER_ID
from txcore_conformance.forks import ForkServer
from txcore_conformance.harness import Delivered, Harness
from txcore_conformance.kit import FAST, decide_all
from txcore_conformance.oracle import everything_in
from txcore_conformance.scenario import Place, Scenario
from txcore_conformance.scenario_advice import UNKILLED, advice
from txcore_conformance.scenario_child import Job
from txcore_conformance.user_lines import Line

DECIDE_TIME_MAX_S: Final = 90.0
TRIES_MAX: Final = 3
YOUR_LINE: Final = "your line"
PASSES: Final = "`run` fails without a kill, too: let it pass as an ordinary test first; its error is above."
ALIKE: Final = "Let `run` take the same steps each time: no chance, no clock and no threads may decide what it does."
RECORDS: Final = "Let `run` commit a record and publish its message, and `committed` return a name for the record."


@dataclass(frozen=True, slots=True)
class Finding:
    """Records of a run after the checker finished.

    Attributes:
        step: Step at which the run was killed.
        both: Names of the records that are in the database and announced.
        lost: Names of records in the database that no message announces.
        leaked: Names that a message announces and that are not in the database.
        doubled: Names that several messages with different ids announce, so that an inbox cannot drop one.
        problem: Reason why there is no result.
        cure: How to get a result.
    """

    step: str
    both: Sequence[Any] = ()
    lost: Sequence[Any] = ()
    leaked: Sequence[Any] = ()
    doubled: Sequence[Any] = ()
    problem: str = ""
    cure: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether atomicity is broken, or unknown."""
        return bool(self.lost or self.leaked or self.doubled or self.problem)

    def sentences(self) -> list[str]:
        """Return the results as sentences."""
        lines = [f"LOST {name}: it is in the database, and no message will ever announce it" for name in self.lost]
        lines += [f"LEAKED {name}: a message announces it, and it is not in the database" for name in self.leaked]
        lines += [f"DOUBLED {name}: several messages announce it, each with an id of its own" for name in self.doubled]
        lines += [self.problem] if self.problem else []
        return lines or [f"both: {', '.join(map(str, self.both))}" if self.both else "neither"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings about one scenario, and the steps of the run without a kill with the user's lines."""

    scenario: str
    findings: Sequence[Finding]
    steps: Mapping[str, Line]

    @property
    def wrong(self) -> Sequence[Finding]:
        """Findings that break atomicity."""
        return [finding for finding in self.findings if finding.is_wrong]

    def __str__(self) -> str:
        """Return the table of steps with the user's lines, and what to change."""
        places = {finding.step: str(self.steps.get(finding.step, "")) for finding in self.findings}
        width, place_width = max(map(len, places)), max(len(YOUR_LINE), *map(len, places.values()))
        lines = []
        for finding in self.findings:
            mark = "!" if finding.is_wrong else " "
            for number, sentence in enumerate(finding.sentences()):
                step, place = ("", "") if number else (finding.step, places[finding.step])
                lines.append(f"{mark} {step:{width}}  {place:{place_width}}  {sentence}")
        kills = len(self.findings) - 1
        unknown = sum(bool(finding.problem) for finding in self.findings)
        head = f"{self.scenario}: killed at {kills} steps, {len(self.wrong) - unknown} broke atomicity"
        head += f", {unknown} gave no result" if unknown else ""
        table = f"  {'killed at':{width}}  {YOUR_LINE:{place_width}}  result after the checker is done"
        text = "\n".join([head, "", table, *lines])
        for each in advice(self.findings, self.steps):
            text += f"\n\n{textwrap.fill(each, 118, initial_indent='  ', subsequent_indent='  ')}"
        return text


class ScenarioCrash:
    """Kills one scenario on one harness's running broker. Use `run` once."""

    def __init__(self, scenario: type[Scenario], harness: Harness) -> None:
        if not harness.url:
            raise ValueError("no other process can reach this backend")
        self._type = scenario
        self._scenario = scenario()
        self._harness = harness
        self._server = ForkServer("txcore_conformance.scenario_child")
        self._seen: set[tuple[str, int, int]] = set()

    def run(self) -> Verdict:
        """Run the scenario once without a kill, then kill it at each step of that run."""
        for topic in self._scenario.topics:
            with contextlib.suppress(Exception):  # on a broker that others use the topic may exist
                self._harness.create_topic(topic)
        self._new_messages()  # messages from before the run; raises if a topic could not be made
        backend = self._harness.open()
        self._server.start()
        try:
            finding, steps = self._attempt(backend, "")
            findings = [finding]
            if not finding.is_wrong:
                findings += [self._kill_at(backend, step) for step in steps]
        finally:
            self._server.stop()
            backend.close(10).result(20)
        return Verdict(self._type.__name__, findings, steps)

    def _kill_at(self, backend: Backend, step: str) -> Finding:
        for _ in range(TRIES_MAX):
            finding, steps = self._attempt(backend, step)
            if not steps or finding.is_wrong:
                return finding
        return Finding(
            step, problem=f"the step did not come again in {TRIES_MAX} runs: are they all alike?", cure=ALIKE
        )

    def _attempt(self, backend: Backend, step: str) -> tuple[Finding, dict[str, Line]]:
        """Run once, killed at *step*; returns the finding and, if the run was not killed, its steps and their lines."""
        with tempfile.TemporaryDirectory(prefix="txcore-crash-") as name:
            folder, name_of_step = Path(name), step or UNKILLED
            place = Place(self._harness.url, self._scenario.database(folder))
            self._scenario.setup(place)
            outcome = folder / "outcome"
            job = Job(
                self._type.__module__,
                inspect.getfile(self._type),
                self._type.__qualname__,
                tuple(sys.path),
                place.broker,
                place.database,
                str(outcome),
                tuple(self._scenario.preload),
                step,
            )
            status = self._server.run(job.to_json())
            if status > 0:
                problem = f"the run ended with an error of its own:\n{outcome.read_text(encoding='utf-8')}"
                return Finding(name_of_step, problem=problem, cure=PASSES), {}
            is_dead = status == -signal.SIGKILL
            if status < 0 and not is_dead:
                return Finding(name_of_step, problem=f"the run was ended by signal {-status}"), {}
            steps = {} if is_dead else msgspec.json.decode(outcome.read_bytes(), type=dict[str, Line])
            if is_dead and (problem := self._restart(job)):
                return Finding(name_of_step, problem=problem), {}
            self._decide(backend, place)
            finding = self._compare(place, name_of_step)
            if not step and not finding.is_wrong and not finding.both:
                problem = "the run left no records, so there is nothing to compare"
                finding = replace(finding, problem=problem, cure=RECORDS)
            return finding, steps

    def _restart(self, job: Job) -> str:
        """Let the service do what it does after a kill; returns why it could not."""
        if self._type.restart is Scenario.restart:
            return ""
        if self._server.run(replace(job, failpoint="", restarts=True).to_json()) == 0:
            return ""
        outcome = Path(job.outcome)
        text = outcome.read_text(encoding="utf-8") if outcome.exists() else "it was ended by a signal"
        return f"`restart` ended with an error of its own:\n{text}"

    def _decide(self, backend: Backend, place: Place) -> None:
        fence, listener = self._scenario.fence(place), self._scenario.listener(place)
        policy = CheckPolicy(interval_s=0.001, check_max=2)
        limits = replace(FAST, check_deadline_s=10.0)
        checker = Checker(backend, self._scenario.group, fence=fence, listener=listener, policy=policy, limits=limits)
        decide_all(checker, backend, self._scenario.group, DECIDE_TIME_MAX_S)

    def _compare(self, place: Place, step: str) -> Finding:
        committed = list(dict.fromkeys(self._scenario.committed(place)))
        announced: dict[Any, set[Any]] = {}
        for message in self._new_messages():
            identity = message.headers.get(HEADER_ID) or (message.partition, message.position)
            announced.setdefault(self._scenario.announced(message), set()).add(identity)
        return Finding(
            step,
            both=[name for name in committed if name in announced],
            lost=[name for name in committed if name not in announced],
            leaked=[name for name in announced if name not in committed],
            doubled=[name for name, identities in announced.items() if len(identities) > 1],
        )

    def _new_messages(self) -> list[Delivered]:
        """Return the topics' new messages since the last call."""
        found = []
        for topic in self._scenario.topics:
            for message in everything_in(self._harness, topic):
                place = (topic, message.partition, message.position)
                if place not in self._seen:
                    self._seen.add(place)
                    found.append(message)
        return found
