"""The audit's state of a fence row whose messages travel by the message table."""

from __future__ import annotations

import pytest
import txcore_spark.readers.fence as reader
from sqlalchemy import create_engine
from txcore_spark.plan import FENCE, Range, Source
from txcore_spark.rows import Place

import txcore
from txcore.audit.verdicts import CANCELLED, DROPPED, PARKED, SENT, Tally, Thresholds, Verdict, verdicts_of
from txcore.memory import MemoryBackend, MemoryBroker


@pytest.fixture
def engine(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/business.db")
    yield engine
    engine.dispose()


def test_row_state_follows_the_message_table(engine):
    """The state distinguishes messages that wait, were sent, are parked, cancelled, or dropped by an operator."""
    fence, broker = txcore.SqlFence(engine), MemoryBroker()
    fence.create()
    producer = txcore.TransactionProducer(MemoryBackend(broker), "orders", fence=fence, mode="table")

    def put(*topics):
        with producer.transaction(engine) as tx:
            for topic in topics:
                tx.publish(txcore.Message(topic, b"body"))
        return tx.transaction_id

    broker.refusing.add("refusing")
    sent, parked, dropped = put("taking"), put("refusing"), put("taking", "refusing")
    relay = txcore.Relay(MemoryBackend(broker), "orders", engine, limits=txcore.RelayLimits(tries_max=1))
    relay.run_once()
    assert relay.drop(dropped, "a test order", "ann") == 1
    waiting = put("taking")
    with producer.transaction(engine) as later:
        later.publish(txcore.Message("taking", b"body", delay_s=3600))
    with producer.transaction(engine) as cancelled:
        cancelled.publish(txcore.Message("taking", b"body", delay_s=3600))
    with engine.begin() as connection:
        assert producer.cancel(cancelled.transaction_id, connection) is txcore.CancelState.CANCELLED
    with engine.connect() as connection:
        state = reader._state(connection, "txcore_tx")
        source = Source(0, "main", FENCE, "txcore_tx")
        wanted = Range(source, Place(0, 0, 0), 0, 1, groups={"orders": 0})
        rows = {row[0]: row[1] for row in reader._page(connection, wanted, f"{state}, NULL", bytes(16))}
    assert rows == {sent: SENT, parked: PARKED, dropped: DROPPED, waiting: 3} | {
        later.transaction_id: 3,
        cancelled.transaction_id: CANCELLED,
    }


@pytest.mark.parametrize("halves", [0, 1])
@pytest.mark.parametrize(("row", "verdict"), [(DROPPED, Verdict.FORCED), (PARKED, Verdict.UNDELIVERABLE)])
def test_message_that_stays_in_the_table_is_neither_lost_nor_silent(row, verdict, halves):
    """A dropped or parked message is named; with a late half that was closed it is not LOST either."""
    tally = Tally(halves=halves, declared=2, targets=1, present=1, row=row, row_early=1, row_absence=1)
    if halves:
        tally.commits, tally.first_commit, tally.generation = 1, 5, 0
    assert set(verdicts_of(tally, Thresholds(now_ms=0))) == {verdict}
