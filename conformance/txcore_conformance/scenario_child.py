"""The child that runs a user's scenario, lists its steps and lines, and kills itself at the chosen one.

`python -m txcore_conformance.scenario_child` reads jobs, one JSON object a line, and forks a process for each.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import msgspec
from sqlalchemy.engine.default import DefaultDialect

from txcore.checker.checker import Checker
from txcore.plugin import BackendPlugin
from txcore.port import Backend
from txcore.producer import listener_batch, listener_style
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import LocalTransaction, make_half, make_halves
from txcore.records import HalfRecord, TargetMessage
from txcore_conformance.failpoints import Failpoints, Watched, install
from txcore_conformance.forks import load_backend, serve
from txcore_conformance.scenario import Place, Scenario
from txcore_conformance.user_lines import Located

LIFETIME_MAX_S: Final = 120
IMMUNITY_S: Final = 0.001
"""Immunity that is written into the halves; it is short, because the checker starts when this process is dead."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job of one process, and the file for its steps with their lines, or for the reason of its failure.

    Attributes:
        path: `sys.path` of the parent process.
        restarts: Whether to call the scenario's `restart` instead of its `run`.
    """

    module: str
    file: str
    name: str
    path: tuple[str, ...]
    broker: str
    database: str
    outcome: str
    preload: tuple[str, ...] = ()
    failpoint: str = ""
    restarts: bool = False

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Job:
        """Return the job in a line."""
        return Job(**json.loads(line))


def load(module: str, file: str, name: str) -> type[Scenario]:
    """Return a class by its module, or by its file if pytest has imported the file under another name."""
    try:
        found: ModuleType | None = importlib.import_module(module)
    except ImportError:
        found = None
    if found is None or getattr(found, "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[module] = found
        spec.loader.exec_module(found)
    return cast("type[Scenario]", getattr(found, name))


def _idle(self: Checker) -> None:
    """Do nothing: the kit's checker works after the kill."""


def watch(failpoints: Failpoints) -> None:
    """Make every command of txcore and every COMMIT of SQLAlchemy in this process a step.

    A checker inside the service does not start: its steps would come at other moments in each run.
    """
    install(failpoints)
    Checker.start = _idle  # type: ignore[method-assign]
    connect, commit = BackendPlugin.connect, DefaultDialect.do_commit

    def watched_connect(self: BackendPlugin, url: str) -> Backend:
        return Watched(connect(self, url), failpoints)

    def hasty_half(transaction: LocalTransaction) -> HalfRecord:
        context, policy = transaction.context, transaction.context.policy
        context.policy = replace(policy, immunity_s=IMMUNITY_S)
        half = make_half(transaction)
        context.policy, transaction.immunity_s = policy, policy.immunity_s
        return half

    def hasty_halves(transactions: Sequence[LocalTransaction], messages: Sequence[TargetMessage]) -> Any:
        context, policy = transactions[0].context, transactions[0].context.policy
        context.policy = replace(policy, immunity_s=IMMUNITY_S)
        made = make_halves(transactions, messages)
        context.policy = policy
        return made

    def watched_commit(dialect: DefaultDialect, connection: Any) -> None:
        failpoints.reach("before database COMMIT")
        commit(dialect, connection)  # type: ignore[no-untyped-call]
        failpoints.reach("after database COMMIT")

    BackendPlugin.connect = watched_connect  # type: ignore[method-assign]
    flow.make_half = listener_style.make_half = hasty_half  # type: ignore[attr-defined]
    listener_batch.make_halves = hasty_halves  # type: ignore[attr-defined]
    DefaultDialect.do_commit = watched_commit  # type: ignore[method-assign]


def run(job: Job) -> int:
    """Run the scenario in this process and return its exit status."""
    signal.alarm(LIFETIME_MAX_S)
    failpoints = Located(job.file, job.failpoint)
    outcome = Path(job.outcome)
    try:
        sys.path[:] = job.path
        scenario = load(job.module, job.file, job.name)()
        watch(failpoints)
        act = scenario.restart if job.restarts else scenario.run
        act(Place(job.broker, job.database, failpoints.reach))
    except BaseException:  # noqa: BLE001 - the parent reports it
        outcome.write_text(traceback.format_exc(), encoding="utf-8")
        return 1
    outcome.write_bytes(msgspec.json.encode(dict(zip(failpoints.steps, failpoints.lines, strict=True))))
    return 0


def prepare(job: Job) -> None:
    """Import the modules that all children need."""
    load_backend(job.broker)
    for name in job.preload:
        importlib.import_module(name)


def _line(action: Callable[[Job], Any]) -> Callable[[str], Any]:
    return lambda line: action(Job.from_json(line))


if __name__ == "__main__":
    serve(_line(prepare), _line(run))
