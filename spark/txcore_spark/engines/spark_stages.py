"""How many tasks of Spark's stages are done: asked of a context in this process, or reported by a Connect server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql import SparkSession, is_remote

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

Counts = Mapping[int, tuple[int, int]]
"""By the number of a stage: its done tasks, and all."""


def stages_of(session: SparkSession) -> Callable[[Sequence[int]], Counts]:
    """Return the function that counts the tasks of the stages that run, and of known ones."""
    if is_remote():
        reported = _Reported()
        session.registerProgressHandler(cast("ProgressHandler", reported.take))
        return reported.counts
    return _Asked(session.sparkContext.statusTracker()).counts


class _Asked:
    def __init__(self, tracker: StatusTracker) -> None:
        self._tracker = tracker

    def counts(self, known: Sequence[int]) -> Counts:
        found = {}
        for number in {*self._tracker.getActiveStageIds(), *known}:
            info = self._tracker.getStageInfo(number)
            if info is not None:
                found[number] = (info.numCompletedTasks, info.numTasks)
        return found


class _Reported:
    """The last report on the operation that runs; it is replaced whole, as another thread reads it."""

    def __init__(self) -> None:
        self._counts: Counts = {}

    def take(self, *, stages: Iterable[StageInfo] | None, **_: object) -> None:
        self._counts = {each.stage_id: (each.num_completed_tasks, each.num_tasks) for each in stages or ()}

    def counts(self, known: Sequence[int]) -> Counts:  # noqa: ARG002 - a report has all stages of its operation
        return self._counts
