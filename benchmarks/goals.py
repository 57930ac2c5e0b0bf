"""`python -m benchmarks.goals FIGURES.json…`, or `make bench-goals FIGURES=…`: whether the goals of speed are met.

The files are those of `make bench JSON=`, of `make bench-rivals JSON=`, and of `python -m benchmarks.recovery --json`,
in any order. Each line has the minimum, median and maximum of the rounds; the median decides. A ratio is taken within
each round. CPU cost is processor time per transaction, of this process and of the broker; on a machine with other work
it varies less than rates do.

The exit code is 0 if all goals are met, 1 if one is missed, and 3 if none is missed but one was not measured.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Kept, MissingRowError, read
from benchmarks.report import WIDTH
from benchmarks.rivals.system import DRAIN, OVERLOAD, TRANSACTIONAL, VISIBLE
from benchmarks.rows import NO_BROKER, NULL_DRIVER, key_of
from benchmarks.yardsticks import PIPELINED_COUNT

MISSED: Final = 1
NOT_MEASURED: Final = 3
TXCORE: Final = "txcore, Kafka"
OUTBOX: Final = "outbox by hand, 50 ms poll"
NOTIFYING: Final = "outbox by hand, NOTIFY"
FULL_OUTBOX: Final = "outbox by hand, id, key, headers and topic"
"""An outbox that stores what the message table stores; no benchmark measures it yet."""
CALLERS: Final = "16 threads, psycopg"
WAITING: Final = "200,000 waiting"
"""Load of `--in-doubt 200000`; each message has a key of its own."""

Seen = Callable[[Kept], Sequence[float]]
Figure = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Attributes:
        limit: The least value that meets the goal, or the greatest one where *is_most* is true.
        seen: Returns the values of the rounds; raises MissingRowError.
        is_alternative: The goal before is met as well where this one is.
    """

    measure: str
    limit: float
    unit: str
    seen: Seen
    is_most: bool = False
    is_alternative: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was seen; without values it was not measured, and *missing* names the row.

    Attributes:
        is_met_otherwise: The other one of two alternatives is met.
    """

    goal: Goal
    values: Sequence[float] = ()
    missing: str = ""
    is_met_otherwise: bool = False

    @property
    def is_within(self) -> bool:
        """Whether the median is within the limit; False where it was not measured."""
        if not self.values:
            return False
        return median(self.values) <= self.goal.limit if self.goal.is_most else median(self.values) >= self.goal.limit

    @property
    def words(self) -> str:
        """Met, or by how much it is missed, or the row that is missing."""
        if self.is_within:
            return "met"
        if self.is_met_otherwise:
            return "met by its alternative"
        if not self.values:
            return f"not measured: {self.missing}"
        above = median(self.values) / self.goal.limit - 1 if self.goal.limit else 0.0
        by = f"{abs(above):.0%} " if self.goal.limit else f"{median(self.values):,.0f} "
        return f"missed: {by}{'above' if self.goal.is_most else 'below'}"


def rate(figures: Mapping[str, float]) -> float:
    """Return the transactions per second of a round."""
    return figures["per_s"]


def cost(figures: Mapping[str, float]) -> float:
    """Return the processor microseconds of client and broker of a round."""
    return figures["own_cpu_us"] + figures["broker_cpu_us"]


def all_cost(figures: Mapping[str, float]) -> float:
    """Return the processor microseconds of client, broker and database of a round."""
    return cost(figures) + figures["database_cpu_us"]


def _own(figures: Mapping[str, float]) -> float:
    return figures["own_cpu_us"]


def _brokers(figures: Mapping[str, float]) -> float:
    return figures["broker_cpu_us"]


def _p50_ms(figures: Mapping[str, float]) -> float:
    return figures["latency_p50_ms"]


def _each(mine: Sequence[float], other: Sequence[float], of: Callable[[float, float], float]) -> list[float]:
    return [of(one, two) for one, two in zip(mine, other, strict=False)]


def _quotients(mine: Sequence[float], other: Sequence[float]) -> list[float]:
    return _each(mine, other, operator.truediv)


def _raw(broker: str) -> str:
    return key_of(broker, "raw", "batch", PIPELINED_COUNT)


def _figure(broker: str, key: str, figure: Figure, kept: Kept) -> list[float]:
    return kept.by_round(broker, key, figure)


def _of_batch(broker: str, start: str, figure: Figure, kept: Kept) -> list[float]:
    return kept.by_round(broker, kept.largest_batch(broker, start), figure)


def _pipelined_rate(broker: str, kept: Kept) -> list[float]:
    return _quotients(_of_batch(broker, f"{broker}/send_many", rate, kept), kept.by_round(broker, _raw(broker), rate))


def _pipelined_cost(broker: str, kept: Kept) -> list[float]:
    """Return raw's cost divided by ours, so that 1 is as cheap as raw."""
    return _quotients(kept.by_round(broker, _raw(broker), cost), _of_batch(broker, f"{broker}/send_many", cost, kept))


