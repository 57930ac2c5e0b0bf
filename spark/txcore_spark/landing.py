"""One step's reading: each log is frozen in the order that makes absence a proof, and every range is landed once.

The order is op, fence, target, half: see `txcore_spark.plan`. Where no configuration names the target topics, the
halves are read in two parts: the first part names the topics before these are frozen. A half of the second part was
written after the ops were frozen, so it is undecided in this step, and its targets are no question yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from txcore.errors import TxcoreError
from txcore.findings import counted
from txcore.ids import first_id_at
from txcore.signing import keys_file_of
from txcore_spark import topics
from txcore_spark.frames import Keep, Say
from txcore_spark.plan import FENCE, HALF, OP, PARKED, TARGET, Broker, Edge, Range, Source
from txcore_spark.readers import fence, reader_of
from txcore_spark.scope import Scope
from txcore_spark.topics import Topics


@dataclass(slots=True)
class Planned:
    """The ranges that were read, and what the brokers reported about them.

    Attributes:
        ranges: By broker, or by database for fence tables.
        edges: First and end position of each partition, by source and partition.
        starts: Position at which the reading of each partition starts.
        seals: Marks of the logs at the edges' ends, see `Broker.seal`.
        renewed: Sources that were made anew since the last step.
        troubles: Sources that could not be planned, and why.
        topics: By broker: the topics that were read, and those that were not.
    """

    ranges: dict[str, list[Range]] = field(default_factory=lambda: defaultdict(list))
    edges: dict[tuple[int, int], Edge] = field(default_factory=dict)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    seals: dict[tuple[int, int], str] = field(default_factory=dict)
    renewed: set[int] = field(default_factory=set)
    troubles: list[tuple[Source, str]] = field(default_factory=list)
    topics: dict[str, Topics] = field(default_factory=dict)

    def all(self) -> list[Range]:
        """Return every range."""
        return [each for ranges in self.ranges.values() for each in ranges]


@dataclass(frozen=True, slots=True)
class Births:
    """The ids of the fence rows that a step reads, [lower, upper), and from which on it reads them a second time.

    Attributes:
        again: Lowest id of a transaction that may have committed since the first reading.
    """

    lower: bytes = b""
    upper: bytes = b""
    again: bytes = b""


class Lander:
    """Plans and lands one step.

    Args:
        before: The last step's manifest.
        reading: Number of the first of this step's two readings of the fence tables; even.
    """

    def __init__(
        self,
        scope: Scope,
        before: Mapping[str, Any] | None,
        reading: int,
        births: Births,
        say: Say = lambda _: None,
    ) -> None:
        self._scope = scope
        self._known = {(each["source"], each["partition"]): each for each in before["ends"]} if before else {}
        self._reading = reading
        self._births = births
        self._say = say
        self._settings = scope.loaded.config.audit
        self._planned = Planned()
        self._brokers: dict[str, Broker] = {}
        self._keys_files: dict[str, str] = {}

    def read(self, keep: Keep) -> Planned:
        """Freeze the ends, read every range once into *keep*, and return what was planned.

        Raises:
            TxcoreError: a broker cannot be reached at all.
        """
        planned, scope = self._planned, self._scope
        self._say("freezing the ends: op, fence, target, half")
        with self._connected():
            rest = self._freeze_logs(OP)
            listed = {name: broker.topics() for name, broker in self._brokers.items()}
        self._say("reading the fence tables")
        self._land_fence(keep, is_late=False)
        if any(names is not None and topics.is_by_journal(scope, name) for name, names in listed.items()):
            self._say("reading the halves, which name the topics")
            with self._connected():
                halves = self._freeze_logs(HALF)
            self._land(halves, keep)
            topics.learn(scope, keep.rows())
        with self._connected():
            for name, names in listed.items():
                planned.topics[name] = topics.chosen(scope, name, names)
                rest += self._freeze_topics(planned.topics[name], names)
            rest += self._freeze_logs(HALF) + self._freeze_logs(PARKED)
        partitions = {(each.source.number, each.place.partition) for each in rest}
        self._say(f"reading {counted(len(rest), 'range')} of {counted(len(partitions), 'partition')}")
        self._land(rest, keep)
        self._land_fence(keep, is_late=True)
        topics.learn(scope, keep.rows())
        return planned

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Connect to every broker for the block; a connection that idles while Spark reads may be closed."""
        scope = self._scope
        with ExitStack() as stack:
            for name in scope.backends:
                url = scope.loaded.secret("backends", name, "url")
                self._keys_files[name] = keys_file_of(url)
                self._brokers[name] = reader_of(url).open_broker(url, self._settings.read_timeout_s)
                stack.callback(self._brokers[name].close)
            yield

    def _freeze_logs(self, log: str) -> list[Range]:
        found: list[Range] = []
        for group in self._scope.loaded.config.groups:
            for source in self._scope.logs(group, log):
                try:
                    found += self._freeze(source)
                except TxcoreError as error:
                    self._fail(source, error)
        return found

    def _freeze_topics(self, chosen: Topics, listed: Collection[str] | None) -> list[Range]:
        """Freeze topics; one of no group that cannot be read, or one that does not exist, is no gap by itself."""
        found: list[Range] = []
        for source in list(chosen.sources):
            try:
                found += self._freeze(source)
            except TxcoreError as error:
                is_named = bool(self._scope.groups_of(source.number))
                if is_named and source.topic not in (listed or ()) and topics.is_by_default(self._scope, source):
                    chosen.sources.remove(source)  # what the halves send to it is not judged
                elif is_named or not topics.is_by_default(self._scope, source):
                    self._fail(source, error)
                else:
                    chosen.sources.remove(source)
                    chosen.refused[source.topic] = " ".join(str(error).split())
        return found

    def _fail(self, source: Source, error: TxcoreError) -> None:
        trouble = (source, f"{type(error).__name__}: {error}")
        if trouble not in self._planned.troubles:
            self._planned.troubles.append(trouble)

    def _freeze(self, source: Source) -> list[Range]:
        """Return the ranges of a source from where the last step, or an earlier call, stopped."""
        planned, broker = self._planned, self._brokers[source.backend]
        edges = broker.edges(source)
        if any(self._is_another(broker, source, edge) for edge in edges):
            source = self._scope.made_anew(source)
            planned.renewed.add(source.number)
        found: list[Range] = []
        for edge in edges:
            key = (source.number, edge.partition)
            planned.seals[key] = broker.seal(source, edge.partition, edge.end) if edge.end > edge.first else ""
            if key in planned.edges:  # the second part of a half log
                start, edge = planned.edges[key].end, replace(planned.edges[key], end=edge.end)  # noqa: PLW2901
            else:
                known = self._known[key]["end"] if key in self._known else edge.first
                planned.starts[key] = start = min(max(known, edge.first), edge.end)
            planned.edges[key] = edge
            if start < edge.end:
                found += broker.split(self._range(source, edge, start), self._settings.range_records_max)
        planned.ranges[source.backend] += found
        return found

    def _is_another(self, broker: Broker, source: Source, edge: Edge) -> bool:
        """Return whether the partition's seal is another one than at the end of the last step."""
        known = self._known.get((source.number, edge.partition))
        if known is None or not known["seal"] or edge.end == edge.first or edge.first >= known["end"]:
            return False
        if (source.number, edge.partition) in self._planned.edges:
            return False  # asked in this step already
        seal = broker.seal(source, edge.partition, known["end"])
        return bool(seal) and seal != known["seal"]

    def _range(self, source: Source, edge: Edge, start: int) -> Range:
        is_target = source.log == TARGET
        return Range(
            source,
            self._scope.place(source, edge.partition),
            start,
            edge.end,
            expected=edge.count if start == edge.first else None,
            timeout_s=self._settings.read_timeout_s,
            groups=dict(self._scope.groups) if is_target else {},
            signing_keys="" if is_target else self._keys_files[source.backend],
            secret=self._scope.secret,
        )

    def _land_fence(self, keep: Keep, *, is_late: bool) -> None:
        """Read every fence table, the second time only the rows that may be new."""
        births = self._births
        lower = max(births.lower, births.again) if is_late else births.lower
        ranges: list[Range] = []
        for number, groups in self._scope.tables().items():
            source = self._scope.sources[number]
            known = self._planned.ranges[f"{source.backend} (fence)"]
            start = max((each.end for each in known if each.source == source), default=0)
            wanted = Range(
                source,
                self._scope.place(source, 0),
                start,
                start + 1,
                timeout_s=self._settings.read_timeout_s,
                groups={group: self._scope.groups[group] for group in groups},
                reading=self._reading + is_late,
                lower=lower,
                upper=births.upper,
            )
            url = self._scope.loaded.secret("databases", source.backend, "url")
            parts = fence.split(url, wanted, self._settings.range_records_max)
            known += parts
            ranges += parts
        self._land(ranges, keep)

    def _land(self, ranges: Iterable[Range], keep: Keep) -> None:
        """Read *ranges*, each once, into *keep*."""
        by_place: dict[tuple[str, str], list[Range]] = defaultdict(list)
        for each in ranges:
            by_place["databases" if each.source.log == FENCE else "backends", each.source.backend].append(each)
        secret = self._scope.loaded.secret
        keep.read([(secret(*place, "url"), wanted) for place, wanted in by_place.items()], self._settings)


def births_after(since_ms: int, until_ms: int, now_ms: int, margin_ms: int) -> Births:
    """Return the births in [since, until), of which those of the last *margin_ms* may still commit."""
    lower = bytes(first_id_at(since_ms)) if since_ms else b""
    upper = bytes(first_id_at(until_ms)) if until_ms < 1 << 48 else b""
    return Births(lower, upper, bytes(first_id_at(max(now_ms - margin_ms, 0))))
