"""One step's reading: fence tables, then the frozen ends in their order, then all ranges into a `Keep`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession

from txcore.errors import TxcoreError
from txcore.signing import keys_file_of
from txcore_spark.keeping import Keep
from txcore_spark.plan import FENCE, FREEZE_ORDER, HALF, TARGET, Broker, Edge, Range, Source
from txcore_spark.readers import reader_of
from txcore_spark.scope import Scope
from txcore_spark.sources import frame_of

Ends = Mapping[tuple[int, int], int]
Say = Callable[[str], None]


@dataclass(slots=True)
class Planned:
    """The ranges to read, and what the brokers reported about them.

    Attributes:
        ranges: By broker, or by database for fence tables.
        edges: First and end position of each partition, by source and partition.
        starts: Position at which the reading of each partition starts.
        troubles: Sources that could not be planned, and why.
    """

    ranges: dict[str, list[Range]] = field(default_factory=lambda: defaultdict(list))
    edges: dict[tuple[int, int], Edge] = field(default_factory=dict)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    troubles: list[tuple[Source, str]] = field(default_factory=list)

    def all(self) -> list[Range]:
        """Return every range."""
        return [each for ranges in self.ranges.values() for each in ranges]


class Lander:
    """Plans and lands one step.

    Args:
        ends: Position at which the last step stopped, by source and partition.
        reading: Number of the first of this step's two readings of the fence tables; even.
        lower: Lowest id that is read from fence tables.
    """

    def __init__(
        self,
        session: SparkSession,
        scope: Scope,
        ends: Ends,
        reading: int,
        lower: bytes = b"",
        say: Say = lambda _: None,
    ) -> None:
        self._session = session
        self._scope = scope
        self._ends = ends
        self._reading = reading
        self._lower = lower
        self._say = say
        self._timeout_s = scope.loaded.config.audit.read_timeout_s
        self._is_native = scope.loaded.config.audit.kafka_source == "spark"

    def fence_ranges(self, *, is_late: bool) -> dict[str, list[Range]]:
        """Return the reading of every fence table, by database."""
        found: dict[str, list[Range]] = defaultdict(list)
        for group in self._scope.loaded.config.groups:
            for source in self._scope.tables(group):
                found[source.backend].append(
                    Range(
                        source,
                        self._scope.place(source, 0),
                        0,
                        0,
                        timeout_s=self._timeout_s,
                        groups={group: self._scope.groups[group]},
                        reading=self._reading + is_late,
                        lower=self._lower,
                    )
                )
        return found

    def freeze(self) -> Planned:
        """Ask every broker for its ends, in the order op, target, half, parked, and cut the ranges.

        Raises:
            TxcoreError: a broker cannot be reached at all.
        """
        planned = Planned()
        with ExitStack() as stack:
            brokers, keys_files = dict[str, Broker](), dict[str, str]()
            for name in self._scope.backends:
                url = self._scope.loaded.secret("backends", name, "url")
                keys_files[name] = keys_file_of(url)
                brokers[name] = reader_of(url).open_broker(url, self._timeout_s)
                stack.callback(brokers[name].close)
            topics = {name: self._scope.topics(name, list(each.topics() or [])) for name, each in brokers.items()}
            by_log: dict[str, list[Source]] = defaultdict(list)
            for group in self._scope.loaded.config.groups:
                for source in self._scope.logs(group):
                    by_log[source.log].append(source)
            by_log[TARGET] = [source for sources in topics.values() for source in sources]
            covered = {name: sorted({source.topic for source in sources}) for name, sources in topics.items()}
            for log in FREEZE_ORDER:
                for source in by_log[log]:
                    self._freeze(planned, brokers[source.backend], source, keys_files[source.backend])
            for ranges in planned.ranges.values():
                ranges[:] = self._cut(ranges, brokers, covered)
        return planned

    def _freeze(self, planned: Planned, broker: Broker, source: Source, keys_file: str) -> None:
        try:
            edges = broker.edges(source)
        except TxcoreError as error:
            planned.troubles.append((source, f"{type(error).__name__}: {error}"))
            return
        for edge in edges:
            key = (source.number, edge.partition)
            known = self._ends.get(key, edge.first)
            start = max(known, edge.first) if known <= edge.end else edge.first
            planned.edges[key], planned.starts[key] = edge, start
            if start < edge.end:
                is_whole = start == edge.first
                planned.ranges[source.backend].append(
                    Range(
                        source,
                        self._scope.place(source, edge.partition),
                        start,
                        edge.end,
                        expected=edge.count if is_whole else None,
                        timeout_s=self._timeout_s,
                        groups=dict(self._scope.groups) if source.log == TARGET else {},
                        signing_keys="" if source.log == TARGET else keys_file,
                    )
                )

    def _cut(
        self, ranges: Sequence[Range], brokers: Mapping[str, Broker], covered: Mapping[str, list[str]]
    ) -> list[Range]:
        most = self._scope.loaded.config.audit.range_records_max
        found: list[Range] = []
        for wanted in ranges:
            backend = wanted.source.backend
            parts = brokers[backend].split(wanted, most)
            if wanted.source.log == HALF:
                for part in parts:
                    object.__setattr__(part, "topics", covered[backend])
            found.extend(parts)
        return found

    def land(self, ranges: Mapping[str, Sequence[Range]], keep: Keep) -> None:
        """Read *ranges*, each once, into *keep*."""
        frames: list[DataFrame] = []
        for name, each in ranges.items():
            kind = "databases" if each and each[0].source.log == FENCE else "backends"
            if not each:
                continue
            url = self._scope.loaded.secret(kind, name, "url")
            if self._is_native and kind == "backends" and urlsplit(url).scheme == "kafka":
                from txcore_spark import native  # noqa: PLC0415 - it needs Kafka's driver, as others do not

                native.land(self._session, url, each, keep)
            else:
                frames.append(frame_of(self._session, url, each))
        if not frames:
            return
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionByName(frame)
        keep.add(union)
