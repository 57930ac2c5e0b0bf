"""No pass that is none: each way in which records are missing or unreadable ends with a code that is not 0."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from beds import Bed, found_in
from sqlalchemy import create_engine, text
from txcore_conformance import servers
from txcore_conformance.required import obtained
from txcore_spark.anomalies import identity_of
from txcore_spark.command import lines_of
from txcore_spark.plan import FENCE, Range, Source
from txcore_spark.readers import fence
from txcore_spark.readers.ranges import read_range
from txcore_spark.report import page
from txcore_spark.rows import Kind, Place, numbers_of
from txcore_spark.selftest.writers import write_rows

import txcore
from txcore import wire
from txcore.errors import NewerRecordError
from txcore.records import Op


@pytest.fixture
def bed(tmp_path):
    """A group on SQLite with ten whole transactions."""
    made = Bed(tmp_path)
    made.write(*[None] * 10)
    return made


def on_broker(bed, sql, *values):
    """Change the broker's file past the protocol."""
    with closing(sqlite3.connect(bed.folder / "broker.db", isolation_level=None)) as connection:
        connection.execute(sql, values)


def on_database(bed, sql, **values):
    """Change the database past the protocol."""
    engine = create_engine(bed.database)
    with engine.begin() as connection:
        connection.execute(text(sql), values)
    engine.dispose()


def said(bed, manifest):
    """Return all that the terminal and the report say about a run; both must have the same words about its limits."""
    terminal = "\n".join(lines_of(manifest, "report.html"))
    return terminal + page(manifest, bed.store().findings(manifest, 100))


def gaps_of(manifest):
    """Return the reasons of a run's gaps, by log."""
    return {each["log"]: each["why"] for each in manifest["gaps"]}


def test_a_half_log_that_was_cut_before_the_first_run_is_a_gap(engine, bed):
    """The default mode says so as `once` does: exit code 3, and no target counts as PHANTOM."""
    on_broker(bed, "DELETE FROM half WHERE position < (SELECT MAX(position) FROM half)")
    manifest = bed.audit(engine).incremental()
    assert 3 == manifest["exit_code"]
    assert "its beginning is gone" in gaps_of(manifest)["half"]
    assert {"COVERAGE_GAP"} == set(manifest["counts"])


def test_a_meta_table_that_cannot_be_read_is_a_gap(engine, bed):
    """Without the horizon a missing row proves nothing, and the run says so."""
    on_database(bed, "ALTER TABLE txcore_tx_meta RENAME TO away")
    manifest = bed.audit(engine).incremental()
    assert 3 == manifest["exit_code"]
    assert "txcore_tx_meta cannot be read" in gaps_of(manifest)["fence"]
    assert "no missing fence row of orders proves anything" in said(bed, manifest)


def test_a_horizon_in_the_future_is_a_gap(engine, bed):
    """No prune raises it beyond now; below such a horizon any row may have been deleted unseen."""
    on_database(bed, "UPDATE txcore_tx_meta SET pruned_below = :high", high=b"\xff" * 16)
    on_database(bed, "DELETE FROM txcore_tx")
    manifest = bed.audit(engine).incremental()
    assert 3 == manifest["exit_code"]
    assert "is in the future" in gaps_of(manifest)["fence"]


