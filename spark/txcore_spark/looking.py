"""One more look at target topics, without Spark: which targets of some transactions are there now.

A run's findings are of the time of its cut. A message may have arrived since, or its topic may have been made anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from txcore.config import Loaded
from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError
from txcore_spark.plan import TARGET, Range, Source
from txcore_spark.readers import reader_of
from txcore_spark.rows import Kind, Place
from txcore_spark.scope import scope_of

READ_TIMEOUT_S: Final = 20.0
"""Silence of a broker, in seconds, after which a topic counts as unreadable."""
RANGE_RECORDS_MAX: Final = 500_000


class Look:
    """Reads each topic once, when it is first asked for.

    Args:
        wanted: Ids of the transactions of interest.
    """

    def __init__(self, loaded: Loaded, manifest: Mapping[str, Any], wanted: Collection[bytes]) -> None:
        self._loaded = loaded
        self._scope = scope_of(loaded, manifest)
        self._wanted = pa.array(sorted(wanted), pa.binary())
        self._found: dict[tuple[str, str], dict[bytes, set[int]]] = {}

    def present(self, backend: str, topic: str, transaction_id: bytes) -> set[int]:
        """Return the indexes of a transaction's targets that are in a topic now.

        Raises:
            TxcoreError: the topic cannot be read whole.
        """
        if (backend, topic) not in self._found:
            self._found[backend, topic] = self._read(backend, topic)
        return self._found[backend, topic].get(transaction_id, set())

    def _read(self, backend: str, topic: str) -> dict[bytes, set[int]]:
        try:
            return self._targets(backend, topic)
        except TxcoreError:
            raise
        except Exception as error:  # drivers raise any exception
            raise BackendUnavailableError(f"{type(error).__name__}: {error}") from error

    def _targets(self, backend: str, topic: str) -> dict[bytes, set[int]]:
        found: dict[bytes, set[int]] = defaultdict(set)
        settings = self._loaded.config.audit
        source, groups = self._source(backend, topic), self._scope.groups
        limits = (settings.read_timeout_s, settings.range_records_max)
        for batch in _batches(
            self._loaded.secret("backends", backend, "url"), source, self._scope.place, groups, *limits
        ):
            is_wanted = pc.and_(pc.equal(batch["kind"], int(Kind.TARGET)), pc.is_in(batch["tx"], self._wanted))
            for row in batch.select(["tx", "index"]).filter(is_wanted).to_pylist():
                found[row["tx"]].add(row["index"])
        return found

    def _source(self, backend: str, topic: str) -> Source:
        for source in self._scope.sources.values():
            is_it = (source.backend, source.log, source.topic) == (backend, TARGET, topic)
            if is_it and self._scope.is_current(source.number):
                return source
        raise ConfigError(f"the audit does not read topic {topic!r} on {backend}", key="topics")


@dataclass(frozen=True, slots=True)
class Target:
    """One target that is in a topic now.

    Attributes:
        index: Its index in its transaction.
        place: Its topic, partition and position as text.
        at_ms: Its time, if the broker reports one.
        digest: The digest of its message.
    """

    index: int
    place: str
    at_ms: int | None
    digest: bytes


def targets_of(url: str, group: str, topic: str, transaction_id: bytes) -> list[Target]:
    """Return the targets of one transaction in a topic, in their order there. Reads the whole topic.

    Raises:
        TxcoreError: the topic cannot be read whole.
    """
    source, found = Source(0, "", TARGET, topic, topic=topic), []
    columns = ["tx", "group", "index", "partition", "position", "ts_ms", "digest"]
    try:
        for batch in _batches(url, source, _place, {group: 0}, READ_TIMEOUT_S, RANGE_RECORDS_MAX):
            is_wanted = pc.and_(pc.equal(batch["kind"], int(Kind.TARGET)), pc.equal(batch["tx"], transaction_id))
            for row in batch.select(columns).filter(is_wanted).to_pylist():
                place = f"{topic}/{row['partition']}@{row['position']}"
                found.append(Target(row["index"], place, row["ts_ms"], row["digest"]))
    except TxcoreError:
        raise
    except Exception as error:  # drivers raise any exception
        raise BackendUnavailableError(f"{type(error).__name__}: {error}") from error
    return found


def _place(source: Source, partition: int) -> Place:
    return Place(0, source.number, partition)


def _batches(
    url: str,
    source: Source,
    place_of: Callable[[Source, int], Place],
    groups: Mapping[str, int],
    timeout_s: float,
    records_max: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a whole topic."""
    ranges: list[Range] = []
    broker = reader_of(url).open_broker(url, timeout_s)
    try:
        for edge in broker.edges(source):
            place = place_of(source, edge.partition)
            wanted = Range(
                source, place, edge.first, edge.end, expected=edge.count, timeout_s=timeout_s, groups=dict(groups)
            )
            if edge.first < edge.end:
                ranges += broker.split(wanted, records_max)
    finally:
        broker.close()
    for each in ranges:
        yield from reader_of(url).read(url, each)
