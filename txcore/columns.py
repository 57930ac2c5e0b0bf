"""Halves and releases of one producer in columns: many pass the port without an object for each.

A backend may take them as any other items: each is made when it is asked for. One that reads the columns instead
spends a tenth of the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar, overload

from txcore.records import HalfRecord, Op, OpKind, Resolution, TargetMessage
from txcore.wire import OpTemplate

Item = TypeVar("Item")
_topic_of: Final = attrgetter("topic")
_headers_of: Final = attrgetter("headers")


class _Columns(Sequence[Item]):
    """Items that are made when they are asked for."""

    __slots__ = ()

    def made(self, index: int) -> Item:
        """Return the item at *index*."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        """Return an item, or some of them; a new object each time."""
        if isinstance(index, slice):
            return [self.made(each) for each in range(*index.indices(len(self)))]
        return self.made(index)

    def __iter__(self) -> Iterator[Item]:
        """Make each item in turn."""
        return map(self.made, range(len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class HalfColumns(_Columns[HalfRecord]):
    """Halves of one group, none of them a copy, each with one message.

    Attributes:
        bodies: The encoded envelopes.
    """

    group: str
    partitions: Sequence[int]
    transaction_ids: Sequence[bytes]
    bodies: Sequence[bytes]
    messages: Sequence[TargetMessage]

    def __len__(self) -> int:
        """Return the number of halves."""
        return len(self.bodies)

    def made(self, index: int) -> HalfRecord:
        """See `_Columns.made`."""
        identity, message = self.transaction_ids[index], self.messages[index]
        return HalfRecord(self.group, self.partitions[index], identity, 0, self.bodies[index], [message])

    @property
    def topics(self) -> set[str]:
        """The topics of the messages."""
        return set(map(_topic_of, self.messages))

    @property
    def has_headers(self) -> bool:
        """Whether one of the messages has headers of its own."""
        return any(map(_headers_of, self.messages))

    def take(self, indices: Sequence[int]) -> HalfColumns:
        """Return the halves at *indices*, in this order."""
        take = taker(indices)
        ids, bodies, messages = take(self.transaction_ids), take(self.bodies), take(self.messages)
        return HalfColumns(self.group, take(self.partitions), ids, bodies, messages)


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseColumns(_Columns[Resolution]):
    """The ends of such halves that their producer chose at one moment.

    Attributes:
        kinds: COMMIT, which publishes the message first; COMMITTED, which is settled when it is durable; or ROLLBACK.
        by: The attempt.
        at_ms: The writer's wall clock.
    """

    halves: HalfColumns
    kinds: Sequence[OpKind]
    by: str
    at_ms: int

    def __len__(self) -> int:
        """Return the number of releases."""
        return len(self.kinds)

    def made(self, index: int) -> Resolution:
        """See `_Columns.made`."""
        return resolution(self.halves.made(index), self.kinds[index], self.by, self.at_ms)

    @property
    def all_commit(self) -> bool:
        """Whether each is a COMMIT."""
        return self.kinds.count(OpKind.COMMIT) == len(self.kinds)

    def encoded_ops(self, indices: Sequence[int]) -> dict[int, list[bytes]]:
        """Return the encoded ops of the items at *indices*, which have one kind, for each partition."""
        take = taker(indices)
        identities, partitions = take(self.halves.transaction_ids), take(self.halves.partitions)
        template = OpTemplate(Op(self.kinds[0], identities[0], 0, self.by, self.at_ms))
        ops: defaultdict[int, list[bytes]] = defaultdict(list)
        for partition, op in zip(partitions, template.encode_each(identities), strict=True):
            ops[partition].append(op)
        return ops


def resolution(half: HalfRecord, kind: OpKind, by: str, at_ms: int) -> Resolution:
    """Return the end of a half that its producer chose: its op, and all targets if it is a COMMIT."""
    op = Op(kind, half.transaction_id, half.generation, by, at_ms)
    targets = range(len(half.messages)) if kind is OpKind.COMMIT else ()
    return Resolution(half, op, targets, b"", by, kind is OpKind.COMMITTED)


def taker(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes the elements at *indices* of a column."""
    if isinstance(indices, range) and indices.step == 1:
        return itemgetter(slice(indices.start, indices.stop))
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda column: [column[index] for index in indices]
