"""A half log that brings nothing for a while, as when its leader is away: an empty read does not prove its end."""

from __future__ import annotations

import itertools

import pytest
from txcore_conformance.kit import FAST, Answers, hasty

import txcore
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.records import LogKind

SILENT_READS = 60


class Silent(MemoryBackend):
    """A backend whose half logs bring nothing at first, however many records they hold."""

    def read(self, group, kind, partition, start=None):
        reader = super().read(group, kind, partition, start)
        if kind is LogKind.HALF:
            read, reads = reader.read, itertools.count()
            reader.read = lambda count_max: () if next(reads) < SILENT_READS else read(count_max)
        return reader


@pytest.mark.parametrize("profile", [STRONG, KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE], ids=lambda profile: profile.name)
def test_a_sweep_is_not_over_before_every_half_was_read(profile):
    """A half that was stored before `run_once` is judged by it, after any silence of the half log."""
    broker = MemoryBroker(profile)
    backend = MemoryBackend(broker)
    backend.ensure_group("g", 2).result()
    policy = txcore.CheckPolicy(immunity_s=0.01)
    producer = txcore.TransactionProducer(hasty(backend), "g", listener=Answers(), policy=policy)
    for number in range(4):
        transaction = producer.begin()
        transaction.publish(txcore.Message("t", b"%d" % number))
        transaction.prepare()
    checker = txcore.Checker(
        Silent(broker),
        "g",
        listener=Answers(txcore.LocalTransactionState.ROLLBACK),
        policy=txcore.CheckPolicy(interval_s=0.001, check_max=3),
        limits=FAST,
    )
    report = checker.run_once(20.0)
    checker.stop()
    assert len(broker.log("g", LogKind.HALF, 0)) + len(broker.log("g", LogKind.HALF, 1)) >= 4
    assert (2, 4) == (report.partitions, report.rolled_back + report.pending)