def _rates(broker: str, key: str, other: str, kept: Kept) -> list[float]:
    return _quotients(kept.by_round(broker, key, rate), kept.by_round(broker, other, rate))


def _over_rocketmq(load: str, kept: Kept) -> list[float]:
    return _quotients(kept.system(TXCORE, TRANSACTIONAL, load), kept.best_of_rocketmq())


def _lone_caller(of: Callable[[float, float], float], kept: Kept) -> list[float]:
    mine, other = key_of("kafka", "listener", "threads", 1), key_of("kafka", "raw, 2 in a row", "threads", 1)
    return _each(kept.by_round("kafka", mine, _p50_ms), kept.by_round("kafka", other, _p50_ms), of)


def _above_us(mine_ms: float, other_ms: float) -> float:
    return (mine_ms - other_ms) * 1_000


def _table_over(outbox: str, kept: Kept) -> list[float]:
    mine = kept.system(TXCORE, TRANSACTIONAL, f"{CALLERS}, mode table")
    return _quotients(mine, kept.system(outbox, TRANSACTIONAL, CALLERS))


def _drain(kept: Kept) -> list[float]:
    return _quotients(kept.system(TXCORE, DRAIN, WAITING), kept.system(OUTBOX, DRAIN, WAITING))


def _table_visible(of: Callable[[float, float], float], other: str, load: str, kept: Kept) -> list[float]:
    measure = f"{VISIBLE} p50"
    return _each(kept.system(TXCORE, measure, "idle, 10/s, mode table"), kept.system(other, measure, load), of)


def _system(measure: str, load: str, kept: Kept) -> list[float]:
    return kept.system(TXCORE, measure, load)


def _recovery(figure: str, wanted: Mapping[str, object], kept: Kept) -> list[float]:
    return kept.recovery(figure, **wanted)


_NULL_DRIVER = f"{NO_BROKER}/{NULL_DRIVER}"
_PIPELINED = "kafka/send_many"
_DATABASE = key_of("kafka", "database, psycopg", "threads", 16)
_WAITS = key_of("kafka", "by hand, psycopg", "threads", 16)
_EMBEDDED = key_of("sqlite", "database, core", "threads", 16)
_STATEMENTS = key_of(NO_BROKER, "business, core", "threads", 16)
_STATEMENTS_BY_HAND = key_of("sqlite", "by hand, core", "threads", 16)
_TASKS = key_of("kafka", "listener", "tasks", 1_000)
_SERVER = "raw Kafka"

