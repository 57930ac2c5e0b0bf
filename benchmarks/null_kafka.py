"""The Kafka plugin on a driver that acknowledges at once: its own work, without librdkafka and without a broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from txcore_kafka.backend import KafkaBackend
from txcore_kafka.options import Options

from benchmarks.drive import Drive, Sample
from benchmarks.place import Place
from benchmarks.styles import send_batches
from txcore.clock import Clock, SystemClock

PARTITION_COUNT: Final = 4
LIMIT_BYTES: Final = 1_048_588
"""Kafka's default of `max.message.bytes`."""


class _Acknowledgement:
    """The part of the driver's message that the plugin reads from a delivery report without an error."""

    def timestamp(self) -> tuple[int, int]:
        """Return the broker's time of the append (LogAppendTime)."""
        return 2, 1_700_000_000_000


class NullProducer:
    """The driver's producer, which keeps nothing: the next poll reports each record as stored."""

    def __init__(self) -> None:
        self._reports: list[Callable[[Any, Any], None]] = []
        self._acknowledgement = _Acknowledgement()

    def produce(self, *record: Any) -> None:
        """Take a record, whose fifth argument is the function for its report."""
        self._reports.append(record[4])

    def poll(self, timeout_s: float) -> int:
        """Report the records of the calls before as stored, at once."""
        del timeout_s
        reports, self._reports = self._reports, []
        for report in reports:
            report(None, self._acknowledgement)
        return len(reports)

    def __len__(self) -> int:
        """Return the number of records without a report."""
        return len(self._reports)


def null_send_many(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    """Run `send_many` without a broker: the processor time is that of core and plugin alone."""
    return send_batches(place, drive, null_backend(SystemClock(), place.group, place.topic), batch_size)


def null_backend(clock: Clock, group: str, topic: str) -> KafkaBackend:
    """Return the plugin's backend with a group and a target topic, as if Kafka had answered for both before."""
    backend: Any = KafkaBackend(Options(), clock=clock)
    backend._pid = os.getpid()  # noqa: SLF001 - in place of `Producing.start`, which would make a client and its thread
    backend._producing._producer = driver = NullProducer()  # noqa: SLF001
    backend._producing._many_client = lambda: driver  # noqa: SLF001
    backend._control.partition_counts[group] = PARTITION_COUNT  # noqa: SLF001
    backend._control.ensure_group = lambda *_: PARTITION_COUNT  # noqa: SLF001
    limits = backend._targets._bytes_max  # noqa: SLF001
    limits._begin = lambda topics: [limits.answered(each, LIMIT_BYTES) for each in topics]  # noqa: SLF001
    limits.ask([topic], lambda _: None)
    backend._presence.note(topic)  # noqa: SLF001
    made: KafkaBackend = backend
    return made
