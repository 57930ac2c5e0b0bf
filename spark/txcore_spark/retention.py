"""What a store no longer keeps: rows, results and runs of births before `audit.keep_days`.

Only incremental steps forget. Certified runs stay, because a proof needs their certificates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pyarrow import dataset

from txcore_spark import packs
from txcore_spark.certifying import NAME
from txcore_spark.coverage import Coverage
from txcore_spark.rows import BUCKET_MS, MARKS
from txcore_spark.scope import Scope
from txcore_spark.store import Store

HOURS_A_DAY: Final = 24
RUNS_MAX: Final = 1_000
"""Most old runs that one step looks at: so none takes long after a change of the configuration."""
TIDY_EVERY: Final = 50
"""Number of runs from one time that the store is tidied to the next one, unless a day begins before."""
_BY_HOUR: Final = ("verdicts", "transactions", "latencies", "unproven")


def first_bucket(now_ms: int, keep_days: int) -> int:
    """Return the first hour of birth that a store keeps, always that of a midnight (UTC); 0 where it keeps all."""
    if not keep_days:
        return 0
    return max(now_ms // BUCKET_MS // HOURS_A_DAY - keep_days, 0) * HOURS_A_DAY


def is_due(manifest: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a run is to tidy the store: the first one of a day (UTC), and each of `TIDY_EVERY`."""
    day_ms = BUCKET_MS * HOURS_A_DAY
    days = {each["now_ms"] // day_ms for each in (manifest, *before[-1:])}
    return len(days) > 1 or manifest["number"] % TIDY_EVERY == 0


def forget(before: dict[str, Any], from_bucket: int) -> None:
    """Leave out of a step's manifest, on which the next one builds, the births that are not kept."""
    if not from_bucket:
        return
    for name in _BY_HOUR:
        before[name] = [each for each in before[name] if each["bucket"] >= from_bucket]
    before["buckets"] = {bucket: run for bucket, run in before["buckets"].items() if int(bucket) >= from_bucket}
    before["again"] = [bucket for bucket in before["again"] if bucket >= from_bucket]


def limit(covered: Coverage, scope: Scope, from_bucket: int) -> None:
    """Let no missing record prove anything about births that are not kept: theirs may have been deleted."""
    if from_bucket:
        for known, groups in ((covered.judged_from_ms, scope.groups), (covered.sent_from_ms, scope.by_table)):
            known.update({group: max(known.get(group, 0), from_bucket * BUCKET_MS) for group in groups})


def prune(store: Store, manifest: Mapping[str, Any], from_bucket: int) -> None:
    """Delete what is of births that are not kept: runs that neither ended nor found anything later, rows in packs."""
    needed = {*manifest["buckets"].values(), manifest["number"]}
    old = [each for each in islice(_old_runs(store, from_bucket * BUCKET_MS), RUNS_MAX) if each not in needed]
    for part in store.parts(manifest):
        if not part.level and part.first in old:  # its marks stay, on which later ops rest
            packs.write(store, [part], 1, from_bucket)
    for number in old:
        if not store.has(number, NAME):
            store.delete(number)
    is_old = (dataset.field("bucket") < from_bucket) & (dataset.field("bucket") != MARKS)
    for part in store.parts(manifest):
        if part.level and part.data.count_rows(filter=is_old):
            packs.write(store, [part], part.level, from_bucket)


def _old_runs(store: Store, from_ms: int) -> Iterator[int]:
    """Yield the runs before the first one that was cut at or after a time, and those among them that did not finish."""
    for number in store.numbers():
        if store.is_finished(number) and store.manifest(number)["now_ms"] >= from_ms:
            return
        yield number