def test_a_horizon_over_live_rows_is_a_gap(engine, bed):
    """A prune deletes what is below its horizon; rows that are still there show that something else raised it."""
    (old,) = bed.write(None)
    time.sleep(0.002)
    high = (time.time_ns() // 1_000_000 << 80).to_bytes(16, "big")
    on_database(bed, "DELETE FROM txcore_tx WHERE transaction_id < :old", old=old.transaction_id)
    on_database(bed, "UPDATE txcore_tx_meta SET pruned_below = :high", high=high)
    manifest = bed.audit(engine, skew_s=0).incremental()
    assert 3 == manifest["exit_code"]
    assert "below it the table still has 1 row of transactions" in gaps_of(manifest)["fence"]


def test_rows_that_were_pruned_before_a_step_read_them_are_a_gap(engine, bed):
    """Between two steps the horizon passed births that the first step could not know."""
    audit = bed.audit(engine)
    assert 0 == audit.incremental()["exit_code"]
    bed.write(None)
    on_database(bed, "DELETE FROM txcore_tx")
    time.sleep(0.002)
    high = (time.time_ns() // 1_000_000 << 80).to_bytes(16, "big")
    on_database(bed, "UPDATE txcore_tx_meta SET pruned_below = :high", high=high)
    manifest = audit.incremental()
    assert 3 == manifest["exit_code"]
    assert "pruned before they were read" in gaps_of(manifest)["fence"]


@pytest.mark.parametrize("log", ["half", "op", "parked"])
def test_undecodable_records_in_the_group_s_own_log_are_a_gap(engine, bed, log):
    """They may be anything: the run is inconclusive and names log and number; faults are found all the same."""
    group = "(SELECT group_id FROM producer_group WHERE name = 'orders')"
    for _ in range(3):
        on_broker(bed, f"INSERT INTO {log} SELECT next, {group}, 0, x'c1', 0 FROM sequence")
        on_broker(bed, "UPDATE sequence SET next = next + 1")
    on_broker(bed, f"INSERT OR IGNORE INTO log SELECT {group}, 0, ?, MIN(position) FROM {log}", log)
    manifest = bed.audit(engine).incremental()
    assert 3 == manifest["exit_code"]
    assert "3 records cannot be decoded" in gaps_of(manifest)[log]
    assert "3 records cannot be decoded" in said(bed, manifest)


def test_a_pass_says_from_when_it_judged(engine, bed):
    """Terminal and report name the births that were judged, and the horizon of the fence rows."""
    manifest = bed.audit(engine).incremental()
    assert 0 == manifest["exit_code"]
    words = said(bed, manifest)
    assert 2 == words.count("orders: missing messages are judged for births")
    assert 2 == words.count("no fence row was pruned")
    assert not found_in(bed.store(), manifest)
    assert Path(bed.store().path(manifest["number"], "report.html")).exists()


def test_records_of_a_newer_txcore_are_read_again_and_counted_once(engine, bed):
    """Until the audit knows them no absence proves anything; then the range is read again, and no end counts twice."""
    newer = wire.encode_ops([Op(99, bytes(16))])
    with pytest.raises(NewerRecordError):
        wire.decode_ops(newer)
    group = "(SELECT group_id FROM producer_group WHERE name = 'orders')"
    on_broker(bed, f"INSERT INTO op SELECT next, {group}, 0, ?, 0 FROM sequence", newer)
    on_broker(bed, "UPDATE sequence SET next = next + 1")
    audit = bed.audit(engine)
    first = audit.incremental()
    assert 3 == first["exit_code"]
    assert "1 record of a newer txcore, not read" in gaps_of(first)["op"]
    assert "no missing record of orders proves anything" in said(bed, first)
    on_broker(bed, "DELETE FROM op WHERE body = ?", newer)
    second = audit.incremental()
    assert (0, {}) == (second["exit_code"], second["counts"])
    assert 10 == sum(each["commits"] for each in second["transactions"])


def test_only_the_group_s_fence_rows_are_read_and_old_ones_once(engine, bed):
    """The database sends no rows of other groups; after the cut only an hour's rows are read a second time."""
    old_ms = time.time_ns() // 1_000_000 - 3 * 3_600_000
    tombstones = [(identity_of(old_ms, number), 2, b"") for number in range(20)]
    write_rows(bed.database, "txcore_tx", bed.group, tombstones)
    write_rows(bed.database, "txcore_tx", "others", [(identity_of(old_ms, 100 + n), 1, b"") for n in range(300)])
    manifest = bed.audit(engine).once()
    assert (0, {}) == (manifest["exit_code"], manifest["counts"])
    logs, recent, old = 30, 10, 20
    assert logs + 2 * recent + old == manifest["records"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_a_large_fence_table_is_read_in_parts_and_each_row_once(kind, tmp_path):
    """The parts follow each other by the times of the ids; the database sends no rows of other groups."""
    begin_ms = time.time_ns() // 1_000_000 - 3_600_000
    made = [identity_of(begin_ms + 1_000 * number, 0) for number in range(100)]  # each the first id of its time
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/shop.db"
        if kind != "sqlite":
            url = obtained(kind, lambda: stack.enter_context(servers.database_url(kind)))
        engine = create_engine(url)
        txcore.SqlFence(engine).create()
        engine.dispose()
        write_rows(url, "txcore_tx", "orders", [(each, 1, sha256(each).digest()) for each in made])
        write_rows(url, "txcore_tx", "others", [(identity_of(begin_ms, 7), 1, b"")])
        wanted = Range(Source(0, "main", FENCE, "txcore_tx"), Place(0, 0, 0), 0, 1, groups={"orders": 0})
        parts = fence.split(url, wanted, 25)
        assert [(n, n + 1) for n in range(4)] == [(part.start, part.end) for part in parts]
        # A part that begins at an id holds it.
        parts[0], parts[1] = replace(parts[0], upper=made[30]), replace(parts[1], lower=made[30])
        rows = [row for part in parts for batch in read_range(url, part) for row in batch.to_pylist()]
        found = [(row["tx"], row["digest_high"], row["digest_low"]) for row in rows if row["kind"] == Kind.ROW]
        assert [(each, *numbers_of(sha256(each).digest())) for each in made] == sorted(found)
        assert {Kind.ROW, Kind.COVER, Kind.COST} == {row["kind"] for row in rows}
        assert bytes(16) == fence.pruned_below(url, "txcore_tx")
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE txcore_tx DROP COLUMN digest"))
        engine.dispose()
        old = [row for batch in read_range(url, parts[0]) for row in batch.to_pylist() if row["kind"] == Kind.ROW]
        assert [None] * 30 == [row["digest_high"] for row in old]
