"""The end of a log: txcore appends a marker, and the end is the offset after it.

A leader that was replaced while it was frozen reports an old end until it learns of the new leader. It cannot
acknowledge a marker with `acks=all`: the replicas follow another leader. Readers recognize a marker by its key, and
txcore's readers never return it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, ClosedError, TxcoreError
from txcore.ids import ID_BYTES
from txcore.port import running
from txcore.records import LogKind
from txcore.wire import encode_end_marker
from txcore_kafka.codec import is_missing, translated
from txcore_kafka.control import Control
from txcore_kafka.options import topic_name
from txcore_kafka.producing import Producing
from txcore_kafka.reports import OneRecord
from txcore_kafka.threads import Worker

END_KEY: Final = b"txcore-end"
"""The key of every marker; no other record of a half, op or parked log has one."""
AUTHOR: Final = "txcore_kafka"
NONCE: Final = AUTHOR.encode().ljust(ID_BYTES, b"\0")
"""A constant in the place of a transaction id, for readers that do not know markers; no record is looked up by it."""
MARKERS: Final = "end markers"


def is_end_marker(key: bytes | None) -> bool:
    """Return whether *key* is the key of a marker."""
    return key == END_KEY


class Log(NamedTuple):
    """One log of one partition."""

    group: str
    kind: LogKind
    partition: int

    @property
    def topic(self) -> str:
        """The topic of the marker."""
        return topic_name(self.group, self.kind)


class EndMarker(OneRecord):
    """A marker under way, and all questions that it answers."""

    def __init__(self, producing: Producing, ends: Ends, log: Log, asking: Sequence[Future[int]]) -> None:
        body = encode_end_marker(log.group, log.kind, log.partition, NONCE, AUTHOR)
        super().__init__(producing, log.topic, body, END_KEY, log.partition)
        self.ends = ends
        self.log = log
        self.asking = asking
        self.is_done = False
        self._offset: int | None = None

    def report(self, number: int, error: KafkaError | None, message: Any) -> None:
        """See `Records.report`; the acknowledgement has the marker's offset."""
        self._offset = message.offset() if error is None else None
        super().report(number, error, message)

    def stored(self, numbers: Sequence[int]) -> None:  # noqa: ARG002
        """See `Records.stored`."""
        if self._offset is not None and self._offset >= 0:
            self.settle(end=self._offset + 1)
        else:  # It was stored by an earlier try whose answer was lost.
            self.settle(BackendTimeoutError(f"the broker does not report where {self.topic!r} ends"))

    def failed(self, number: int, error: KafkaError) -> None:  # noqa: ARG002
        """See `Records.failed`."""
        if is_missing(error):
            self.ends.look_for_group(self)
        else:
            self.settle(translated(error, f"asking where {self.topic!r} ends"))

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`."""
        self.settle(error)

    def settle(self, error: TxcoreError | None = None, *, end: int = 0) -> None:
        """Answer the questions, unless the marker has ended already."""
        if not self.ends.ended(self):
            return
        if isinstance(error, BusyError | ClosedError):
            error = BackendUnavailableError(f"the end of {self.topic!r} is not known: {error}")
        for future in self.asking:
            if error is None:
                future.set_result(end)
            else:
                future.set_exception(error)


class Ends:
    """The questions for ends: at most one marker at a time is under way in each log. Thread safe; never blocks.

    Groups are looked up on *worker*. No other request on *worker* may wait for an end.
    """

    def __init__(self, producing: Producing, control: Control, worker: Worker, clock: Clock, timeout_s: float) -> None:
        self._producing = producing
        self._control = control
        self._worker = worker
        self._clock = clock
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._under_way: dict[Log, EndMarker] = {}
        self._late: defaultdict[Log, list[Future[int]]] = defaultdict(list)  #: asked after that marker was sent
        self._is_closed = False

    def ask(self, log: Log) -> Future[int]:
        """Ask for the end of *log*, which is after every record that was acknowledged before this call.

        Raises (through the Future):
            ConfigError: there is no such group, or this user may not write to the log.
            BackendTimeoutError, BackendUnavailableError: the marker was not acknowledged.
        """
        future: Future[int] = running()
        with self._lock:
            if self._is_closed:
                future.set_exception(_closed())
                return future
            if log in self._under_way:
                self._late[log].append(future)
                return future
            marker = self._begin(log, [future])
        self._send(marker)
        return future

    def ended(self, marker: EndMarker) -> bool:
        """Return whether *marker* ends with this call, and send another one for all questions asked meanwhile."""
        with self._lock:
            if marker.is_done:
                return False
            marker.is_done = True
            del self._under_way[marker.log]
            asking = self._late.pop(marker.log, None)
            following = None if asking is None else self._begin(marker.log, asking)
        if following is not None:
            self._send(following)
        return True

    def look_for_group(self, marker: EndMarker) -> None:
        """Fail *marker*, whose topic the client does not find, with ConfigError if there is no such group."""
        self._control.partition_counts.pop(marker.log.group, None)

        def answered(found: Future[int]) -> None:
            text = f"the broker does not know {marker.topic!r} yet"
            marker.settle(_error_of(found) or BackendTimeoutError(text))

        self._find_group(marker).add_done_callback(answered)

    def close(self) -> None:
        """Fail the open questions and refuse new ones."""
        with self._lock:
            self._is_closed = True
            markers = list(self._under_way.values())
        for marker in markers:
            marker.settle(_closed())

    def _begin(self, log: Log, asking: Sequence[Future[int]]) -> EndMarker:
        marker = EndMarker(self._producing, self, log, asking)
        self._under_way[log] = marker
        return marker

    def _send(self, marker: EndMarker) -> None:
        if self._is_closed:
            marker.settle(_closed())
            return
        self._producing.watch(MARKERS, [marker], self._clock.elapsed_s() + self._timeout_s)
        if marker.log.group in self._control.partition_counts:
            self._hand_over(marker)
        else:
            self._find_group(marker).add_done_callback(lambda found: self._found(marker, found))

    def _find_group(self, marker: EndMarker) -> Future[int]:
        return self._worker.submit(lambda: self._control.partition_count(marker.log.group))

    def _found(self, marker: EndMarker, found: Future[int]) -> None:
        error = _error_of(found)
        if error is None:
            self._hand_over(marker)
        else:
            marker.settle(error)

    def _hand_over(self, marker: EndMarker) -> None:
        try:
            marker.send()
        except TxcoreError as error:
            if is_missing(error.__cause__):
                self.look_for_group(marker)
            else:
                marker.settle(error)


def _error_of(found: Future[int]) -> TxcoreError | None:
    error = found.exception()
    return None if error is None else translated(error)


def _closed() -> TxcoreError:
    return BackendUnavailableError("this backend was closed before the log's end was known")
