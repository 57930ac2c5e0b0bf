"""The topics' side: every message of the topics that rows name, read to an end that was frozen before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from txcore import wire
from txcore.errors import TxcoreError
from txcore.outbox.foreign_rows import uuid_of
from txcore_spark.outboxes.asked import Asked
from txcore_spark.outboxes.prints import body_print, header_prints, value_print
from txcore_spark.plan import TARGET, Broker, Range, Source
from txcore_spark.readers import Reader, reader_of
from txcore_spark.rows import Place, Rows

WHOLE: Final = 1 << 62
"""Number of records at which a range is split: none has as many."""
SCHEMA: Final = pa.schema(
    [
        ("id", pa.binary()),
        ("name", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("ts_ms", pa.int64()),
        ("key", pa.int64()),
        ("body", pa.int64()),
        ("headers", pa.list_(pa.int64())),
    ]
)
"""A message of a topic; `key` is null where the broker carries none, and its parts are prints of 64 bits."""


@dataclass(slots=True)
class Messages(Rows):
    """Messages of one topic that are collected for Arrow batches, in place of the audit's own rows."""

    asked: Asked | None = None

    def add_target(
        self,
        position: int,
        topic: str,
        key: bytes | None,
        body: bytes,
        headers: Mapping[str, str | bytes],
        appended_ms: int | None,
    ) -> None:
        """Add a message that names a row."""
        assert self.asked is not None
        name = self.asked.identity_of(headers, body)
        if not name:
            self.strange += 1
            return
        own_key = key if key is not None else headers.get(wire.HEADER_KEY)
        key_bytes = own_key.encode() if isinstance(own_key, str) else own_key
        self.found.append(
            (
                uuid_of(name), name, topic, self.place.partition, position, appended_ms,
                None if key_bytes is None else value_print(key_bytes),
                body_print(self.asked.payload_of(headers, body)), header_prints(self.asked.headers_of(headers, body)),
            )
        )  # fmt: skip

    def add_cover(self, start: int, end: int, count: int) -> None:
        """Do nothing: a range that was not read whole raises."""

    def take(self) -> pa.RecordBatch:
        """Return the messages added since the last call as one batch."""
        columns = zip(*self.found, strict=True) if self.found else [()] * len(SCHEMA)
        self.found = []
        arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@dataclass(frozen=True, slots=True)
class _OneRange(Range):
    """A range whose records become `Messages`, which it keeps."""

    messages: Any = None

    def rows(self) -> Rows:
        """Return the collection of this range."""
        found: Rows = self.messages
        return found


@dataclass(slots=True)
class Topics:
    """The topics of one audit. Used by one thread; `close` it.

    Attributes:
        gaps: What could not be read, with the reason.
        unread: Topics that could not be read whole.
        cut: Topics whose beginning is gone, with the partitions where it is.
        strange: Messages that name no row.
    """

    asked: Asked
    gaps: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    cut: dict[str, set[int]] = field(default_factory=dict)
    strange: int = 0
    _reader: Reader = field(init=False)
    _broker: Broker = field(init=False)
    _read: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = reader_of(self.asked.broker)
        self._broker = self._reader.open_broker(self.asked.broker, self.asked.timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._broker.close()

    def read(self, topics: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of *topics* after those that were read before, up to the ends of this moment."""
        ranges = [each for number, topic in enumerate(topics) for each in self._ranges(number, topic)]
        for wanted in ranges:
            try:
                yield from self._reader.read(self.asked.broker, wanted)
            except TxcoreError as error:
                self._miss(wanted.source.topic, error)
            else:
                self.strange += wanted.rows().strange
                self._read[wanted.source.topic, wanted.place.partition] = wanted.end

    def _ranges(self, number: int, topic: str) -> list[Range]:
        source = Source(number, "", TARGET, self.asked.taps.get(topic, topic), topic=topic)
        try:
            edges = self._broker.edges(source)
        except TxcoreError as error:
            self._miss(topic, error)
            return []
        found: list[Range] = []
        for edge in edges:
            if edge.is_truncated:
                self.cut.setdefault(topic, set()).add(edge.partition)
            start = self._read.get((topic, edge.partition), edge.first)
            if edge.end > start:
                place = Place(0, number, edge.partition)
                messages = Messages(place, asked=self.asked)
                expected = edge.count if start == edge.first else None
                whole = _OneRange(source, place, start, edge.end, expected, self.asked.timeout_s, messages=messages)
                found += self._broker.split(whole, WHOLE)  # some brokers count the range, and confirm its end by that
        return found

    def _miss(self, topic: str, error: TxcoreError) -> None:
        self.unread.add(topic)
        reason = f"topic {topic!r}: {' '.join(str(error).split())}"
        if reason not in self.gaps:
            self.gaps.append(reason)
