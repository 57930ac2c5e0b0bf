"""One reader per kind of broker: `open_broker` for planning, `read` for one range in one task.

A reader may fail, but it never shortens a read: it compares its records with the broker's own count or end position.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Final, Protocol, cast

import pyarrow as pa

from txcore.backends.options import split_url
from txcore.errors import BackendNotInstalledError, UnknownSchemeError
from txcore_spark.plan import Broker, Range

READERS: Final[tuple[str, ...]] = ("kafka", "nats", "rabbitmq", "sqlite")
_DRIVERS: Final = {"confluent_kafka": "kafka", "nats": "nats", "pika": "rabbitmq"}


class Reader(Protocol):
    """Interface of each module of this package."""

    def open_broker(self, url: str, timeout_s: float) -> Broker:
        """Connect for planning."""

    def read(self, url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; raise unless it was read whole."""


def reader_of(url: str) -> Reader:
    """Return the reader for a broker's URL.

    Raises:
        ConfigError: the URL cannot be split.
        UnknownSchemeError: there is no such reader.
        BackendNotInstalledError: its driver is missing.
    """
    scheme = split_url(url).scheme
    if scheme not in READERS:
        raise UnknownSchemeError(scheme, READERS)
    try:
        return cast("Reader", importlib.import_module(f"txcore_spark.readers.{scheme}"))
    except ModuleNotFoundError as error:
        extra = _DRIVERS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise BackendNotInstalledError(scheme, str(error.name), extra) from error
