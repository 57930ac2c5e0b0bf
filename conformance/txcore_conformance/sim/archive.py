"""All records that were ever stored in a seed's logs, also those that retention deleted, and their journeys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from txcore import wire
from txcore.errors import WireFormatError
from txcore.history.folding import Journeys
from txcore.history.journey import Journey
from txcore.records import Checkpoint, Half, LogKind, LogRecord, Op, Position
from txcore_conformance.checkpoint_bounds import judge_bounds


def ops_in(record: LogRecord) -> list[Op]:
    """Return the ops in a record; none if it is a stray."""
    try:
        return wire.decode_ops(record.body)
    except WireFormatError:
        return []


@dataclass(slots=True)
class _Partition:
    """One partition's records in the order of their append, decoded once and folded into journeys."""

    records: dict[LogKind, list[LogRecord]] = field(default_factory=lambda: {kind: [] for kind in LogKind})
    halves: list[tuple[Position, Half]] = field(default_factory=list)
    ops: list[tuple[Position, list[Op]]] = field(default_factory=list)
    journeys: Journeys = field(default_factory=lambda: Journeys(0))


class Archive:
    """Keeps all records of one group, and folds each when it is added.

    Attributes:
        strays: Records that cannot be decoded, by kind, partition and position.
        forged: Copies that no process of the group has made; they change no journey.
    """

    def __init__(self, partition_count: int) -> None:
        self._partitions = [_Partition(journeys=Journeys(number)) for number in range(partition_count)]
        self.strays: set[tuple[LogKind, int, int]] = set()
        self.forged: set[bytes] = set()

    def add(self, kind: LogKind, partition: int, record: LogRecord) -> Sequence[Op]:
        """Add a record that was just appended; returns the ops in it."""
        kept = self._partitions[partition]
        kept.records[kind].append(record)
        ops: list[Op] = []
        if record.body in self.forged:
            return ops
        if kind is LogKind.HALF:
            half = kept.journeys.read_half(record)
            if half is not None:
                kept.halves.append((record.position, half))
            else:
                self.strays.add((kind, partition, record.position))
        elif kind is LogKind.OP:
            ops = kept.journeys.read_ops(record)
            if ops:
                kept.ops.append((record.position, ops))
            else:
                self.strays.add((kind, partition, record.position))
        else:
            kept.journeys.read_parked(record)
        return ops

    def lose(self, kind: LogKind, partition: int, count: int) -> None:
        """Forget the last *count* records of a log, which its broker has lost."""
        old = self._partitions[partition]
        self._partitions[partition] = _Partition(journeys=Journeys(partition))
        if count:
            del old.records[kind][-count:]
        for each in LogKind:
            for record in old.records[each]:
                self.add(each, partition, record)

    def records(self, kind: LogKind, partition: int) -> Sequence[LogRecord]:
        """Return a whole log."""
        return self._partitions[partition].records[kind]

    def items(self) -> Iterator[tuple[tuple[LogKind, int], Sequence[LogRecord]]]:
        """Yield every log that holds records, by kind and partition."""
        for number, kept in enumerate(self._partitions):
            for kind, records in kept.records.items():
                if records:
                    yield (kind, number), records

    def journeys(self) -> Iterator[Journey]:
        """Yield every transaction's journey from the whole logs."""
        for kept in self._partitions:
            yield from kept.journeys.found.values()

    def journey(self, transaction_id: bytes) -> Journey | None:
        """Return one transaction's journey from the whole logs; None if there is none."""
        for kept in self._partitions:
            if transaction_id in kept.journeys.found:
                return kept.journeys.found[transaction_id]
        return None

    def journeys_of(self, partition: int) -> Iterable[Journey]:
        """Return the journeys of one partition."""
        return self._partitions[partition].journeys.found.values()

    def newest_half(self, partition: int) -> tuple[Position, Half] | None:
        """Return the newest half of a partition and its position."""
        halves = self._partitions[partition].halves
        return halves[-1] if halves else None

    def has_final(self, transaction_id: bytes) -> bool:
        """Return whether a final op of the transaction is stored."""
        journey = self.journey(transaction_id)
        return journey is not None and bool(journey.final)

    def judge_checkpoint(self, partition: int, checkpoint: Checkpoint, op_read: int | None) -> str:
        """Return why a checkpoint breaks S11, or "".

        Args:
            op_read: Position up to which its writer has read the op log; None if the whole log counts.
        """
        kept = self._partitions[partition]
        ops = kept.ops if op_read is None else [each for each in kept.ops if each[0] <= op_read]
        return judge_bounds(checkpoint, kept.halves, ops)
