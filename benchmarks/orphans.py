"""Orphaned halves: `python -m benchmarks.orphans` writes them, as a producer would, and waits to be killed.

It prints one line of JSON when all are durable. A transaction's id says whether it committed, so that fence rows, a
listener and the judging process agree without asking each other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy
import typer
from txcore_conformance.kit import Recorder

import txcore
from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.ids import IdFactory, partition_of
from txcore.port import Backend
from txcore.records import Half, HalfRecord, Status, TargetMessage

GROUP: Final = "orders"
PARTITIONS: Final = 8
FENCE_BATCH: Final = 1_000
TIMEOUT_S: Final = 60.0
FAR_S: Final = 86_400.0
"""Least *lead_s*, in seconds, that all halves have as their immunity, because they need not fall due together."""
CLOCK: Final = SystemClock()


class Parity(txcore.TransactionListener):
    """Answers by the id; has no local transaction."""

    def execute_local_transaction(self, message: txcore.Message, arg: Any) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `TransactionListener`."""
        return txcore.LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half: txcore.HalfView) -> txcore.LocalTransactionState:
        """See `TransactionListener`."""
        state = txcore.LocalTransactionState
        return state.COMMIT if is_committed(half.transaction_id) else state.ROLLBACK


def is_committed(transaction_id: bytes) -> bool:
    """Return whether a transaction committed, which is true of about half of the ids."""
    return bool(transaction_id[-1] & 1)


def new_ids() -> IdFactory:
    """Return a source of transaction ids."""
    return IdFactory(CLOCK, system_randomness())


def make_half(identity: bytes, topic: str, body: bytes, immunity_s: float, *, is_fenced: bool = False) -> HalfRecord:
    """Return the record of a half with one message, which may be checked after *immunity_s*."""
    partition = partition_of(identity, PARTITIONS)
    messages = [TargetMessage(topic, b"12345678", body, {})]
    immunity_ms = max(round(immunity_s * 1000), 1)
    half = Half(1, identity, GROUP, partition, 0, CLOCK.wall_ms(), immunity_ms, 0, 0, is_fenced, "orphan", messages)
    return HalfRecord(GROUP, partition, identity, 0, wire.encode_half(half), messages)


def append(backend: Backend, records: Sequence[HalfRecord]) -> None:
    """Append *records* and wait until they are durable."""
    batch = Recorder(records)
    backend.append_halves(batch)
    assert {each.status for each in batch.wait(backend, TIMEOUT_S)} == {Status.DURABLE}


def chunks(identities: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """Return *identities* in parts of *size*."""
    for start in range(0, len(identities), size):
        yield identities[start : start + size]


def insert_rows(url: str, identities: Sequence[bytes]) -> None:
    """Write the fence rows of the transactions that committed."""
    engine = sqlalchemy.create_engine(url)
    fence = txcore.SqlFence(engine)
    for chunk in chunks([each for each in identities if is_committed(each)], FENCE_BATCH):
        with engine.begin() as connection:
            for identity in chunk:
                fence.insert(connection, identity, GROUP)


def main(url: str, topic: str, count: int, lead_s: float, size: int, database: str = "") -> None:
    """Write *count* halves that fall due together, *lead_s* after the first one, and wait."""
    backend = txcore.connect(url)
    backend.ensure_group(GROUP, PARTITIONS).result(TIMEOUT_S)
    factory = new_ids()
    identities = [factory.new() for _ in range(count)]
    if database:
        insert_rows(database, identities)
    due_s = time.monotonic() + lead_s
    for chunk in chunks(identities, backend.capabilities.batch_count_max):
        immunity_s = lead_s if lead_s >= FAR_S else due_s - time.monotonic()
        append(backend, [make_half(each, topic, b"x" * size, immunity_s, is_fenced=bool(database)) for each in chunk])
    committed = sum(map(is_committed, identities))
    print(json.dumps({"due_s": due_s, "written_s": time.monotonic(), "committed": committed}), flush=True)
    sys.stdin.read()  # ends with the parent process at the latest


if __name__ == "__main__":
    typer.run(main)
