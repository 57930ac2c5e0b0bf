"""The command `txcore audit`, also for `spark-submit`: run steps, print the results, return the exit code."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from txcore.audit.engines import ENGINES, SPARK
from txcore.audit.verdicts import FAILED, PASS, SEVERITIES, Severity, Verdict
from txcore.clock import SystemClock
from txcore.config import ConfigFileError, Loaded, load
from txcore.errors import TxcoreError, UsageError
from txcore.findings import counted
from txcore.operator.formatting import ms_of_iso
from txcore.signals import end_requested
from txcore_spark.engines import choice
from txcore_spark.engines.noise import SparkOutput
from txcore_spark.engines.session import is_submitted
from txcore_spark.job import Audit, Window
from txcore_spark.limits import limits_of
from txcore_spark.lineage import reported
from txcore_spark.progress import Progress
from txcore_spark.report import NAME
from txcore_spark.store import Store
from txcore_spark.tables.keeper import Keeper
from txcore_spark.trend import RUNS, differences

MODES: Final = ("incremental", "once", "continuous")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
NOUNS: Final = {
    "halves": "half",
    "commits": "commit",
    "rollbacks": "rollback",
    "pending": "pending",
    "targets": "target",
}
"""The counts of a run, in its order, with the noun of one."""
SUMMARY_KEYS: Final = (
    "number", "mode", "exit_code", "counts", "severities", "gaps", "records", "strange", "now_ms", "judged_from_ms",
    "withheld", "rows_withheld", "horizons", "unread", "refused", "origin", "report_sha256",
)  # fmt: skip
_WORDS: Final = {
    0: "pass: everything agrees",
    1: "warnings",
    2: "violations",
    3: "inconclusive: not everything could be read",
    4: "error",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of the command line."""

    mode: str = "incremental"
    since: str = ""
    until: str = ""
    as_json: bool = False
    is_landed: bool = True
    is_verbose: bool = False
    engine: str = ""
    steps_max: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


def run(loaded: Loaded, wish: Wish, progress: Progress | None = None) -> int:
    """Run the audit and return its exit code: 0 pass, 1 warnings, 2 violations, 3 inconclusive, 4 error."""
    window = window_of(wish)
    try:
        return _run(loaded, wish, window, progress)
    except (ConfigFileError, UsageError):
        _write_metrics(loaded, None)
        raise


def _run(loaded: Loaded, wish: Wish, window: Window | None, progress: Progress | None) -> int:
    name = choice.chosen(wish.engine)
    output = SparkOutput(is_shown=wish.is_verbose or is_submitted() or name != SPARK)
    try:
        settings = loaded.config.audit
        progress = progress or Progress(quiet=not (wish.is_verbose or sys.stderr.isatty()))
        progress.say(f"starting {choice.TITLES[name]}")
        with closing(choice.open_engine(name, loaded, wish.settings, output)) as engine:
            store = Store(settings.store)

            def step() -> int:
                with reported(settings.lineage, store.uri) as report:
                    with progress.step(engine.tasks) as say:
                        audit = Audit(engine, loaded, store, say=say)
                        is_once = wish.mode == "once"
                        manifest = audit.once(window, is_landed=wish.is_landed) if is_once else audit.incremental()
                    code = _finish(manifest, store, loaded, wish)
                    report(manifest)
                return code

            code = _continuous(step, settings.interval_s, wish) if wish.mode == "continuous" else step()
    except (ConfigFileError, UsageError):
        output.forget()
        raise
    except Exception as error:  # noqa: BLE001 - any exception of an engine or a driver fails the audit
        print(f"txcore: the audit failed: {_sentence(error)}{output.hint}", file=sys.stderr)  # noqa: T201 - speaks
        _write_metrics(loaded, None)
        return FAILED
    output.forget()
    return code


def _finish(manifest: Mapping[str, Any], store: Store, loaded: Loaded, wish: Wish) -> int:
    _write_metrics(loaded, manifest)
    trend = differences(manifest, store.before(manifest["number"], RUNS))
    report = store.path(manifest["number"], NAME)
    known = Keeper(store).acknowledged() if loaded.config.audit.tables else {}
    acknowledged = dict(sorted(Counter(verdict for _, verdict, _ in known).items()))
    if wish.as_json:
        found = {key: manifest[key] for key in SUMMARY_KEYS} | {"store": store.uri, "report": report, "trend": trend}
        found["acknowledged"] = acknowledged
        print(msgspec.json.encode(found).decode(), flush=True)  # noqa: T201 - the command's output
    else:
        trend += [f"acknowledged: {counted(count, 'open finding')} {name}" for name, count in acknowledged.items()]
        print("\n".join(lines_of(manifest, report, trend)), flush=True)  # noqa: T201
    return int(manifest["exit_code"])


