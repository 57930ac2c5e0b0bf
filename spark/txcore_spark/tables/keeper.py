"""Writes the tables of results after each run, and what a person acknowledges between two runs.

A run changes each table by one commit of Delta Lake that bears the run's number. So a table knows its last run: a run
is never written twice, and the next one writes what a killed one has left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from pyarrow import dataset

from txcore.errors import UsageError
from txcore.ids import id_text
from txcore_spark.store import VERSION, Store
from txcore_spark.tables import results
from txcore_spark.tables.schemas import COVERAGE, FINDINGS, HOURS, KEY, RUNS, SCHEMAS

APPLICATION: Final = "txcore-audit"
"""Name under which Delta Lake keeps the number of the last run that a table has."""
TRIES_MAX: Final = 10
"""Most times that a commit is tried while other writers of the table are faster."""
FILE_BYTES: Final = 16 * 1024 * 1024
"""Size of a table's files that are large enough; a merge writes those anew in which it changes a row."""
SETTINGS: Final = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""Settings of a table: a reader reads at most 20 commits, and has a day for a version that it has opened."""
_SAME: Final = " AND ".join(f"old.{name} = new.{name}" for name in KEY)
_SEEN: Final = ("broker", "severity", "topic", "places", "details", "seen_run", "seen_at")
_CLOSED: Final = ("closed_run", "closed_at")
_NOTED: Final = ("acknowledged_by", "acknowledged_at", "note")

Manifest = Mapping[str, Any]
Write = Callable[[DeltaTable, CommitProperties], object]


class Keeper:
    """The tables of results of one store; runs whose manifests have another version are left out."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def catch_up(self) -> None:
        """Write every finished run that the tables lack, in their order; the last run, and those of a killed process.

        Raises:
            UsageError: other writers of the tables do not stop.
        """
        for number in self._store.finished_after(last_run(self._opened(RUNS))):
            manifest = self._store.manifest(number)
            if manifest["version"] == VERSION:
                self._add(manifest)

    def _add(self, manifest: Manifest) -> None:
        writes: Mapping[str, Write] = {
            FINDINGS: lambda table, mark: self._merge(table, mark, manifest),
            HOURS: lambda table, mark: _replace(table, mark, manifest),
            COVERAGE: lambda table, mark: _append(table, mark, results.coverage_of(manifest)),
            RUNS: lambda table, mark: _append(table, mark, results.run_of(manifest)),
        }
        for name in SCHEMAS:  # `runs` last: while it lacks the run, the next run writes it again
            self._commit(name, writes[name], manifest["number"])

    def _commit(self, name: str, write: Write, number: int) -> None:
        for _ in range(TRIES_MAX):
            table = self._opened(name)
            if last_run(table) >= number:
                return
            try:
                write(table, CommitProperties(app_transactions=[Transaction(APPLICATION, number)]))
            except CommitFailedError:
                continue  # another writer has changed the rows that this commit was computed from
            return
        raise _busy(name)

    def _opened(self, name: str) -> DeltaTable:
        place = self._store.table(name)
        try:
            return DeltaTable(place)
        except TableNotFoundError:  # `create` alone would read a known table's log twice
            return DeltaTable.create(place, schema=SCHEMAS[name], mode="ignore", name=name, configuration=SETTINGS)

    def _merge(self, table: DeltaTable, mark: CommitProperties, manifest: Manifest) -> None:
        found = results.found_in(self._store, manifest)
        known = {tuple(each.values()) for each in found.select(KEY).to_pylist()}
        open_ones = _open_in(table, results.judged_hours(manifest))
        closed = results.closed_by(manifest, (each for each in open_ones if _key(each) not in known))
        rows = pa.concat_tables([found, pa.Table.from_pylist(closed, schema=SCHEMAS[FINDINGS])])
        if not rows.num_rows:
            return
        merge = table.merge(rows, _SAME, source_alias="new", target_alias="old", commit_properties=mark)
        merge.when_matched_update({name: f"new.{name}" for name in _CLOSED}, "new.closed_run IS NOT NULL")
        merge.when_matched_update({name: f"new.{name}" for name in (*_SEEN, *_CLOSED)}, "new.closed_run IS NULL")
        merge.when_not_matched_insert_all("new.closed_run IS NULL").execute()

    def tidy(self, from_bucket: int) -> None:
        """Make few files of many, and delete the rows of births, and of runs, that the store keeps no longer.

        Args:
            from_bucket: First hour of birth that is kept; 0 for all.
        """
        first_run = next(iter(self._store.numbers()), 0)
        for name in SCHEMAS:
            table = self._opened(name)
            try:
                if from_bucket:
                    is_by_birth = name in {FINDINGS, HOURS}
                    table.delete(f"bucket < {from_bucket}" if is_by_birth else f"run < {first_run}")
                table.optimize.compact(target_size=FILE_BYTES)
                table.vacuum(dry_run=False)
            except CommitFailedError:
                continue  # another writer was faster; the next time will do

    def acknowledged(self) -> dict[tuple[str, str, str], str]:
        """Return, for each open finding that is acknowledged, the name and the note; by the columns of `KEY`."""
        holds = dataset.field("closed_run").is_null() & dataset.field("acknowledged_by").is_valid()
        data = self._opened(FINDINGS).to_pyarrow_dataset()
        rows = data.to_table(columns=[*KEY, "acknowledged_by", "note"], filter=holds).to_pylist()
        return {_key(each): f"{each['acknowledged_by']}: {each['note']}" for each in rows}

    def acknowledge(self, verdict: str, transaction_id: bytes, by: str, note: str, now_ms: int) -> int:
        """Note at an open finding that a person knows it, and return the number of such findings: one for each group.

        Raises:
            UsageError: there is no such open finding, or other writers of the table do not stop.
        """
        name = id_text(transaction_id)
        row = {"transaction_id": name, "verdict": verdict, "acknowledged_by": by, "note": note}
        noted = {"acknowledged_at": now_ms * 1000, **row}
        source = pa.Table.from_pylist([noted], schema=pa.schema([SCHEMAS[FINDINGS].field(each) for each in noted]))
        same = "old.transaction_id = new.transaction_id AND old.verdict = new.verdict AND old.closed_run IS NULL"
        for _ in range(TRIES_MAX):
            try:
                merge = self._opened(FINDINGS).merge(source, same, source_alias="new", target_alias="old")
                changed = merge.when_matched_update({each: f"new.{each}" for each in _NOTED}).execute()
            except CommitFailedError:
                continue
            if not changed["num_target_rows_updated"]:
                raise UsageError(f'no open finding {verdict} on {name}: txcore audit sql "SELECT * FROM open_findings"')
            return int(changed["num_target_rows_updated"])
        raise _busy(FINDINGS)


