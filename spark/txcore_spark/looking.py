"""One more look at target topics, without Spark: which targets of some transactions are there now.

A run's findings are of the time of its cut. A message may have arrived since, or its topic may have been made anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txcore.config import Loaded
from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError
from txcore_spark.plan import TARGET, Range, Source
from txcore_spark.readers import reader_of
from txcore_spark.rows import Kind
from txcore_spark.scope import scope_of


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
        url = self._loaded.secret("backends", backend, "url")
        for wanted in list(self._ranges(url, self._source(backend, topic))):
            for batch in reader_of(url).read(url, wanted):
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

    def _ranges(self, url: str, source: Source) -> Iterator[Range]:
        settings = self._loaded.config.audit
        broker = reader_of(url).open_broker(url, settings.read_timeout_s)
        try:
            for edge in broker.edges(source):
                wanted = Range(
                    source,
                    self._scope.place(source, edge.partition),
                    edge.first,
                    edge.end,
                    expected=edge.count,
                    timeout_s=settings.read_timeout_s,
                    groups=dict(self._scope.groups),
                )
                if edge.first < edge.end:
                    yield from broker.split(wanted, settings.range_records_max)
        finally:
            broker.close()