def _write_metrics(loaded: Loaded, manifest: Mapping[str, Any] | None) -> None:
    path = loaded.config.audit.textfile
    if path:
        from txcore_spark import textfile  # noqa: PLC0415 - its library is needed with this option alone

        textfile.write_metrics(path, manifest, SystemClock().wall_ms())


def _continuous(step: Callable[[], int], interval_s: float, wish: Wish) -> int:
    """Run incremental steps until a signal stops them; the last step's exit code is returned."""
    code, steps = PASS, 0
    with end_requested() as requested:
        while not requested.is_set():
            code = step()
            steps += 1
            if wish.steps_max and steps >= wish.steps_max:
                break
            requested.wait(interval_s)
    return code


def lines_of(manifest: Mapping[str, Any], report: str, trend: Sequence[str] = ()) -> list[str]:
    """Return a run's result as lines of text."""
    totals = {name: sum(each[name] for each in manifest["transactions"]) for name in NOUNS}
    parts = ", ".join(counted(total, NOUNS[name], name) for name, total in totals.items())
    found = [f"run {manifest['number']}: {parts}; {counted(manifest['records'], 'record')} read"]
    for name, severity in sorted(manifest["severities"].items(), key=lambda item: -Severity[item[1].upper()]):
        count = manifest["counts"][name]
        found.append(f"  {severity:<12} {name:<16} {count:>9,}  {Verdict[name].value}")
    found += [
        f"  gap in {each['backend']} {each['log']} {each['name']}: {each['why']}" for each in manifest["gaps"][:10]
    ]
    found += [f"  {sentence}" for sentence in (*limits_of(manifest), *trend)]
    code = manifest["exit_code"]
    found += [f"  report: {report}", f"  its data's SHA-256: {manifest['report_sha256']}"]
    return [*found, f"{_WORDS[code]} (exit code {code})"]


def window_of(wish: Wish) -> Window | None:
    """Return the window that two ISO times describe; None without any.

    Raises:
        UsageError: one of them is not an ISO time, or the mode does not accept a window or `--no-land`.
    """
    if not wish.is_landed and wish.mode != "once":
        raise UsageError("--no-land needs --mode once: the other modes build on the rows of the runs before")
    if not wish.since and not wish.until:
        return None
    if wish.mode != "once":
        raise UsageError("--since and --until need --mode once")
    bounds = Window()
    since_ms = ms_of_iso(wish.since) if wish.since else bounds.since_ms
    return Window(since_ms, ms_of_iso(wish.until) if wish.until else bounds.until_ms)


def _sentence(error: BaseException) -> str:
    if isinstance(error, TxcoreError):
        return " ".join(str(error).split())
    lines = [line.strip(" ↳") for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if isinstance(error, OSError):  # of a file system of Arrow: one cause in a line, the first one last
        lines = [": ".join(lines)] if lines else []
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


class _Parser(argparse.ArgumentParser):
    """Exits with 4 after a mistyped option, because 2 means violations."""

    def error(self, message: str) -> NoReturn:
        """Print *message* in one line and exit."""
        self.exit(FAILED, f"txcore: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audit as a script, for `spark-submit`."""
    parser = _Parser(prog="txcore_spark", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    parser.add_argument("--since", default="")
    parser.add_argument("--until", default="")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--no-land", action="store_false", dest="is_landed")
    parser.add_argument("--steps", type=int, default=0, dest="steps_max")
    parser.add_argument("--engine", choices=ENGINES, default="")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args(arguments)
    config, settings = given.config, given.settings
    del given.config, given.settings
    wish = Wish(**vars(given))
    try:
        return run(load(config, settings=settings), wish)
    except TxcoreError as error:
        print(f"txcore: {_sentence(error)}", file=sys.stderr)  # noqa: T201
        return FAILED


assert set(SEVERITIES) == set(Verdict)
