"""The audit after a restore: it names each transaction on which broker and database do not agree any more."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time

import pytest
from beds import Bed, found_in
from sqlalchemy import create_engine
from txcore_conformance.kit import FAST, decide_all, hasty
from txcore_spark.job import Window

import txcore


@contextlib.contextmanager
def service_of(bed):
    """The backend, engine and fence of the bed's service, which ends with the block."""
    engine = create_engine(bed.database)
    try:
        with txcore.connect(bed.url) as backend:
            yield backend, engine, txcore.SqlFence(engine)
    finally:
        engine.dispose()


def place(bed, *, mode="half", dies=False):
    """Commit one order and send its message, unless the service dies before; return the transaction's id."""
    with service_of(bed) as (backend, engine, fence):
        policy = txcore.CheckPolicy(immunity_s=0.05)
        producer = txcore.TransactionProducer(hasty(backend), bed.group, fence=fence, mode=mode, policy=policy)
        transaction = producer.begin()
        transaction.publish(txcore.Message("orders.created", b"body"))
        with engine.connect() as connection:
            transaction.prepare(connection)
            connection.commit()
        if not dies:
            transaction.commit()
        if mode == "table" and not dies:
            relay = txcore.Relay(backend, bed.group, engine)
            assert relay.run_once().sent == 1
            relay.stop()
    return bytes(transaction.transaction_id)


def check(bed):
    """Let a checker decide every half."""
    with service_of(bed) as (backend, _, fence):
        decide_all(txcore.Checker(backend, bed.group, fence=fence, limits=FAST), backend, bed.group, 60)


@pytest.mark.parametrize(
    ("restored", "half", "table"),
    [("shop.db", "MISDECIDED", "PHANTOM"), ("broker.db", "LOST", "LOST")],
    ids=["database", "broker"],
)
def test_audit_names_what_a_restore_left_on_one_side(engine, tmp_path, restored, half, table):
    """What was sent after the copy is named, by half or by table; what was before, or undecided, is not."""
    bed = Bed(tmp_path)
    place(bed)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / restored)) as source,
        contextlib.closing(sqlite3.connect(tmp_path / "kept")) as kept,
    ):
        source.backup(kept)
    by_half, by_table = place(bed), place(bed, mode="table")
    if restored == "shop.db":
        place(bed, dies=True)
    for path in tmp_path.glob(f"{restored}*"):
        path.unlink()
    shutil.copy(tmp_path / "kept", tmp_path / restored)
    check(bed)
    manifest = bed.audit(engine).once()
    assert found_in(bed.store(), manifest) == {by_half: {half}, by_table: {table}}


def test_audit_of_a_new_broker_names_every_committed_row(engine, tmp_path):
    """After the loss of a broker each order without half and message is LOST; a limit in time leaves the older out."""
    bed = Bed(tmp_path)
    before = place(bed)
    lost_ms = time.time_ns() // 1_000_000
    crashed = place(bed, dies=True)
    for path in tmp_path.glob("broker.db*"):
        path.unlink()
    place(bed)
    audit = bed.audit(engine)
    assert found_in(bed.store(), audit.once()) == {before: {"LOST"}, crashed: {"LOST"}}
    assert found_in(bed.store(), audit.once(Window(since_ms=lost_ms))) == {crashed: {"LOST"}}
