"""Records on their way to the broker: what is in them, and the delivery reports that come back for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

from confluent_kafka import KafkaError

from txcore.columns import HalfColumns, ReleaseColumns
from txcore.errors import TxcoreError
from txcore.records import HalfRecord, LogKind, Resolution
from txcore.wire import commit_headers, target_headers
from txcore_kafka.codec import as_sent, is_too_large
from txcore_kafka.options import topic_name

ANY_PARTITION: Final = -1
Headers: TypeAlias = "Mapping[str, str | bytes] | list[tuple[str, str | bytes]]"
Record: TypeAlias = "tuple[str, bytes, bytes | None, int, Headers | None]"
"""Topic, value, key, partition and headers."""
_topic_of, _body_of, _key_of = map(attrgetter, ("topic", "body", "key"))
OnReport: TypeAlias = "Callable[[KafkaError | None, Any], None]"


def half_record(half: HalfRecord) -> Record:
    """Return the record of a half."""
    return topic_name(half.group, LogKind.HALF), half.body, None, half.partition, None


def half_records(halves: Sequence[HalfRecord], indices: Sequence[int]) -> Iterable[Record]:
    """Return the records of the halves at *indices*."""
    if type(halves) is not HalfColumns:
        return [half_record(halves[index]) for index in indices]
    some, topic = halves.take(indices), topic_name(halves.group, LogKind.HALF)
    return zip(repeat(topic), some.bodies, repeat(None), some.partitions, repeat(None))


def commit_records(commits: ReleaseColumns) -> Iterable[Record]:
    """Return the records that publish the messages of *commits*, which have no headers of their own."""
    halves, messages = commits.halves, commits.halves.messages
    headers = commit_headers(halves.group, halves.transaction_ids, commits.by)
    topics, bodies, keys = map(_topic_of, messages), map(_body_of, messages), map(_key_of, messages)
    return zip(topics, bodies, keys, repeat(ANY_PARTITION), headers)


def target_record(resolution: Resolution, target: int) -> Record:
    """Return the record that publishes a target."""
    half = resolution.half
    message = half.messages[target]
    headers = target_headers(half.group, half.transaction_id, target, message, resolution.by)
    if message.headers:
        headers = as_sent(headers)
    return message.topic, message.body, message.key, ANY_PARTITION, headers


def parked_record(resolution: Resolution) -> Record:
    """Return the record for the parked log."""
    half = resolution.half
    return topic_name(half.group, LogKind.PARKED), resolution.parked, None, half.partition, None


class Client(Protocol):
    """The part of `producing.Producing` that hands records over and collects their reports."""

    reports: deque[Records]

    def send(self, on_report: OnReport, record: Record, *, is_alone: bool = False) -> None:
        """See `Producing.send`."""

    def wake(self) -> None:
        """Wake the poll thread, if it sleeps."""


class Records:
    """Records under way that were handed to the client together, each with a number; the last poll's reports of them.

    Not thread safe, but `report`: all else happens on the thread that polls, or before the first record is sent.

    Attributes:
        acked, nacked: The reports of the current poll.
        alone: Records that were sent in a batch of their own.
    """

    producing: Client
    acked: list[int]
    nacked: list[tuple[int, KafkaError]]
    alone: AbstractSet[int]

    def report(self, number: int, error: KafkaError | None, _message: Any) -> None:
        """Collect a delivery report and do no more: the driver takes Python's lock anew for each report."""
        acked = self.acked
        if not acked and not self.nacked:
            self.producing.reports.append(self)
        if error is None:
            acked.append(number)
        else:
            self.nacked.append((number, error))

    def reported(self) -> None:
        """Handle the delivery reports, after the poll that brought them."""
        acked, nacked = self.acked, self.nacked
        self.acked = []
        if nacked:
            self.nacked = []
        if acked:
            self.stored(acked)
        for number, error in nacked:
            if is_too_large(error) and number not in self.alone:
                # The limit holds for a batch, which the driver does not split: other records of it may be the cause.
                try:
                    self.send_alone(number)
                except TxcoreError:
                    self.failed(number, error)
            else:
                self.failed(number, error)

    def send_alone(self, number: int) -> None:
        """Send a record in a batch of its own.

        Raises: as `Producing.send`.
        """
        self.alone |= {number}
        self.producing.send(partial(self.report, number), self.record(number), is_alone=True)

    def record(self, number: int) -> Record:
        """Return the record with this number."""
        raise NotImplementedError

    def stored(self, numbers: Sequence[int]) -> None:
        """Handle the broker's acknowledgements."""
        raise NotImplementedError

    def failed(self, number: int, error: KafkaError) -> None:
        """Handle a refusal, or an unknown outcome."""
        raise NotImplementedError


class OneRecord(Records):
    """A record of its own."""

    def __init__(self, producing: Client, topic: str, value: bytes, key: bytes | None, partition: int) -> None:
        self.producing = producing
        self.acked: list[int] = []
        self.nacked: list[tuple[int, KafkaError]] = []
        self.alone: AbstractSet[int] = frozenset()
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition

    def send(self) -> None:
        """Hand it to the client.

        Raises: as `Producing.send`.
        """
        self.producing.send(partial(self.report, 0), self.record(0))
        self.producing.wake()

    def record(self, number: int) -> Record:  # noqa: ARG002 - the only one
        """See `Records.record`."""
        return self.topic, self.value, self.key, self.partition, None
