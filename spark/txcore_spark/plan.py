"""The plan of a step: ranges of positions, whose ends are frozen before anything is read.

The order op, fence, target, half makes absence a proof without any grace period: a target is written before its op, a
half before both, and a fence row is committed after its half and before the rest. So the cut holds no op without its
targets or its row, and no target or row without its half.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from txcore.errors import TxcoreError
from txcore.signing import SigningKeys
from txcore_spark.rows import Place, Rows

BATCH_ROWS: Final = 10_000
HALF: Final = "half"
OP: Final = "op"
PARKED: Final = "parked"
TARGET: Final = "target"
FENCE: Final = "fence"
OWN_LOGS: Final = (OP, HALF, PARKED)
"""The logs of a group; a parked record is before its DISCARD, so it is cut after the ops too."""


class ShortReadError(TxcoreError):
    """A range gave fewer records than its broker reports for it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One log of a group, or one topic of targets, on one broker.

    Attributes:
        number: Its number in the rows.
        backend, group: The broker's and the group's name; no group for a topic.
        log: half, op, parked, target or fence.
        name: Name of a log's group, of a topic, of a stream that taps it, or of a fence table.
        topic: The topic's name in halves; "" for a log.
        made: How often a log or topic of this name was seen to be made anew.
    """

    number: int
    backend: str
    log: str
    name: str
    group: str = ""
    topic: str = ""
    made: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Positions [first, end) that one partition of a source holds now.

    Attributes:
        first: First position that can still be read; 0 while no record is gone.
        is_truncated: Records at the beginning are gone.
        count: Number of records in it, if the broker reports it.
        whole_from_ms: Time from which no record is missing, if the beginning is gone and the broker's rules give it.
    """

    partition: int
    first: int
    end: int
    is_truncated: bool = False
    count: int | None = None
    whole_from_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """One task's work: [start, end) of one partition of one source.

    Attributes:
        expected: Number of records that the broker reports; None if it does not count them.
        timeout_s: Time without a record after which the range counts as unreadable.
        groups: Numbers of the groups whose targets or fence rows are read.
        reading: For a fence table: number of the reading; the even ones come before the half ends are frozen.
        lower, upper: For a fence table: the ids that are read, [lower, upper); an empty one is no limit.
        signing_keys: The file with the keys of groups that sign, which each task reads; "" for none.
        secret: Key of the messages' hashes, hexadecimal.
    """

    source: Source
    place: Place
    start: int
    end: int
    expected: int | None = None
    timeout_s: float = 20.0
    groups: Mapping[str, int] = field(default_factory=dict)
    reading: int = 0
    lower: bytes = b""
    upper: bytes = b""
    signing_keys: str = ""
    secret: str = field(default="", repr=False)

    def rows(self) -> Rows:
        """Return an empty collection for the records of this range.

        Raises:
            ConfigError: the file with the keys cannot be used.
        """
        keys = SigningKeys.from_file(self.signing_keys).of(self.source.group) if self.signing_keys else None
        return Rows(self.place, self.groups, keys, self.source.group, secret=bytes.fromhex(self.secret))


class Broker(Protocol):
    """The driver's view of one broker while it plans. Used by one thread; `close` it."""

    def topics(self) -> Sequence[str] | None:
        """Return all target topics; None if the broker cannot list them."""

    def edges(self, source: Source) -> Sequence[Edge]:
        """Return the positions that each partition of *source* holds at this moment.

        Raises:
            TxcoreError: *source* does not exist or cannot be reached.
        """

    def seal(self, source: Source, partition: int, end: int) -> str:
        """Return a mark that another log of this name, made anew, would not have; "" if the broker gives none.

        Args:
            end: Position before which the mark may be taken from the last record.

        Raises:
            TxcoreError: as `edges`.
        """

    def split(self, wanted: Range, records_max: int) -> Sequence[Range]:
        """Cut one range into ranges of at most *records_max* records."""

    def close(self) -> None:
        """Close the connection."""


def flushed(rows: Rows, *, at_least: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the rows that *rows* holds as one batch, if there are enough."""
    if len(rows.found) >= at_least:
        yield rows.take()


def split_evenly(wanted: Range, records_max: int) -> list[Range]:
    """Cut a range by positions; each part counts for itself."""
    size = wanted.end - wanted.start
    parts = max(1, -(-size // records_max))
    bounds = [wanted.start + size * n // parts for n in range(parts + 1)]
    expected = wanted.expected if parts == 1 else None
    return [replace(wanted, start=low, end=high, expected=expected) for low, high in itertools.pairwise(bounds)]


def encode_ranges(ranges: Iterable[Range]) -> str:
    """Return ranges as text, for an option of a data source. URLs are not in it."""
    return msgspec.json.encode(list(ranges)).decode()


def decode_ranges(text: str) -> list[Range]:
    """Return the ranges in *text*."""
    return msgspec.json.decode(text, type=list[Range])


def as_builtin(value: object) -> dict[str, Any]:
    """Return an object of a plan as plain dictionaries and lists, for a manifest."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found