def last_run(table: DeltaTable) -> int:
    """Return the number of the last run that a table has; 0 for none."""
    return table.transaction_version(APPLICATION) or 0


def _open_in(table: DeltaTable, hours: set[int]) -> list[dict[str, Any]]:
    holds = dataset.field("closed_run").is_null() & dataset.field("bucket").isin(sorted(hours))
    data = table.to_pyarrow_dataset()
    found: list[dict[str, Any]] = data.to_table(columns=[*KEY, "bucket"], filter=holds).to_pylist()
    return found


def _key(finding: Mapping[str, Any]) -> tuple[str, str, str]:
    identity, verdict, group = (finding[name] for name in KEY)
    return identity, verdict, group


def _replace(table: DeltaTable, mark: CommitProperties, manifest: Manifest) -> None:
    """Replace the rows of the hours that the run judged from their beginning to their end."""
    hours = sorted(results.whole_hours(manifest))
    if hours:
        predicate = f"bucket IN ({', '.join(map(str, hours))})"
        rows = results.hours_of(manifest)
        write_deltalake(table, rows, mode="overwrite", predicate=predicate, commit_properties=mark)


def _append(table: DeltaTable, mark: CommitProperties, rows: pa.Table) -> None:
    write_deltalake(table, rows, mode="append", commit_properties=mark)


def _busy(name: str) -> UsageError:
    return UsageError(f"the table {name} is being changed by other writers: try again")
