"""Reads what benchmarks keep with `--json`: rows of `benchmarks`, of `benchmarks.rivals` and of `benchmarks.recovery`.

Figures are given as one value for each round, so that two rows of one report are compared within a round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import machine
from benchmarks.place import BODY_SIZE
from benchmarks.rivals.system import TRANSACTIONAL
from benchmarks.rows import NO_BROKER

ROUND: Final = "by_round"
ROCKETMQ: Final = "RocketMQ"
OTHER_STORE: Final = "RocksDB"
"""Part of the name of a RocketMQ whose store for transactions is not the default one."""


class MissingRowError(Exception):
    """The reports have no such row; the text is its name."""


class Kept:
    """The rows of some reports; where two have the same row, that of the later one counts.

    Attributes:
        warnings: A sentence for each report of a machine that was loaded by other work.
    """

    def __init__(self, reports: Iterable[Mapping[str, Any]]) -> None:
        self.warnings: list[str] = []
        self._rows: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._systems: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        self._recoveries: list[Mapping[str, Any]] = []
        for report in reports:
            self._take(report)

    def _take(self, report: Mapping[str, Any]) -> None:
        if "rows" not in report:
            self._recoveries.append(report)
            return
        if warning := machine.load_warning(report["load_average_before"], report["machine"]["cores"]):
            self.warnings.append(warning)
        brokers = {row["broker"] for row in report["rows"] if "broker" in row} - {NO_BROKER}
        for row in report["rows"]:
            if "system" in row:
                self._systems[row["system"], row["measure"], row["load"]] = row
            for broker in brokers:
                self._rows[broker, row["key"]] = row

    def by_round(self, broker: str, key: str, figure: Callable[[Mapping[str, float]], float]) -> list[float]:
        """Return a figure of a row of `benchmarks`, for each round.

        Args:
            broker: The broker of the run: each run measures the rows without a broker for itself.

        Raises:
            MissingRowError: the row is in no report of the broker.
        """
        found = self._rows.get((broker, key), {})
        if ROUND not in found:
            raise MissingRowError(key)
        return [figure(each) for each in found[ROUND]]

    def largest_batch(self, broker: str, start: str) -> str:
        """Return the key of the row with the most transactions in a batch, of those of "broker/style" in *start*.

        Raises:
            MissingRowError: there is none.
        """
        head, end = f"{start}/batch/", f"/{BODY_SIZE}"
        found = [
            row
            for (measured, key), row in self._rows.items()
            if measured == broker and key.startswith(head) and key.endswith(end)
        ]
        if not found:
            raise MissingRowError(f"{head}*{end}")
        key: str = max(found, key=lambda row: int(row["size"]))["key"]
        return key

    def system(self, name: str, measure: str, load: str) -> list[float]:
        """Return a figure of the comparison with others, for each round.

        Raises:
            MissingRowError: the row is in no report.
        """
        if (name, measure, load) not in self._systems:
            raise MissingRowError(f"{name}: {measure}, {load}")
        rounds: list[float] = self._systems[name, measure, load]["rounds"]
        return rounds

    def best_of_rocketmq(self) -> list[float]:
        """Return the transactions per second of RocketMQ's fastest load, with its default store, for each round.

        Raises:
            MissingRowError: RocketMQ was not measured.
        """
        found: list[Sequence[float]] = [
            row["rounds"]
            for (name, measure, _), row in self._systems.items()
            if name.startswith(ROCKETMQ) and OTHER_STORE not in name and measure == TRANSACTIONAL
        ]
        if not found:
            raise MissingRowError(f"{ROCKETMQ}: {TRANSACTIONAL}")
        return list(max(found, key=median))

    def recovery(self, figure: str, **wanted: object) -> list[float]:
        """Return a figure of each recovery whose report has the wanted values.

        Raises:
            MissingRowError: no report has it.
        """
        found = [each[figure] for each in self._recoveries if figure in each and wanted.items() <= each.items()]
        if not found:
            raise MissingRowError(
                ", ".join([f"recovery: {figure}", *(f"{name} {value}" for name, value in wanted.items())])
            )
        return found


def read(files: Iterable[Path]) -> Kept:
    """Return the rows of files that `--json` has written."""
    return Kept(json.loads(each.read_text(encoding="utf-8")) for each in files)