GOALS: Final[tuple[Goal, ...]] = (
    Goal("Kafka, pipelined over raw, CPU cost", 0.30, "", partial(_pipelined_cost, "kafka")),
    Goal("Kafka, pipelined over raw, rate", 0.25, "", partial(_pipelined_rate, "kafka")),
    Goal("Kafka, 1,000 tasks over raw, rate", 0.12, "", partial(_rates, "kafka", _TASKS, _raw("kafka"))),
    Goal("core and plugin on a null driver", 2.0, "us", partial(_of_batch, "kafka", _NULL_DRIVER, _own), is_most=True),
    Goal("Kafka, pipelined, own CPU", 7.0, "us", partial(_of_batch, "kafka", _PIPELINED, _own), is_most=True),
    Goal("Kafka, pipelined, broker's CPU", 3.0, "us", partial(_of_batch, "kafka", _PIPELINED, _brokers), is_most=True),
    Goal("pipelined over RocketMQ's best", 10.0, "", partial(_over_rocketmq, "pipelined, send_many")),
    Goal("1,000 tasks over RocketMQ's best", 5.0, "", partial(_over_rocketmq, "1,000 asyncio tasks")),
    Goal("64 threads over RocketMQ's best", 1.5, "", partial(_over_rocketmq, "64 threads")),
    Goal("lone caller over two produces, p50", 1.10, "", partial(_lone_caller, operator.truediv), is_most=True),
    Goal("or above two produces, p50", 50.0, "us", partial(_lone_caller, _above_us), is_most=True, is_alternative=True),
    Goal("database style, own CPU", 240.0, "us", partial(_figure, "kafka", _DATABASE, _own), is_most=True),
    Goal(
        "client, broker and PostgreSQL, CPU", 500.0, "us", partial(_figure, "kafka", _DATABASE, all_cost), is_most=True
    ),
    Goal("database style over its waits by hand", 0.85, "", partial(_rates, "kafka", _DATABASE, _WAITS)),
    Goal("mode table over a bare outbox", 0.85, "", partial(_table_over, OUTBOX)),
    Goal("mode table over a full outbox", 1.0, "", partial(_table_over, FULL_OUTBOX)),
    Goal("relay drain of 200,000 over outbox", 0.7, "", _drain),
    Goal(
        "visible by table over NOTIFY, p50",
        1.0,
        "",
        partial(_table_visible, operator.truediv, NOTIFYING, "idle, 10/s"),
        is_most=True,
    ),
    Goal(
        "visible by table above raw, p50",
        1.5,
        "ms",
        partial(_table_visible, operator.sub, _SERVER, "idle, 10/s"),
        is_most=True,
    ),
    Goal("NATS, pipelined over raw, CPU cost", 0.25, "", partial(_pipelined_cost, "nats")),
    Goal("RabbitMQ, pipelined over raw, rate", 0.38, "", partial(_pipelined_rate, "rabbitmq")),
    Goal("RabbitMQ, pipelined over raw, CPU cost", 0.32, "", partial(_pipelined_cost, "rabbitmq")),
    Goal("SQLite, over the business statements", 0.28, "", partial(_rates, "sqlite", _EMBEDDED, _STATEMENTS)),
    Goal("SQLite, over the statements by hand", 0.65, "", partial(_rates, "sqlite", _EMBEDDED, _STATEMENTS_BY_HAND)),
    Goal(
        "recovery of 10,000, PostgreSQL",
        1.5,
        "s",
        partial(_recovery, "from_first_due_s", {"answers": "postgresql", "count": 10_000}),
        is_most=True,
    ),
    Goal(
        "recovery of 100,000, PostgreSQL",
        19.5,
        "s",
        partial(_recovery, "from_first_due_s", {"answers": "postgresql", "count": 100_000}),
        is_most=True,
    ),
    Goal("restart on 10 M", 1.4, "s", partial(_recovery, "restart_s", {"old": 10_000_000}), is_most=True),
    Goal("memory for each 100,000 pending", 57.0, "MB", partial(_recovery, "per_100k_mb", {}), is_most=True),
    Goal(
        "overload: missing after 60 s",
        0.0,
        "",
        partial(_system, f"{OVERLOAD}: missing after 60 s", "4 pipelines"),
        is_most=True,
    ),
)
"""The goals of speed. Those of recovery are what docs/performance-notes.md shows: not worse than that."""


def judged(kept: Kept, goals: Sequence[Goal] = GOALS) -> list[Verdict]:
    """Return a verdict for each goal, in their order."""
    found = []
    for goal in goals:
        try:
            found.append(Verdict(goal, goal.seen(kept)))
        except MissingRowError as error:
            found.append(Verdict(goal, missing=str(error)))
    for number, each in enumerate(found):
        if each.goal.is_alternative:
            found[number - 1] = replace(found[number - 1], is_met_otherwise=each.is_within)
            found[number] = replace(each, is_met_otherwise=found[number - 1].is_within)
    return found


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 0 if all are met, 1 if one is missed, 3 if none is missed but one was not measured."""
    unmet = [each for each in verdicts if not (each.is_within or each.is_met_otherwise)]
    if any(each.values for each in unmet):
        return MISSED
    return NOT_MEASURED if unmet else 0


def show(verdicts: Sequence[Verdict], warnings: Sequence[str], console: Console | None = None) -> None:
    """Print the warnings and the table."""
    console = console or Console(width=WIDTH, highlight=False)
    for warning in dict.fromkeys(warnings):
        console.print(warning, markup=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for name in ("measure", ">goal", ">min", ">median", ">max", "verdict"):
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for each in verdicts:
        goal, values = each.goal, each.values
        limit = f"{'≤' if goal.is_most else '≥'} {_shown(goal.limit)} {goal.unit}".strip()
        seen = [_shown(of(values)) for of in (min, median, max)] if values else ["", "", ""]
        table.add_row(goal.measure, limit, *seen, each.words)
    console.print(table)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def run(files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Compare kept figures with the goals of speed."""
    kept = read(files)
    verdicts = judged(kept)
    show(verdicts, kept.warnings)
    sys.exit(exit_code(verdicts))


if __name__ == "__main__":
    typer.run(run)
